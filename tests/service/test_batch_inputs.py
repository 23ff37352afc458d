"""What Triton documents of each kind of batch_input, here with an entry for each row."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from onnx import helper

from tests.service.onnx_models import save, value
from tests.service.padded_models import WAITS
from tests.service.test_execution import infer

CONFIG = """max_batch_size: 8 {block}
input [ {{ name: "data" data_type: TYPE_FP32 dims: [ -1, -1 ] allow_ragged_batch: true }},
        {{ name: "n" data_type: TYPE_FP32 dims: [ 1 ] }} ]
output [ {{ name: "all" data_type: {datatype} dims: [ -1 ] }} ]
batch_input [ {{ kind: {kind} target_name: {targets} data_type: {datatype} source_input: "data" }} ]
"""
# A request of two rows of shape [3, 1] and one of a row of shape [2, 2], as in Triton's documentation.
CASES = [
    ("BATCH_ELEMENT_COUNT", [3, 3, 4]),
    ("BATCH_ACCUMULATED_ELEMENT_COUNT", [3, 6, 10]),
    ("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", [0, 3, 6, 10]),
    ("BATCH_MAX_ELEMENT_COUNT_AS_SHAPE", [0, 0, 0, 0]),
    ("BATCH_ITEM_SHAPE", [3, 1, 3, 1, 2, 2]),
    ("BATCH_ITEM_SHAPE_FLATTEN", [3, 1, 3, 1, 2, 2]),
]


def tells(repository, kind, datatype="INT32", targets='[ "e" ]', width=2):
    """Saves a model that answers each row with the whole batch input."""
    shape = ["n", width] if kind == "BATCH_ITEM_SHAPE" else ["k"]
    names = ["e", "f"] if '"f"' in targets else ["e"]
    flat = helper.make_tensor("flat", 7, [2], [1, -1])
    ones = helper.make_tensor("ones", 7, [1], [1])
    nodes = [
        helper.make_node("Sum", names, ["sum"]) if len(names) > 1 else helper.make_node("Identity", ["e"], ["sum"])
    ]
    nodes += [
        helper.make_node("Reshape", ["sum", "flat"], ["line"]),
        helper.make_node("Shape", ["n"], ["rows"], start=0, end=1),
        helper.make_node("Concat", ["rows", "ones"], ["size"], axis=0),
        helper.make_node("Expand", ["line", "size"], ["all"]),
        helper.make_node("Identity", ["data"], ["unused"]),
    ]
    inputs = [value("data", "FP32", ["total"]), value("n", "FP32", ["batch", 1])]
    inputs += [value(name, datatype, shape) for name in names]
    text = CONFIG.format(kind=kind, datatype=f"TYPE_{datatype}", targets=targets, block=WAITS)
    save(
        repository, "m", nodes, inputs, [value("all", datatype, ["batch", "k"])], initializers=[flat, ones], config=text
    )


@pytest.mark.parametrize(("kind", "expected"), CASES)
@pytest.mark.parametrize("datatype", ["INT32", "INT64", "FP32"])
def test_each_kind_in_a_batch_of_the_model(repository, load, kind, expected, datatype):
    tells(repository, kind, datatype)
    gateway = load()

    async def main():
        sent = [np.zeros((2, 3, 1), np.float32), np.zeros((1, 2, 2), np.float32)]
        sent = [infer(gateway, "m", data=x, n=np.zeros((len(x), 1), np.float32)) for x in sent]
        return await asyncio.gather(*sent)

    first, second = asyncio.run(main())
    assert first["all"].tolist() == [expected] * 2
    assert second["all"].tolist() == [expected]
    assert gateway.find("m").model.statistics.executions == 1


def test_one_kind_may_have_several_targets(repository, load):
    tells(repository, "BATCH_ELEMENT_COUNT", "FP32", '[ "e", "f" ]')
    gateway = load()
    answer = asyncio.run(infer(gateway, "m", data=np.zeros((1, 2, 3), np.float32), n=np.zeros((1, 1), np.float32)))
    assert answer["all"].tolist() == [[12]]


def test_wrong_targets_are_refused(repository, reason):
    tells(repository, "BATCH_ELEMENT_COUNT", "FP32", '[ "e", "e" ]')
    assert "'e' is an input as well" in reason("m")
    tells(repository, "BATCH_ITEM_SHAPE", width=3)
    assert "expected 2 columns, one for each dim of 'data', the model file has shape ['n', 3]" in reason("m")
