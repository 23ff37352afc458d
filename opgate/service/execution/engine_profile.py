"""What ONNX Runtime's profiler tells of one run: each operator with its time."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from opgate.service.core.errors import Kind, ServingError

_KERNEL = "_kernel_time"
#: Bytes of a profile that a process reads beside other work: it takes a tenth of a second, in which the other threads
#: wait. That is some 5,000 calls.
MOST_BYTES = 4 << 20
# The names of types in the profile, and those in signatures.
_DTYPES = {
    "float16": "f16", "bfloat16": "bf16", "float": "f32", "double": "f64", "int8": "i8", "uint8": "u8", "int16": "i16",
    "uint16": "u16", "int32": "i32", "uint32": "u32", "int64": "i64", "uint64": "u64", "string": "str",
}  # fmt: skip

#: The domains of the nodes of a session, by their names and op types.
Domains = Mapping[tuple[str, str], str]


class Operator(NamedTuple):
    """One call of an operator. `begin_us` counts from the begin of the run. A tensor is "f32[2,3]".

    `domain` is empty for the operators of ONNX, and None for nodes that ONNX Runtime has added. The time of a node with
    a graph of its own, such as Loop, has the times of the nodes in it. On a GPU the time is that of the launch.
    """

    name: str
    op: str
    domain: str | None
    provider: str
    begin_us: int
    duration_us: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def domains_of(session: Any) -> Domains:
    """Returns the domains of the nodes of an InferenceSession that records them."""
    parts = session.get_provider_graph_assignment_info()
    return {(node.name, node.op_type): node.domain for part in parts for node in part.get_nodes()}


def read_profile(path: Path, domains: Domains, most_bytes: int | None = None) -> list[list[Operator]]:
    """Returns the operators of each run in a profile, in the order in which they began. No two runs overlap.

    Raises ServingError (UNSUPPORTED) if the file has more than `most_bytes`.
    """
    if most_bytes is not None and (size := path.stat().st_size) > most_bytes:
        text = f"the profile of the run has {size} bytes, the limit is {most_bytes}: the run calls too many operators"
        raise ServingError(Kind.UNSUPPORTED, text)
    events = sorted(json.loads(path.read_bytes()), key=lambda event: int(event["ts"]))
    begins = [event["ts"] for event in events if event["name"] == "model_run"]
    runs: list[list[Operator]] = [[] for _ in begins]
    for event in events:
        run = bisect_right(begins, event["ts"]) - 1
        if run >= 0 and event["cat"] == "Node" and event["name"].endswith(_KERNEL):
            runs[run].append(_operator(event, begins[run], domains))
    return runs


def _operator(event: Mapping[str, Any], begin: int, domains: Domains) -> Operator:
    arguments = event["args"]
    name, op = event["name"].removesuffix(_KERNEL), arguments["op_name"]
    return Operator(
        name=name,
        op=op,
        domain=domains.get((name, op), domains.get(("", op))),  # a node without a name gets one in the profile
        provider=arguments.get("provider", ""),
        begin_us=event["ts"] - begin,
        duration_us=event["dur"],
        inputs=_types(arguments.get("input_type_shape", ())),
        outputs=_types(arguments.get("output_type_shape", ())),
    )


def _types(tensors: Sequence[Mapping[str, Sequence[int]]]) -> tuple[str, ...]:
    types = [(dtype, dims) for tensor in tensors for dtype, dims in tensor.items()]
    return tuple(f"{_DTYPES.get(dtype, dtype)}[{','.join(map(str, dims))}]" for dtype, dims in types)


def read_operators(rows: Sequence[Sequence[Any]]) -> list[Operator]:
    """Returns operators from lists of their fields. Raises ValueError, TypeError and OverflowError."""
    return [
        Operator(
            str(name),
            str(op),
            None if domain is None else str(domain),
            str(provider),
            int(begin),
            int(duration),
            tuple(map(str, inputs)),
            tuple(map(str, outputs)),
        )
        for name, op, domain, provider, begin, duration, inputs, outputs in rows
    ]
