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

    The first one returns all outputs. An op with optional outputs has a second one, <name>_required, which returns
    and computes only the others.
    """
    yield snake_case(op.name), op
    required = tuple(output for output in op.outputs if not output.optional)
    if len(required) < len(op.outputs):
        yield f"{snake_case(op.name)}_required", replace(op, outputs=required)


def overload(op: Op, name: str | None = None) -> Any:
    """Returns a registered function of an op, a torch._ops.OpOverload. Without a name it is the one that returns all
    outputs."""
    return getattr(getattr(torch.ops, namespace_of(op.domain)), name or snake_case(op.name)).default
