"""Both exporters of PyTorch, with the ops of op libraries and with the mappings that somebody states."""

from __future__ import annotations

import inspect
import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx
import torch
from torch.onnx import symbolic_helper

from opgate.onnx_tools.foreign import opset_of
from opgate.onnx_tools.from_torch.inputs import InputSpec
from opgate.ops_build.adapters.torch.onnx_export import register_symbolics, translation_table
from opgate.ops_build.onnx import schema
from opgate.ops_build.op_table import Op

EXPORTERS = ("dynamo", "legacy")
#: The operator set of an export. The decompositions of the ops need it.
OPSET = 18


class ExportError(RuntimeError):
    """A module can't be exported. The message says what to do."""


@dataclass(frozen=True, slots=True)
class OpMapping:
    """Which ONNX operator stands for an op of PyTorch: `source` is namespace::name, `domain` and `op_type` the
    operator."""

    source: str
    domain: str
    op_type: str


@dataclass(frozen=True, slots=True)
class ExportSetting:
    """How a module is exported. `ops` are those of the loaded op libraries."""

    exporter: str
    ops: Sequence[Op]
    opset: int = OPSET
    mappings: Sequence[OpMapping] = ()
    outputs: Sequence[str] = field(default_factory=tuple)


def parse_mapping(text: str) -> OpMapping:
    """Reads a text such as my_library::op=my_ops::Op or aten::acosh=Acosh. Raises ExportError."""
    found = re.fullmatch(r"(\w+::\w+)=(?:([\w.]+)::)?(\w+)", text)
    if found is None:
        raise ExportError(f"--map: expected NAMESPACE::NAME=DOMAIN::OP, such as aten::acosh=Acosh, got '{text}'")
    return OpMapping(found[1], found[2] or "", found[3])


def export(
    module: torch.nn.Module, inputs: Sequence[torch.Tensor], specs: Sequence[InputSpec], setting: ExportSetting
) -> onnx.ModelProto:
    """Exports a module that was traced with `inputs`. Raises ExportError."""
    by_name = {(op.domain, op.name): op for op in setting.ops}
    targets = {mapping.source: _schema(mapping, by_name, setting.opset) for mapping in setting.mappings}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run = _dynamo if setting.exporter == "dynamo" else _legacy
            model = run(module, tuple(inputs), specs, setting, targets)
    except Exception as error:
        raise ExportError(_explained(error, setting.exporter)) from error
    if (wrote := opset_of(model)) != setting.opset:  # dynamo only warns that it can't convert a model
        raise ExportError(f"--opset {setting.opset}: the exporter {setting.exporter} can write opset {wrote} only")
    return model


def _schema(mapping: OpMapping, ops: Mapping[tuple[str, str], Op], opset: int) -> onnx.defs.OpSchema:
    op = ops.get((mapping.domain, mapping.op_type))
    if op is not None:
        return schema.schema(op)
    if onnx.defs.has(mapping.op_type, mapping.domain):
        return onnx.defs.get_schema(mapping.op_type, opset, mapping.domain)
    raise ExportError(f"--map {mapping.source}: neither ONNX nor a library has {mapping.domain}::{mapping.op_type}")


def _dynamo(
    module: torch.nn.Module,
    inputs: tuple[torch.Tensor, ...],
    specs: Sequence[InputSpec],
    setting: ExportSetting,
    targets: Mapping[str, onnx.defs.OpSchema],
) -> onnx.ModelProto:
    table = translation_table(setting.ops)
    for source, target in targets.items():
        namespace, name = source.split("::")
        packet = getattr(getattr(torch.ops, namespace), name, None)
        if packet is None:
            raise ExportError(f"--map {source}: PyTorch has no such op in this process")
        for overload in packet.overloads():
            table[getattr(packet, overload)] = _translation(target, setting.opset)
    is_open = any(spec.open_axes() for spec in specs)
    program = torch.onnx.export(
        module,
        inputs,
        dynamo=True,
        verbose=False,
        opset_version=setting.opset,
        input_names=[spec.name for spec in specs],
        output_names=list(setting.outputs) or None,
        custom_translation_table=table,
        dynamic_shapes=_dynamic_shapes(module, specs) if is_open else None,
    )
    model: onnx.ModelProto = program.model_proto
    return model


def _dynamic_shapes(module: torch.nn.Module, specs: Sequence[InputSpec]) -> tuple[Any, ...]:
    """Returns the open axes of the inputs in the structure that torch.export wants: those of *inputs are one tuple."""
    shapes = tuple(spec.open_axes() or None for spec in specs)
    kinds = [parameter.kind for parameter in inspect.signature(module.forward).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL not in kinds:
        return shapes
    named = kinds.index(inspect.Parameter.VAR_POSITIONAL)
    return (*shapes[:named], shapes[named:])


def _translation(target: onnx.defs.OpSchema, opset: int) -> Callable[..., Any]:
    from onnxscript import values  # it brings sympy, which takes seconds

    version = opset if not target.domain else target.since_version
    node = values.Op(values.Opset(target.domain, version), target.name, target)
    count = len(target.inputs)

    def translate(*args: Any, **kwargs: Any) -> Any:
        tensors = list(args)[:count]
        if len(args) > count or any(value is not None for value in kwargs.values()):
            raise ValueError(f"{target.name} takes {count} tensors, and the call has more arguments")
        while tensors and tensors[-1] is None:
            tensors.pop()
        return node(*tensors)

    kinds = inspect.Parameter
    parameters = [kinds(tensor.name, kinds.POSITIONAL_OR_KEYWORD, default=None) for tensor in target.inputs]
    translate.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    translate.__name__ = target.name
    return translate


def _legacy(
    module: torch.nn.Module,
    inputs: tuple[torch.Tensor, ...],
    specs: Sequence[InputSpec],
    setting: ExportSetting,
    targets: Mapping[str, onnx.defs.OpSchema],
) -> onnx.ModelProto:
    register_symbolics(setting.ops)
    for source, target in targets.items():
        torch.onnx.register_custom_op_symbolic(source, _symbolic(target), setting.opset)
    buffer = io.BytesIO()
    torch.onnx.export(
        module,
        inputs,
        buffer,
        dynamo=False,
        opset_version=setting.opset,
        input_names=[spec.name for spec in specs],
        output_names=list(setting.outputs) or None,
        dynamic_axes={spec.name: spec.open_axes() for spec in specs if spec.open_axes()},
        # With it the exporter fails for a function with a `symbolic` whose forward has a loop.
        autograd_inlining=False,
    )
    return onnx.load_from_string(buffer.getvalue())


def _symbolic(target: onnx.defs.OpSchema) -> Callable[..., Any]:
    def symbolic(graph: Any, *args: Any) -> Any:
        tensors = list(args)
        while tensors and symbolic_helper._is_none(tensors[-1]):
            tensors.pop()
        if len(tensors) > len(target.inputs):
            raise ValueError(
                f"{target.name} takes {len(target.inputs)} tensors, and the call has {len(tensors)} arguments"
            )
        name = f"{target.domain}::{target.name}" if target.domain else target.name
        return graph.op(name, *tensors, outputs=len(target.outputs))

    return symbolic


def _explained(error: BaseException, exporter: str) -> str:
    """Returns what an exporter's error means and what to do. It names the op, if the error has one."""
    messages = []
    cause: BaseException | None = error
    while cause is not None:
        messages.append(str(cause))
        cause = cause.__cause__
    text = "\n".join(messages)
    found = re.search(r"OpOverload\(op='(\w+)\.(\w+)'", text) or re.search(r"operator '(\w+)::(\w+)'", text)
    found = found or re.search(r"(\w+)::(\w+), line|namespace (\w+)::(\w+)|operator (\w+)::(\w+)", text)
    unknown = re.search(
        r"No ONNX function found|No decompositions registered|not supported|unrecognized namespace", text
    )
    if found and unknown:
        namespace, name = [group for group in found.groups() if group][:2]
        other = "legacy" if exporter == "dynamo" else "dynamo"
        return (
            f"the exporter {exporter} has no ONNX operator for {namespace}::{name}: name one with --map "
            f"{namespace}::{name}=DOMAIN::OP, try --exporter {other}, or write the op with opgate and call that"
        )
    first = next((line for line in messages[-1].splitlines() if line.strip()), type(error).__name__)
    return f"the exporter {exporter} fails: {first}"
