"""Makes small ONNX models and repositories for the tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

ONNX_TYPES = {
    "BOOL": TensorProto.BOOL, "UINT8": TensorProto.UINT8, "UINT16": TensorProto.UINT16, "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64, "INT8": TensorProto.INT8, "INT16": TensorProto.INT16, "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64, "FP16": TensorProto.FLOAT16, "FP32": TensorProto.FLOAT, "FP64": TensorProto.DOUBLE,
    "BF16": TensorProto.BFLOAT16, "BYTES": TensorProto.STRING,
}  # fmt: skip


def value(name, datatype, shape):
    return helper.make_tensor_value_info(name, ONNX_TYPES[datatype], shape)


def save(repository, name, nodes, inputs, outputs, *, initializers=(), config=None, version=1, opset=18):
    """Writes <repository>/<name>/<version>/model.onnx, and config.pbtxt unless `config` is None."""
    graph = helper.make_graph(nodes, name, inputs, outputs, list(initializers))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    folder = Path(repository) / name / str(version)
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model, folder / "model.onnx")
    if config is not None:
        (folder.parent / "config.pbtxt").write_text(config, encoding="utf-8")
    return folder.parent


def write_config(repository, name, text, version=1):
    (Path(repository) / name / str(version)).mkdir(parents=True, exist_ok=True)
    (Path(repository) / name / "config.pbtxt").write_text(text, encoding="utf-8")


def identity(repository, name, datatype, shape=("batch", 4), config=None):
    node = helper.make_node("Identity", ["x"], ["y"])
    return save(repository, name, [node], [value("x", datatype, shape)], [value("y", datatype, shape)], config=config)


def double(repository, name, config=None, shape=("batch", 4), version=1):
    """Saves a model that computes y = x + x."""
    node = helper.make_node("Add", ["x", "x"], ["y"])
    return save(
        repository,
        name,
        [node],
        [value("x", "FP32", shape)],
        [value("y", "FP32", shape)],
        config=config,
        version=version,
    )


def pick(repository, name, config):
    """Saves a model that computes y = table[i] with 8 entries. The engine refuses a batch with an index out of range."""
    table = helper.make_tensor("table", TensorProto.FLOAT, [8], np.arange(8, dtype=np.float32) * 10)
    node = helper.make_node("Gather", ["table", "i"], ["y"])
    return save(
        repository,
        name,
        [node],
        [value("i", "INT64", ["batch", 1])],
        [value("y", "FP32", ["batch", 1])],
        initializers=[table],
        config=config,
    )


def fragile(repository, name, config):
    """Saves a model that fails if the n of the batch add up to an odd number, because it halves a tensor of that size.

    The engine reports a failing node, not a wrong argument.
    """
    int64 = TensorProto.INT64
    initializers = [
        helper.make_tensor("zero", int64, [], [0]),
        helper.make_tensor("one", int64, [], [1]),
        helper.make_tensor("shape", int64, [2], [2, -1]),
        helper.make_tensor("flat", int64, [2], [1, 1]),
    ]
    nodes = [
        helper.make_node("ReduceSum", ["n"], ["total"], keepdims=0),
        helper.make_node("Range", ["zero", "total", "one"], ["r"]),
        helper.make_node("Reshape", ["r", "shape"], ["halves"]),
        helper.make_node("ReduceSum", ["halves"], ["s"], keepdims=0),
        helper.make_node("Reshape", ["s", "flat"], ["s1"]),
        helper.make_node("Mul", ["n", "zero"], ["nothing"]),
        helper.make_node("Add", ["nothing", "s1"], ["y"]),
    ]
    return save(
        repository,
        name,
        nodes,
        [value("n", "INT64", ["batch", 1])],
        [value("y", "INT64", ["batch", 1])],
        initializers=initializers,
        config=config,
    )


def endless(repository, name, config=None, times=1 << 40):
    """Saves a model that adds one for so many times, or for as many as its input `times` says if that is None."""
    int64, boolean = TensorProto.INT64, TensorProto.BOOL
    scalar = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Add", ["v", "one"], ["w"]), helper.make_node("Identity", ["c"], ["d"])],
        "body",
        [scalar("i", int64, []), scalar("c", boolean, []), value("v", "FP32", [None, None])],
        [scalar("d", boolean, []), value("w", "FP32", [None, None])],
    )
    constants = [
        helper.make_tensor("go", boolean, [], [True]),
        helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0]),
    ]
    inputs = [value("x", "FP32", ["m", "n"])]
    if times is None:
        inputs.append(value("times", "INT64", [1]))
    else:
        constants.append(helper.make_tensor("times", int64, [], [times]))
    loop = helper.make_node("Loop", ["times", "go", "x"], ["y"], body=body)
    outputs = [value("y", "FP32", ["m", "n"])]
    return save(repository, name, [loop], inputs, outputs, initializers=constants, config=config)


def slow(repository, name, config):
    """Saves a model whose y is x, and whose run takes as many turns of a loop as the largest `turns` of its batch."""
    int64, boolean = TensorProto.INT64, TensorProto.BOOL
    scalar = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Sqrt", ["v"], ["w"]), helper.make_node("Identity", ["c"], ["d"])],
        "body",
        [scalar("i", int64, []), scalar("c", boolean, []), value("v", "FP32", [1])],
        [scalar("d", boolean, []), value("w", "FP32", [1])],
    )
    constants = [
        helper.make_tensor("go", boolean, [], [True]),
        helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0]),
    ]
    nodes = [
        helper.make_node("ReduceMax", ["turns"], ["most"], keepdims=0),
        helper.make_node("Loop", ["most", "go", "one"], ["always_one"], body=body),
        helper.make_node("Mul", ["x", "always_one"], ["y"]),
    ]
    return save(
        repository,
        name,
        nodes,
        [value("x", "FP32", ["batch", "n"]), value("turns", "INT64", ["batch", 1])],
        [value("y", "FP32", ["batch", "n"])],
        initializers=constants,
        config=config,
    )


RAGGED_CONFIG = """
backend: "onnxruntime"
max_batch_size: 8
input [ { name: "data" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true } ]
batch_input [ { kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: "ends" data_type: TYPE_INT32 source_input: "data" } ]
output [
  { name: "sum" data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ ] } },
  { name: "status" data_type: TYPE_INT32 dims: [ 1 ] reshape { shape: [ ] } }
]
dynamic_batching { }
parameters { key: "row_status_output" value { string_value: "status" } }
parameters { key: "row_status_messages" value { string_value: "1=the sum is negative" } }
"""


def ragged_sum(repository, name, config=RAGGED_CONFIG):
    """Saves a model that sums each row of a flat tensor. `ends` says where the rows end. A negative sum has status 1."""
    initializers = [
        helper.make_tensor("zero_f", TensorProto.FLOAT, [1], [0.0]),
        helper.make_tensor("zero_i", TensorProto.INT32, [1], [0]),
        helper.make_tensor("axis", TensorProto.INT64, [], [0]),
        helper.make_tensor("first", TensorProto.INT64, [1], [0]),
        helper.make_tensor("last", TensorProto.INT64, [1], [-1]),
    ]
    nodes = [
        helper.make_node("CumSum", ["data", "axis"], ["running"]),
        helper.make_node("Concat", ["zero_f", "running"], ["totals"], axis=0),
        helper.make_node("Slice", ["ends", "first", "last"], ["but_last"]),
        helper.make_node("Concat", ["zero_i", "but_last"], ["begins"], axis=0),
        helper.make_node("Gather", ["totals", "ends"], ["high"]),
        helper.make_node("Gather", ["totals", "begins"], ["low"]),
        helper.make_node("Sub", ["high", "low"], ["sum"]),
        helper.make_node("Less", ["sum", "zero_f"], ["negative"]),
        helper.make_node("Cast", ["negative"], ["status"], to=TensorProto.INT32),
    ]
    return save(
        repository,
        name,
        nodes,
        [value("data", "FP32", ["total"]), value("ends", "INT32", ["n"])],
        [value("sum", "FP32", ["n"]), value("status", "INT32", ["n"])],
        initializers=initializers,
        config=config,
    )


def batching(block="dynamic_batching { }", max_batch_size=8, extra=""):
    """Returns a config that states no tensors: the gateway takes them from the model file."""
    return f'backend: "onnxruntime"\nmax_batch_size: {max_batch_size}\n{block}\n{extra}\n'


LABELLED_CONFIG = """
backend: "onnxruntime"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] label_filename: "labels.txt" } ]
"""
PIPELINE_OF_LABELLED = """
platform: "ensemble"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
ensemble_scheduling { step [
  { model_name: "labelled" model_version: -1 input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } } ] }
"""


def labelled(repository):
    """Saves the model "labelled", which returns its input and has labels for the elements 0 and 2, and the ensemble
    "labelled_pipeline" of it, which states no labels."""
    folder = identity(repository, "labelled", "FP32", config=LABELLED_CONFIG)
    (folder / "labels.txt").write_text("cat\n\ndog:x\n", encoding="utf-8")
    write_config(repository, "labelled_pipeline", PIPELINE_OF_LABELLED)


PIPELINE_CONFIG = """
platform: "ensemble"
max_batch_size: 8
input [ { name: "in" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "out" data_type: TYPE_FP32 dims: [ 4 ] } ]
ensemble_scheduling {
  step [
    { model_name: "double" model_version: -1
      input_map { key: "x" value: "in" } output_map { key: "y" value: "mid" } },
    { model_name: "again" model_version: -1
      input_map { key: "x" value: "mid" } output_map { key: "y" value: "out" } }
  ]
}
"""
