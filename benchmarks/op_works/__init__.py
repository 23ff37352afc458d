"""What `benchmarks/ops.py` measures: for each op three sizes, and what a user would call instead.

A module has a function `works()` for a group of ops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Call = Callable[[], object]
#: What a peer gets: the inputs of a work by name, as arrays or as tensors of torch.
Inputs = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Peer:
    """What a user would call instead of an op.

    `engine` says what runs it: "torch" and "onnxruntime" are compared with the op in that engine, "library" with the op
    in ONNX Runtime. `make` gets the inputs and returns the call. `package` is the distribution whose version is
    printed.
    """

    name: str
    engine: str
    package: str
    make: Callable[[Inputs], Call]


@dataclass(frozen=True, slots=True)
class Work:
    """An op on one set of inputs, its peers, and what bounds it.

    `types` are the dtypes of the type variables. `flops` is the number of multiplications and additions if arithmetic
    bounds the op. Without it memory does: the op moves `moved` bytes, by default each input and output once. 0 stands
    for neither. `decomposed` is False where the decomposition would need more memory than a machine has. With
    `required_only` nobody wants the optional outputs, because the peers don't compute them.
    """

    op: str
    size: str
    inputs: Mapping[str, Array]
    peers: tuple[Peer, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)
    flops: float | None = None
    moved: int | None = None
    decomposed: bool = True
    required_only: bool = False


def torch_peer(name: str, function: Callable[..., object], *names: str, compiled: bool = False) -> Peer:
    """Returns a peer that calls `function` with the named inputs as tensors."""

    def make(inputs: Inputs) -> Call:
        import torch

        call = torch.compile(function, dynamic=False) if compiled else function
        tensors = [inputs[one] for one in names]
        return lambda: call(*tensors)

    return Peer(f"torch.compile of {name}" if compiled else name, "torch", "torch", make)


def library_peer(name: str, package: str, function: Callable[[Inputs], Call]) -> Peer:
    """Returns a peer whose call `function` makes from the inputs as arrays."""
    return Peer(name, "library", package, function)


def onnx_peer(
    op_type: str, *names: str, domain: str = "", opset: int = 18, outputs: int = 1, **attributes: Any
) -> Peer:
    """Returns a peer that runs one operator of ONNX Runtime on the named inputs. "" is an absent input."""

    def make(inputs: Inputs) -> Call:
        from onnx import helper

        node = helper.make_node(op_type, [*names], [f"y{i}" for i in range(outputs)], domain=domain, **attributes)
        return onnx_call([node], {name: inputs[name] for name in names if name}, domain, opset, outputs)

    return Peer(f"ONNX Runtime's {op_type}", "onnxruntime", "onnxruntime", make)


def onnx_call(nodes: list[Any], feeds: Mapping[str, Array], domain: str, opset: int, outputs: int) -> Call:
    """Returns a call of a graph of standard operators, on one thread."""
    import onnxruntime as ort
    from onnx import helper

    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in feeds.items()
    ]
    results = [helper.make_empty_tensor_value_info(f"y{i}") for i in range(outputs)]
    opsets = [helper.make_opsetid("", opset), *([helper.make_opsetid(domain, 1)] if domain else [])]
    model = helper.make_model(helper.make_graph(nodes, "peer", values, results), opset_imports=opsets, ir_version=10)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, dict(feeds))
