"""Makes ONNX models whose requests have different lengths, for the tests of padding and of grouped batches."""

from __future__ import annotations

from onnx import TensorProto, helper

from tests.service.onnx_models import save, value

WAITS = "dynamic_batching { preferred_batch_size: 8 max_queue_delay_microseconds: 300000 }"


def parameters(**values):
    """Returns the parameters of a config."""
    return "".join(f'parameters {{ key: "{k}" value {{ string_value: "{v}" }} }}\n' for k, v in values.items())


def config(block=WAITS, max_batch_size=8, **values):
    """Returns a config that states no tensors: the gateway takes them from the model file."""
    return f'backend: "onnxruntime"\nmax_batch_size: {max_batch_size}\n{block}\n{parameters(**values)}'


def tokens(repository, name="tokens", text=None, *, out_dim="seq"):
    """Saves a model of tokens [batch, seq] and a mask.

    total [batch, 1] is the sum of the tokens that the mask has. double [batch, seq] is twice the tokens. longest
    [batch, 1] is the length that the model sees.
    """
    axes = [
        helper.make_tensor("axis", TensorProto.INT64, [1], [1]),
        helper.make_tensor("zero", TensorProto.INT64, [1], [0]),
    ]
    nodes = [
        helper.make_node("Mul", ["tokens", "mask"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "axis"], ["total"], keepdims=1),
        helper.make_node("Add", ["tokens", "tokens"], ["double"]),
        helper.make_node("Shape", ["tokens"], ["seen"], start=1, end=2),
        helper.make_node("Mul", ["total", "zero"], ["nothing"]),
        helper.make_node("Add", ["nothing", "seen"], ["longest"]),
    ]
    inputs = [value("tokens", "INT64", ["batch", "seq"]), value("mask", "INT64", ["batch", "seq"])]
    outputs = [value("total", "INT64", ["batch", 1]), value("double", "INT64", ["batch", out_dim])]
    outputs.append(value("longest", "INT64", ["batch", 1]))
    if text is None:
        text = config(pad_inputs="tokens=7", pad_masks="mask=tokens")
    return save(repository, name, nodes, inputs, outputs, initializers=axes, config=text)


def pictures(repository, name="pictures", text=None):
    """Saves a model of pictures [batch, 2, h, w] in FP32, with a mask [batch, h, w] in BOOL.

    negated [batch, 2, h, w] is minus the picture. mean [batch, 2] is the mean of what the mask has in each channel.
    """
    axes = helper.make_tensor("axes", TensorProto.INT64, [2], [2, 3])
    channel = helper.make_tensor("channel", TensorProto.INT64, [1], [1])
    nodes = [
        helper.make_node("Neg", ["picture"], ["negated"]),
        helper.make_node("Cast", ["mask"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["numbers", "channel"], ["marks"]),
        helper.make_node("Mul", ["picture", "marks"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "axes"], ["sum"], keepdims=0),
        helper.make_node("ReduceSum", ["marks", "axes"], ["count"], keepdims=0),
        helper.make_node("Div", ["sum", "count"], ["mean"]),
    ]
    inputs = [value("picture", "FP32", ["batch", 2, "h", "w"]), value("mask", "BOOL", ["batch", "h", "w"])]
    outputs = [value("negated", "FP32", ["batch", 2, "h", "w"]), value("mean", "FP32", ["batch", 2])]
    if text is None:
        text = config(pad_inputs="picture=-1.5", pad_masks="mask=picture")
    return save(repository, name, nodes, inputs, outputs, initializers=[axes, channel], config=text)


def scores(repository, name="scores", text=None):
    """Saves a model that computes scores [batch, m, n], the product of a [batch, m] and b [batch, n]. Its output's dims
    have names of their own."""
    axes = [helper.make_tensor(n, TensorProto.INT64, [1], [i]) for n, i in (("one", 1), ("two", 2))]
    nodes = [
        helper.make_node("Unsqueeze", ["a", "two"], ["column"]),
        helper.make_node("Unsqueeze", ["b", "one"], ["row"]),
        helper.make_node("Mul", ["column", "row"], ["scores"]),
    ]
    inputs = [value("a", "FP32", ["batch", "m"]), value("b", "FP32", ["batch", "n"])]
    outputs = [value("scores", "FP32", ["batch", "rows", "columns"])]
    if text is None:
        text = config(pad_inputs="a,b=2", pad_outputs="scores=a+b")
    return save(repository, name, nodes, inputs, outputs, initializers=axes, config=text)


def sized(repository, name="sized", text=None):
    """Saves a model that computes y = x for x [batch, n], and rows [batch, 1] with the rows of its batch. It reads t
    [batch, 1] and word [batch, 1] too."""
    zero = helper.make_tensor("zero", TensorProto.FLOAT, [1], [0.0])
    nodes = [
        helper.make_node("Shape", ["t"], ["count"], start=0, end=1),
        helper.make_node("Cast", ["count"], ["number"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["t", "zero"], ["nothing"]),
        helper.make_node("Add", ["nothing", "number"], ["rows"]),
        helper.make_node("Identity", ["word"], ["same"]),
        helper.make_node("Identity", ["x"], ["y"]),
    ]
    inputs = [
        value("x", "FP32", ["batch", "n"]),
        value("t", "FP32", ["batch", 1]),
        value("word", "BYTES", ["batch", 1]),
    ]
    outputs = [value("y", "FP32", ["batch", "n"]), value("rows", "FP32", ["batch", 1])]
    outputs.append(value("same", "BYTES", ["batch", 1]))
    return save(repository, name, nodes, inputs, outputs, initializers=[zero], config=text)


SCATTERED = f"""max_batch_size: 8 {WAITS}
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ -1, 2 ] allow_ragged_batch: true }} ]
output [
  {{ name: "y" data_type: TYPE_FP32 dims: [ -1, 2 ] }},
  {{ name: "sizes" data_type: TYPE_INT32 dims: [ 2 ] }}
]
batch_input [ {{ kind: BATCH_ITEM_SHAPE target_name: "shape" data_type: TYPE_INT32 source_input: "x" }} ]
batch_output [ {{ kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: "y" source_input: "x" }} ]
"""


def scattered(repository, name="scattered", text=SCATTERED):
    """Saves a model that doubles a flat tensor. The client's x has the shape [batch, n, 2]. sizes has n and 2."""
    nodes = [helper.make_node("Add", ["x", "x"], ["y"]), helper.make_node("Identity", ["shape"], ["sizes"])]
    inputs = [value("x", "FP32", ["total"]), value("shape", "INT32", ["batch", 2])]
    outputs = [value("y", "FP32", ["total"]), value("sizes", "INT32", ["batch", 2])]
    return save(repository, name, nodes, inputs, outputs, config=text)
