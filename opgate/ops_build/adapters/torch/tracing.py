"""How torch.jit.trace, and with it torch.onnx.export(..., dynamo=False), records an op that has a list of strings.

Torch's tracer records every other op by itself. It refuses a list of strings: "unsupported input list type: str".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from opgate.ops_build.adapters.torch.fake import call_of
from opgate.ops_build.op_table import Op


def register_tracing(op: Op, overload: Any, library: torch.library.Library) -> None:
    """Registers how torch's tracer records an op, if torch can't do it."""
    if any(attribute.kind == "str" and attribute.list for attribute in op.attributes):
        library.impl(overload, _tracing_kernel(op, overload), "Tracer")


def _tracing_kernel(op: Op, overload: Any) -> Callable[..., Any]:
    tracer = torch._C.DispatchKeySet(torch._C._dispatch_key_parse("Tracer"))

    def kernel(*inputs: Any, **attributes: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(tracer):
            outputs = overload(*inputs, **attributes)
        graph = torch._C._get_tracing_state().graph()
        call = call_of(op, inputs, attributes)
        tensors = [_recorded(graph, tensor) for tensor in call.tensors]
        if op.inputs[-1].variadic:
            first = len(op.inputs) - 1
            tensors[first:] = [_list(graph, tensors[first:], torch._C.TensorType.get())]
        values = [_recorded(graph, call.attributes[attribute.name]) for attribute in op.attributes]
        listed = outputs if isinstance(outputs, tuple) else (outputs,)
        node = graph.create(overload._schema.name, tensors + values, len(listed))
        graph.insertNode(node)
        for output, value in zip(listed, node.outputs(), strict=True):
            value.inferTypeFrom(output)
            torch._C._set_value_trace(output, value)
        return outputs

    return kernel


def _recorded(graph: Any, argument: Any) -> Any:
    """Returns the value in the graph that stands for an argument."""
    if isinstance(argument, torch.Tensor):
        return torch._C._get_value_trace(argument)
    if not isinstance(argument, (list, tuple)):
        return graph.insertConstant(argument)
    kinds = {str: torch._C.StringType, float: torch._C.FloatType, bool: torch._C.BoolType, int: torch._C.IntType}
    kind = kinds[type(argument[0])] if argument else torch._C.StringType
    return _list(graph, [graph.insertConstant(element) for element in argument], kind.get())


def _list(graph: Any, elements: list[Any], kind: Any) -> Any:
    node = graph.insertNode(graph.create("prim::ListConstruct", elements, 1))
    node.output().setType(torch._C.ListType(kind))
    return node.output()
