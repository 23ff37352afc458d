"""What a model consists of, what it costs, and which engines can run it."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.inliner

from opgate.onnx_tools.flops import flops_of
from opgate.onnx_tools.model_inputs import check_sizes, concrete
from opgate.onnx_tools.row_dependence import try_rows
from opgate.onnx_tools.run_model import Libraries, RunError, runner
from opgate.onnx_tools.sessions import SessionError
from opgate.onnx_tools.unknown_nodes import engines_of, unknown_ops
from opgate.onnx_tools.values import Values
from opgate.ops_build.dtypes import DTYPES
from opgate.ops_build.onnx.nodes import graphs_of, is_standard, nodes_of
from opgate.ops_build.op_folder import folder_of
from opgate.ops_build.op_table import Op


@dataclass(frozen=True, slots=True)
class Node:
    """A node: who has its op, the shapes of its outputs, their bytes, and its operations. None is not known."""

    name: str
    op: str
    origin: str
    shapes: tuple[str, ...]
    bytes: int | None
    flops: int | None


@dataclass(frozen=True, slots=True)
class Copy:
    """A tensor that ONNX Runtime copies between the CPU and a GPU when the model runs on the latter. `bytes` is None if
    they are not known. `because` names the ops on the CPU that make or take it, or says that it is the model's own."""

    tensor: str
    bytes: int | None
    to_gpu: bool
    because: str


@dataclass(frozen=True, slots=True)
class EngineReport:
    """Whether an engine can run the model. `missing` says what it lacks."""

    engine: str
    runs: bool
    missing: str = ""


@dataclass(frozen=True, slots=True)
class Inspection:
    """A model: its heading, what its maker has noted in it, tensors, nodes in their order, what is copied if it runs on
    a GPU, what engines say of it, and whether its rows can be batched, empty if ONNX Runtime doesn't run it."""

    heading: str
    metadata: tuple[tuple[str, str], ...]
    weights: int
    weight_bytes: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    copies: tuple[Copy, ...]
    engines: tuple[EngineReport, ...]
    rows: str


def inspect(model: onnx.ModelProto, libraries: Libraries, torch: Libraries, sizes: Mapping[str, int]) -> Inspection:
    """Looks at a model. `torch` are the libraries of its ops for PyTorch.

    A dim that the model leaves open has the size of `sizes`, or else 1 in front and 8 elsewhere. Raises InputError for
    the size of a dim that the model doesn't have.
    """
    ops = {(op.domain, op.name): op for table in libraries.tables.values() for op in table}
    check_sizes(model, sizes)
    sized = _without_functions(_sized(model, sizes), ops)
    values = Values(sized)
    nodes = tuple(_node(node, values, ops, libraries) for graph in graphs_of(sized) for node in graph.node)
    weights = _weights(model)
    opsets = ", ".join(f"{opset.domain or 'ai.onnx'} {opset.version}" for opset in model.opset_import)
    return Inspection(
        heading=f"IR version {model.ir_version}, opsets {opsets}, made by {model.producer_name or 'somebody'}",
        metadata=tuple(sorted((entry.key, entry.value) for entry in model.metadata_props)),
        weights=sum(prod(tensor.dims) for tensor in weights),
        weight_bytes=sum(_bytes_of(tensor) for tensor in weights),
        inputs=tuple(_tensor(values, value.name) for value in _inputs(model)),
        outputs=tuple(_tensor(values, value.name) for value in model.graph.output),
        nodes=nodes,
        copies=tuple(_copies(sized, values, ops, libraries.folders)),
        engines=tuple(_engines(model, libraries, torch, ops)),
        rows=_rows(model, libraries),
    )


def _rows(model: onnx.ModelProto, libraries: Libraries) -> str:
    values = Values(model)
    inputs = {value.name: (values.dtype(value.name), values.shape(value.name)) for value in _inputs(model)}
    known = {name: (dtype, shape) for name, (dtype, shape) in inputs.items() if dtype and shape is not None}
    if len(known) < len(inputs):
        return ""
    try:
        run = runner(model, libraries, "onnxruntime")
    except (RunError, SessionError):
        return ""
    rows = try_rows(known, run)
    return f"{'can be batched' if rows.independent else 'not batched'}: {rows.why}"


def _weights(model: onnx.ModelProto) -> list[onnx.TensorProto]:
    """Returns the initializers, and the tensors of Constant nodes, in which Paddle's exporter keeps weights."""
    constants = [node for node in model.graph.node if node.op_type == "Constant" and is_standard(node)]
    tensors = [attribute.t for node in constants for attribute in node.attribute if attribute.HasField("t")]
    return [*model.graph.initializer, *tensors]


def _inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    initializers = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in initializers]


def _sized(model: onnx.ModelProto, sizes: Mapping[str, int]) -> onnx.ModelProto:
    """Returns a copy whose inputs have no open dims, so that all shapes which follow from them are numbers."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.value_info[:]
    values, opened = Values(model), dict(sizes)
    for value in _inputs(copy):
        stated = values.shape(value.name)
        if stated is None:
            continue
        shape = concrete(value.name, stated, opened)
        for dim, size in zip(value.type.tensor_type.shape.dim, shape, strict=True):
            dim.dim_value = size
    for value in copy.graph.output:  # their dims follow
        value.type.tensor_type.ClearField("shape")
    return copy


def _without_functions(model: onnx.ModelProto, ops: Collection[tuple[str, str]]) -> onnx.ModelProto:
    """Puts the nodes of functions in the place of each call, but for functions of ops, which a library runs."""
    if not model.functions:
        return model
    return onnx.inliner.inline_selected_functions(model, list(ops), exclude=True)


def _node(node: onnx.NodeProto, values: Values, ops: Mapping[tuple[str, str], Op], libraries: Libraries) -> Node:
    custom = (node.domain, node.op_type) in ops
    origin = "library" if custom else "onnx" if is_standard(node) else engines_of(node.domain, node.op_type)
    sizes = [_size(values, name) for name in node.output if name]
    known_sizes = [size for size in sizes if size is not None]
    return Node(
        name=node.name or next((name for name in node.output if name), ""),
        op=f"{node.domain}::{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type,
        origin=origin,
        shapes=tuple(_tensor(values, name).partition(": ")[2] for name in node.output if name),
        bytes=sum(known_sizes) if len(known_sizes) == len(sizes) else None,
        flops=flops_of(node, values, ops, libraries.folders),
    )


def _copies(
    model: onnx.ModelProto, values: Values, ops: Mapping[tuple[str, str], Op], folders: Sequence[Path]
) -> Iterator[Copy]:
    """Yields what is copied if every node runs on a GPU, but for ops without a CUDA kernel and tensors of strings.

    ONNX Runtime may put more on the CPU, such as operators that compute shapes. Tensors within If, Loop and Scan don't
    count.
    """
    on_cpu: dict[str, list[str]] = {}  # the tensors that nodes on the CPU make or take, with their ops
    made_on_gpu: set[str] = set()
    taken_on_gpu: set[str] = set()
    for node in model.graph.node:
        op = ops.get((node.domain, node.op_type))
        texts = any(values.dtype(name) == "str" for name in (*node.input, *node.output) if name)
        if texts or (op is not None and not _has_cuda_kernel(op, folders)):
            for name in (*node.input, *node.output):
                on_cpu.setdefault(name, []).append(node.op_type)
        else:
            made_on_gpu.update(node.output)
            taken_on_gpu.update(node.input, _captured(node))
    given, asked = ([value.name for value in some] for some in (_inputs(model), model.graph.output))
    for name in dict.fromkeys([*given, *(name for node in model.graph.node for name in node.output if name)]):
        others = ", ".join(dict.fromkeys(on_cpu.get(name, ())))
        tensor, size = _tensor(values, name), _size(values, name)
        if name in taken_on_gpu and name not in made_on_gpu:
            yield Copy(tensor, size, True, "an input" if name in given else f"after {others}")
        elif name in made_on_gpu and (others or name in asked):
            yield Copy(tensor, size, False, f"for {others}" if others else "an output")


def _captured(node: onnx.NodeProto) -> Iterator[str]:
    """Yields the names that the graphs in a node use, theirs too."""
    for attribute in node.attribute:
        for graph in [attribute.g] if attribute.HasField("g") else attribute.graphs:
            for inner in graph.node:
                yield from (*inner.input, *_captured(inner))


def _has_cuda_kernel(op: Op, folders: Sequence[Path]) -> bool:
    """Returns whether an op can run on a GPU, also if this build has left its kernel out."""
    try:
        return "cuda" in op.devices or folder_of(op, folders).has_cuda_kernel
    except FileNotFoundError:
        return False


def _size(values: Values, name: str) -> int | None:
    """Returns the bytes of a tensor, None if they are not known."""
    shape, dtype = values.shape(name), values.dtype(name)
    if shape is None or dtype in (None, "str") or not all(isinstance(size, int) for size in shape):
        return None
    return int(np.prod(np.array(shape, dtype=np.int64))) * DTYPES[dtype or ""].numpy.itemsize


def _bytes_of(tensor: onnx.TensorProto) -> int:
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return prod(tensor.dims) * dtype.itemsize


def _tensor(values: Values, name: str) -> str:
    shape, dtype = values.shape(name), values.dtype(name) or "?"
    dims = "?" if shape is None else ", ".join("?" if size is None else str(size) for size in shape)
    return f"{name}: {dtype}[{dims}]"


def _engines(
    model: onnx.ModelProto, libraries: Libraries, torch: Libraries, ops: Mapping[tuple[str, str], Op]
) -> Iterator[EngineReport]:
    """Tries each engine that is here, and asks the table about those that need a GPU."""
    for engine, of in (("onnxruntime", libraries), ("reference", libraries), ("torch", torch)):
        name = {"onnxruntime": "onnxruntime cpu", "torch": "torch (standard operators in NumPy)"}.get(engine, engine)
        known = {(op.domain, op.name) for table in of.tables.values() for op in table}
        missing = unknown_ops(model, known)
        if engine == "onnxruntime":  # it says itself which of its own ops it lacks, and which a foreign library has
            own = len(of.paths) == len(of.tables)
            missing = [op for op in missing if own and op.engines != "ONNX Runtime"]
        if missing:
            yield EngineReport(name, False, f"no library has {', '.join(op.name for op in missing)}")
            continue
        try:
            runner(model, of, engine)
        except (RunError, SessionError) as error:
            yield EngineReport(name, False, str(error))
        else:
            yield EngineReport(name, True)
    used = {(node.domain, node.op_type) for node in nodes_of(model)}
    yield _cuda(used, ops)
    yield _tensorrt(model, used, ops)


def _cuda(used: set[tuple[str, str]], ops: Mapping[tuple[str, str], Op]) -> EngineReport:
    import onnxruntime

    lacking = sorted(ops[key].name for key in used & ops.keys() if "cuda" not in ops[key].devices)
    foreign = "CUDAExecutionProvider" not in onnxruntime.get_available_providers()
    parts = [f"in this build the CPU runs {', '.join(lacking)}"] if lacking else []
    parts += ["this onnxruntime has no CUDA provider: pip install 'opgate[gpu]'"] if foreign else []
    return EngineReport("onnxruntime cuda", not foreign, "; ".join(parts))


def _tensorrt(model: onnx.ModelProto, used: set[tuple[str, str]], ops: Mapping[tuple[str, str], Op]) -> EngineReport:
    """Says whether `opgate tensorrt` can rewrite the model. Only TensorRT itself knows its own operators."""
    from opgate.onnx_tools.for_tensorrt import NothingToRewrite, rewrite_file

    foreign = [op.name for op in unknown_ops(model, ops.keys()) if not op.engines.startswith("TensorRT")]
    foreign += sorted(f"{domain}::{op}" for domain, op in used if domain == "ai.onnx.ml")
    if foreign:
        return EngineReport("tensorrt", False, f"no plugin of opgate's for {', '.join(foreign)}")
    if not used & ops.keys():
        return EngineReport("tensorrt", True, "no op of a library; trtexec knows whether TensorRT has the others")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "model.onnx"
        onnx.save(model, source)
        try:
            left = rewrite_file(source, source.with_name("rewritten.onnx"), ops.values()).left
        except NothingToRewrite:
            return EngineReport("tensorrt", True)
        except ValueError as error:
            return EngineReport("tensorrt", False, str(error).replace(f"{source}: ", "").replace(str(source), "it"))
    missing = ", ".join(op.name for op in left)
    return EngineReport(
        "tensorrt", not left, f"no plugin of opgate's for {missing}" if left else "after `opgate tensorrt` and trtexec"
    )


def by_op(nodes: Sequence[Node]) -> list[dict[str, Any]]:
    """Returns a row for each op, the most expensive first: the number of its nodes, their bytes and operations."""
    rows: dict[str, dict[str, Any]] = {}
    for node in nodes:
        row = rows.setdefault(
            node.op, {"op": node.op, "origin": node.origin, "nodes": 0, "bytes": 0, "flops": 0, "uncounted": 0}
        )
        row["nodes"] += 1
        row["bytes"] += node.bytes or 0
        row["flops"] += node.flops or 0
        row["uncounted"] += node.flops is None
    return sorted(rows.values(), key=lambda row: (-row["flops"], -row["bytes"]))
