"""The same request gets the same bits, wherever in memory its bytes lie."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.system.clients import CLIENTS, connect
from tests.system.running import Server, running

WIDTH = 80  # a row of a batch begins at a multiple of 64 bytes
CONFIG = 'backend: "onnxruntime" max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 2000 }'


@pytest.fixture(scope="module")
def sums(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a model whose sums ONNX Runtime vectorizes. It begins each where the vectors of memory begin."""
    repository = tmp_path_factory.mktemp("bits")
    nodes = [
        helper.make_node("ReduceSum", ["x", "axes"], ["sum"]),
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[1]),
        helper.make_node("Concat", ["sum", "mean"], ["y"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "sums",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 2])],
        [numpy_helper.from_array(np.array([1]), "axes")],
    )
    for name in ("alone", "batched"):
        (repository / name / "1").mkdir(parents=True)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        onnx.save(model, repository / name / "1" / "model.onnx")
    (repository / "alone" / "config.pbtxt").write_text('backend: "onnxruntime" max_batch_size: 8')
    (repository / "batched" / "config.pbtxt").write_text(CONFIG)
    with running(repository) as server:
        yield server


@pytest.mark.parametrize("model", ["alone", "batched"])
@pytest.mark.parametrize(
    ("protocol", "binary"), [("http", True), ("http", False), ("grpc", True)], ids=["binary", "json", "grpc"]
)
def test_the_length_of_an_id_changes_no_bit(sums: Server, protocol: str, binary: bool, model: str) -> None:
    rows = np.random.default_rng(7).uniform(0.5, 1.5, (5, WIDTH)).astype(np.float32)
    how = {"binary_data": binary} if protocol == "http" else {}

    def ask(row: int, lengths: range) -> set[bytes]:
        with connect(sums, protocol) as client:
            tensor = CLIENTS[protocol].InferInput("x", [1, WIDTH], "FP32")
            tensor.set_data_from_numpy(rows[row : row + 1], **how)
            answers = [client.infer(model, [tensor], request_id="i" * length) for length in lengths]
            return {answer.as_numpy("y").tobytes() for answer in answers}

    for row in range(len(rows)):
        with ThreadPoolExecutor(4) as clients:  # at once they get into one batch
            parts = [range(1, 64)] if model == "alone" else [range(i, 64, 4) for i in range(1, 5)]
            found = list(clients.map(lambda part, row=row: ask(row, part), parts))
        assert len(set().union(*found)) == 1
