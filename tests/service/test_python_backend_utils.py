"""What the classes of `pb_utils` take and refuse, without a gateway."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from opgate.service.isolation import triton_python_backend_utils as pb_utils
from opgate.service.isolation.triton_python_backend_utils import (
    InferenceRequest,
    InferenceResponse,
    InferenceResponseSender,
    ModelConfig,
    Tensor,
    TritonError,
    TritonModelException,
)

CONFIG = {
    "name": "m",
    "max_batch_size": 4,
    "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [2]}],
    "output": [],
}


ROOT = Path(__file__).resolve().parents[2]
FILES = {
    "sequences": "system/test_python_sequences.py", "others": "system/test_others_data.py",
    "leavers": "system/test_leavers.py", "trouble": "system/test_worker_trouble.py", "mail": "service/test_mail.py",
    "backend": "system/test_python_backend.py", "utils": "service/test_python_backend_utils.py",
    "headers": "system/test_header_forwarding.py", "written": "system/test_written_repositories.py",
    "": "system/test_python_models.py",
}  # fmt: skip


def test_the_table_of_promises_names_tests_that_there_are() -> None:
    lines = (ROOT / "docs" / "triton-python.md").read_text().splitlines()
    rows = [line for line in lines if line.startswith("| ") and "**" not in line and "---" not in line]
    assert len(rows) > 40
    for row in rows[1:]:
        promise, _, named = row.strip("| ").rsplit(" | ", 2) if not row.endswith("| |") else (row, "", "")
        for name in filter(None, named.split(", ")):
            file, _, function = name.removesuffix(" T").rpartition("::")
            if not file and function in FILES:
                file, function = function, ""
            path = ROOT / "tests" / FILES[file] if file in FILES else ROOT / file
            if function.endswith(".py"):
                path, function = ROOT / function, ""
            assert f"def {function}" in path.read_text(), (promise, name)
            if name.endswith(" T"):
                assert f"def {function}(server:" in path.read_text(), name


def config(**more: Any) -> ModelConfig:
    return ModelConfig(json.dumps({**CONFIG, **more}))


@pytest.mark.parametrize(
    ("call", "refused"),
    [
        (lambda c: c.set_max_batch_size(2), "which is more than 2"),
        (lambda c: c.add_input({"name": "x", "data_type": "TYPE_FP16", "dims": [2]}), "data_type"),
        (lambda c: c.add_input({"name": "x", "data_type": "TYPE_FP32", "dims": [3]}), "dims"),
        (lambda c: c.add_input({"name": "z", "data_type": "TYPE_FP32"}), "dims is missing"),
        (lambda c: c.add_input({"name": "z", "data_type": "TYPE_FP32", "dims": [1], "format": 1}), "got format"),
        (
            lambda c: c.add_output({"name": "z", "data_type": "TYPE_FP32", "dims": [1], "optional": True}),
            "got optional",
        ),
        (lambda c: c.set_model_transaction_policy({"decoupled": True, "other": 1}), "other"),
    ],
)
def test_what_a_config_refuses(call: Any, refused: str) -> None:
    with pytest.raises(ValueError, match=refused):
        call(config())


def test_what_a_config_takes() -> None:
    found = config()
    found.set_max_batch_size(8)
    found.add_input({"name": "x", "data_type": "TYPE_FP32", "dims": [2], "optional": True})
    found.add_input({"name": "z", "data_type": "TYPE_FP32", "dims": [1]})
    found.add_output({"name": "y", "data_type": "TYPE_FP32", "dims": [1]})
    found.set_dynamic_batching()
    found.set_model_transaction_policy({"decoupled": True})
    found.set_model_transaction_policy({})
    known = found.as_dict()
    assert known["max_batch_size"] == 8 and [i["name"] for i in known["input"]] == ["x", "z"]
    assert known["dynamic_batching"] == {} and known["model_transaction_policy"] == {"decoupled": True}
    with pytest.raises(ValueError, match="decoupled"):
        found.set_model_transaction_policy({"decoupled": False})
    with pytest.raises(ValueError, match="sequence_batching"):
        config(sequence_batching={}).set_dynamic_batching()


class Sent:
    """Plays the connection."""

    def __init__(self) -> None:
        self.responses: list[Any] = []

    def respond(self, *response: Any) -> None:
        self.responses.append(response)

    def forget(self, number: int) -> None:
        pass


ANSWER = InferenceResponse([Tensor("y", np.ones(1))])


def test_a_sender_of_a_decoupled_model() -> None:
    sent = Sent()
    sender = InferenceResponseSender(sent, 3, True)  # type: ignore[arg-type]
    for arguments, refused in (({}, "expected a response"), ({"flags": 2}, "flags"), ({"response": 3}, "InferenceRes")):
        with pytest.raises(TritonModelException, match=refused):
            sender.send(**arguments)
    sender.send(ANSWER)
    sender.send(InferenceResponse(error=TritonError("no", TritonError.NOT_FOUND)))
    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    assert [(present, final) for _, present, final, *_ in sent.responses] == [
        (True, False),
        (True, False),
        (False, True),
    ]
    assert sent.responses[1][3] == ["NOT_FOUND", "no"]
    with pytest.raises(TritonModelException, match="closed"):
        sender.send(ANSWER)


def test_tensors_of_bf16() -> None:
    values = np.array([1, -2.5, 3e38], ml_dtypes.bfloat16)
    tensor = Tensor("x", values)
    assert tensor.shape() == [3] and tensor.triton_dtype() == 14
    with pytest.raises(TritonModelException, match="use to_dlpack"):
        tensor.as_numpy()
    for given in (tensor.to_dlpack(), tensor):
        again = Tensor.from_dlpack("y", given)
        assert again.triton_dtype() == 14 and again._array.view(ml_dtypes.bfloat16).tolist() == values.tolist()
    again._array.view(np.uint16)[0] = 0  # they share their memory
    assert values[0] == 0
    plain = Tensor.from_dlpack("z", np.arange(3, dtype=np.uint16))
    assert plain.as_numpy().tolist() == [0, 1, 2]
    capsule = plain.to_dlpack()
    Tensor.from_dlpack("z", capsule)
    for used in (capsule, 3):
        with pytest.raises(TritonModelException, match="a capsule of DLPack that nobody has used"):
            Tensor.from_dlpack("z", used)


def test_what_could_not_be_sent_leaves_a_sender_as_it_was() -> None:
    class Full(Sent):
        def respond(self, *response: Any) -> None:
            if not self.responses:
                self.responses.append(None)
                raise ValueError("a message is larger than its memory")
            super().respond(*response)

    final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
    for decoupled in (False, True):
        sent = Full()
        sender = InferenceResponseSender(sent, 3, decoupled)  # type: ignore[arg-type]
        with pytest.raises(TritonModelException, match="larger than its memory"):
            sender.send(ANSWER, final)
        sender.send(InferenceResponse(error=TritonError("too large")), final)
        assert [response[:3] for response in sent.responses[1:]] == [(3, True, True)]
        with pytest.raises(TritonModelException, match="closed"):
            sender.send(ANSWER)


def test_a_sender_of_another_model() -> None:
    final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
    sender = InferenceResponseSender(Sent(), 3, False)  # type: ignore[arg-type]
    with pytest.raises(TritonModelException, match="before the final flag"):
        sender.send(flags=final)
    sender.send(ANSWER)
    with pytest.raises(TritonModelException, match="one response"):
        sender.send(ANSWER)
    sender.send(flags=final)
    with pytest.raises(TritonModelException, match="closed"):
        sender.returned(ANSWER)


@pytest.mark.parametrize(
    ("make", "refused"),
    [
        (lambda: Tensor("", np.ones(1)), "empty"),
        (lambda: Tensor("x", np.ones(1, "M8[s]")), "no type for datetime64"),
        (lambda: InferenceResponse([None]), "list of pb_utils.Tensor"),
        (lambda: InferenceResponse([Tensor("x", np.ones(1))] * 2), "same name"),
        (lambda: InferenceResponse([], parameters={"x": [1]}), r"got \[1\] for 'x'"),
        (lambda: InferenceResponse([], parameters={1: "x"}), "expected names"),
        (lambda: InferenceRequest(model_name="m", requested_output_names=[""]), "empty"),
        (lambda: InferenceRequest(model_name="m", correlation_id=-1), "0 or more"),
        (lambda: InferenceRequest(model_name="m", correlation_id=1.5), "integer or a text"),
        (lambda: InferenceRequest(model_name="m", correlation_id=1 << 64), "within 64 bits"),
        (lambda: InferenceRequest(model_name="m").set_release_flags(7), "RELEASE_ALL"),
        (lambda: InferenceRequest(model_name="m").get_response_sender(), "only a request"),
        (lambda: InferenceRequest().exec(), "model_name"),
        (lambda: pb_utils.MetricFamily("m", "d", "other"), "COUNTER, GAUGE or HISTOGRAM"),
        (lambda: pb_utils.MetricFamily("m", "d", pb_utils.MetricFamily.GAUGE).Metric(buckets=[1]), "buckets"),
        (lambda: pb_utils.MetricFamily("m", "d", pb_utils.MetricFamily.HISTOGRAM).Metric(), "buckets"),
        (lambda: pb_utils.MetricFamily("m", "d", pb_utils.MetricFamily.HISTOGRAM).Metric(buckets=[2, 1]), "rise"),
        (lambda: pb_utils.load_model("m"), "initialize"),
        (lambda: pb_utils.is_model_ready("m", "x"), "expected a number"),
    ],
)
def test_what_is_refused(make: Any, refused: str) -> None:
    with pytest.raises(TritonModelException, match=refused):
        make()


def test_a_call_before_the_model_serves_is_an_error_as_a_response() -> None:
    response = InferenceRequest(model_name="m").exec()
    assert response.has_error() and "initialize" in response.error().message()
    (only,) = InferenceRequest(model_name="m").exec(decoupled=True)
    assert only.has_error()


def test_texts_may_be_bytes_and_a_trace_has_no_context() -> None:
    request = InferenceRequest(model_name=b"m\xc3\xa4", request_id=b"r", requested_output_names=[b"y"])
    assert (request.model_name, request.request_id(), request.requested_output_names()) == ("mä", "r", {"y"})
    assert request.trace().get_context() is None
    assert Tensor(b"x", np.ones(1)).name() == "x"
