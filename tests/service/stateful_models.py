"""Models with sequences: they show what the gateway hands to the model file."""

from __future__ import annotations

from onnx import helper

from tests.service.onnx_models import save, value

CONTROLS = """control_input [
  { name: "start" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] },
  { name: "end" control [ { kind: CONTROL_SEQUENCE_END fp32_false_true: [ -1, 2 ] } ] },
  { name: "ready" control [ { kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ] } ] },
  { name: "id" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] } ]"""
SUM = """state [ { input_name: "total" output_name: "new_total" data_type: TYPE_FP32 dims: [ 1 ] INITIAL } ]"""
TENSORS = """input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "sum" data_type: TYPE_FP32 dims: [ 1 ] }, { name: "seen" data_type: TYPE_FP32 dims: [ 5 ] } ]"""


def accumulator(repository, name, strategy="", *, max_batch_size=4, idle_us=0, initial="", instances=1, extra=""):
    """Saves a model of which `sum` is that of x over the sequence, and `seen` has x, start, end, ready and the id."""
    leading = ["batch"] if max_batch_size else []
    cast = [helper.make_node("Cast", [n], [f"{n}_f"], to=1) for n in ("start", "ready", "id")]
    axis = len(leading)
    nodes = [
        *cast,
        helper.make_node("Add", ["total", "x"], ["new_total"]),
        helper.make_node("Identity", ["new_total"], ["sum"]),
        helper.make_node("Concat", ["x", "start_f", "end", "ready_f", "id_f"], ["seen"], axis=axis),
    ]
    types = {"x": "FP32", "total": "FP32", "start": "INT32", "end": "FP32", "ready": "BOOL", "id": "UINT64"}
    inputs = [value(n, t, [*leading, 1]) for n, t in types.items()]
    outputs = [value("sum", "FP32", [*leading, 1]), value("new_total", "FP32", [*leading, 1])]
    outputs.append(value("seen", "FP32", [*leading, 5]))
    idle = f"max_sequence_idle_microseconds: {idle_us}" if idle_us else ""
    block = f"sequence_batching {{ {strategy} {idle} {CONTROLS} {SUM.replace('INITIAL', initial)} }}"
    group = f"instance_group [ {{ count: {instances} kind: KIND_CPU }} ]"
    config = f"max_batch_size: {max_batch_size} {TENSORS} {block} {group} {extra}"
    return save(repository, name, nodes, inputs, outputs, config=config)
