"""The names that ops have in torch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from opgate.ops_build.table import Op, snake_case


def namespace_of(domain: str) -> str:
    """Returns the namespace in torch for a domain: characters that a name can't have become _."""
    return re.sub(r"[^0-9A-Za-z]", "_", domain)


def functions_of(op: Op) -> Iterator[tuple[str, Op]]:
    """Yields the functions that torch has for an op: the name of each, and the op with the outputs that it returns.

    The first one returns all outputs but those on request. If these are not the required outputs alone, <name>_required
    returns and computes only those. If the op has outputs on request, <name>_all returns all.
    """
    usual = tuple(output for output in op.outputs if not output.on_request)
    required = tuple(output for output in op.outputs if not output.optional)
    name = snake_case(op.name)
    yield name, op if len(usual) == len(op.outputs) else replace(op, outputs=usual)
    if len(required) < len(usual):
        yield f"{name}_required", replace(op, outputs=required)
    if len(usual) < len(op.outputs):
        yield f"{name}_all", op


def overload(op: Op, name: str | None = None) -> Any:
    """Returns a registered function of an op, a torch._ops.OpOverload. Without a name it is the one that returns all
    outputs."""
    name = name or next(name for name, function in functions_of(op) if function is op)
    return getattr(getattr(torch.ops, namespace_of(op.domain)), name).default
