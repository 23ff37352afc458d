"""The names that ops have in torch."""

from __future__ import annotations

import re
from typing import Any

import torch

from opgate.ops_build.op_functions import functions_of
from opgate.ops_build.op_table import Op


def namespace_of(domain: str) -> str:
    """Returns the namespace in torch for a domain: characters that a name can't have become _."""
    return re.sub(r"[^0-9A-Za-z]", "_", domain)


def overload(op: Op, name: str | None = None) -> Any:
    """Returns a registered function of an op, a torch._ops.OpOverload. Without a name it is the one that returns all
    outputs."""
    name = name or next(name for name, function in functions_of(op) if function is op)
    return getattr(getattr(torch.ops, namespace_of(op.domain)), name).default
