"""Mends the constants of a network for one picture in which a size stands for the batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
import onnx
from onnx import helper, numpy_helper

from opgate.attach.pictures.facts import Network
from opgate.onnx_tools.values import Values
from opgate.ops_build.onnx.nodes import graphs_of

#: A size that no other dim has: a dim that is a multiple of it holds the batch.
_BATCH = 1_000_003
#: Constants with more numbers are no shapes, and need no values to infer shapes.
_LARGE = 64
#: How many Reshapes are mended at most: each needs another inference of shapes.
_MOST = 1000


def mended(model: onnx.ModelProto, network: Network, size: tuple[int, int]) -> dict[str, int]:
    """Mends a model in place: the shapes of Reshapes, and states of LSTM, GRU and RNN. `network` has it unchanged.
    `size` are the height and width of a picture that it takes.

    Returns how many nodes of each operator it changed. Whether the batch is open then, a run has to prove.
    """
    values = Values(network.model, network.path.resolve().parent)
    counts: dict[str, int] = {}
    for graph in graphs_of(model):
        for node in graph.node:
            if node.op_type in ("LSTM", "GRU", "RNN") and _without_zero_states(node, values):
                counts[node.op_type] = counts.get(node.op_type, 0) + 1
    targets, computed = _targets(model, values), _computed(network, values, size)
    if targets and (changed := _mend_reshapes(model, network, targets, computed)):
        counts["Reshape"] = changed
    return counts


def _without_zero_states(node: onnx.NodeProto, values: Values) -> bool:
    """Takes away first states of zeros with a batch of 1: without them the operator begins with zeros, too."""
    changed = False
    for place in (5, 6):
        if len(node.input) > place and node.input[place]:
            state = values.constant(node.input[place])
            if state is not None and not state.any():
                node.input[place] = ""
                changed = True
    return changed


def _targets(model: onnx.ModelProto, values: Values) -> dict[int, list[int]]:
    """Returns the constant shape of each Reshape of the main graph, by the place of its node."""
    found = {}
    for place, node in enumerate(model.graph.node):
        if node.op_type == "Reshape" and len(node.input) > 1:
            shape = values.constant(node.input[1])
            if shape is not None:
                found[place] = [int(size) for size in shape]
    return found


def _computed(network: Network, values: Values, size: tuple[int, int]) -> dict[int, list[int]]:
    """Returns the shapes of the Reshapes of the main graph that the network computes, for one picture, by the place of
    the node."""
    places = {
        place: node.input[1]
        for place, node in enumerate(network.model.graph.node)
        if node.op_type == "Reshape" and len(node.input) > 1 and values.constant(node.input[1]) is None
    }
    if not places:
        return {}
    model = onnx.ModelProto()
    model.CopyFrom(network.model)
    del model.graph.output[:]
    for name in dict.fromkeys(places.values()):
        model.graph.output.append(helper.make_tensor_value_info(name, onnx.TensorProto.INT64, None))
    try:
        opened = network.open(model)
        names = [output.name for output in opened.get_outputs()]
        sizes = opened.run(names, {network.input: network.pictures(1, *size, bytes_=False)})
    except Exception:  # the classes of onnxruntime's exceptions share no other base; the proof says what fails
        return {}
    found = dict(zip(names, sizes, strict=True))
    return {place: [int(number) for number in found[name]] for place, name in places.items()}


def _mend_reshapes(
    model: onnx.ModelProto, network: Network, targets: dict[int, list[int]], computed: dict[int, list[int]]
) -> int:
    """Mends the Reshapes one after the other, each with the shapes that follow from those before it. A shape that is
    `computed` follows the batch by itself, and is needed only for the shapes of what comes behind."""
    sketch, changed = _sketch(model, network), 0
    waiting = {**targets, **computed}
    for _ in range(_MOST):
        shapes = _shapes(sketch)
        for place, target in sorted(waiting.items()):
            new = carrying(shapes.get(sketch.graph.node[place].input[0]), target)
            if new is None:
                continue
            for each in (sketch,) if place in computed else (sketch, model):
                node = each.graph.node[place]
                name = f"{node.output[0]}.batched"
                each.graph.initializer.append(numpy_helper.from_array(np.array(new, np.int64), name))
                node.input[1] = name
            del waiting[place]
            changed += place not in computed
            break
        else:
            return changed
    return changed


def _sketch(model: onnx.ModelProto, network: Network) -> onnx.ModelProto:
    """Returns a model without large constants, for a batch of _BATCH pictures."""
    sketch = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    sketch.functions.extend(model.functions)
    sketch.graph.name = "shapes"
    sketch.graph.node.extend(model.graph.node)
    for tensor in model.graph.initializer:
        if prod(tensor.dims) > _LARGE:
            sketch.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        else:
            sketch.graph.initializer.append(tensor)
    for value in model.graph.input:
        copy = sketch.graph.input.add()
        copy.CopyFrom(value)
        if value.name == network.input:
            copy.type.tensor_type.shape.dim[0].dim_value = _BATCH
    for value in model.graph.output:
        sketch.graph.output.add().name = value.name
    return sketch


def _shapes(sketch: onnx.ModelProto) -> Mapping[str, list[int | None]]:
    """Returns the shapes of tensors, as far as onnx infers them."""
    try:
        inferred = onnx.shape_inference.infer_shapes(sketch, data_prop=True)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        return {}
    return {
        value.name: [dim.dim_value if dim.dim_value > 0 else None for dim in value.type.tensor_type.shape.dim]
        for value in (*inferred.graph.value_info, *inferred.graph.output, *inferred.graph.input)
        if value.type.tensor_type.HasField("shape")
    }


def carrying(shape: Sequence[int | None] | None, target: Sequence[int]) -> list[int] | None:
    """Returns the target of a Reshape that carries the batch of its input, None if nothing is to be changed.

    `shape` is that of the input, in which one dim is a multiple of _BATCH; `target` is written for one picture. The
    batch stands behind as many numbers in the target as in the input: as a size of its own where the target has a 1
    there, else as a part of the size before it if the target has fewer dims, or of the size behind it.
    """
    axes = [axis for axis, size in enumerate(shape or ()) if size is not None and size % _BATCH == 0]
    if not shape or len(axes) != 1 or any(size is None for size in shape):
        return None
    known = [size or 1 for size in shape]
    axis = axes[0]
    inside = known[axis] // _BATCH
    whole = _resolved(target, [*known[:axis], inside, *known[axis + 1 :]], known)
    if whole is None:
        return None
    before = prod(known[:axis])
    places = [_boundary(whole, count) for count in dict.fromkeys((before, before * inside))]
    found = [place for place in places if place is not None]
    own = [place for place in found if place < len(whole) and whole[place] == 1]
    if own:
        place = own[0]
    elif found:
        place = found[0] - 1 if found[0] and len(whole) < len(known) else min(found[0], len(whole) - 1)
    else:
        return None
    if target[place] == -1:
        return None
    whole[place] = -1
    return whole


def _resolved(target: Sequence[int], one: Sequence[int], known: Sequence[int]) -> list[int] | None:
    """Returns the sizes of a target for one picture of the shape `one`, without -1 and 0, None if they don't fit or
    already follow the batch of `known`."""
    sizes = []
    for place, size in enumerate(target):
        if size == 0 and (place >= len(known) or known[place] % _BATCH == 0):
            return None  # this size follows the batch as it is
        sizes.append(size or known[place])
    rest = prod(size for size in sizes if size != -1)
    if -1 in sizes:
        if not rest or prod(one) % rest:
            return None
        sizes[sizes.index(-1)] = prod(one) // rest
    return sizes if prod(sizes) == prod(one) else None


def _boundary(sizes: Sequence[int], count: int) -> int | None:
    """Returns the first place in front of which the sizes have `count` numbers, None if there is none."""
    return next((place for place in range(len(sizes) + 1) if prod(sizes[:place]) == count), None)
