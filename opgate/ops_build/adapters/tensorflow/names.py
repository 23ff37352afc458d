"""The names that ops have in TensorFlow, and in models for LiteRT that are made from TensorFlow's."""

from __future__ import annotations

from opgate.ops_build.op_table import Op


def type_of(op: Op) -> str:
    """Returns an op's name in TensorFlow: MyOps>MyOp. The first part is the domain in CamelCase, as names.cpp
    writes it."""
    words = "".join(c if c.isascii() and c.isalnum() else " " for c in op.domain).split()
    prefix = "".join(word[0].upper() + word[1:] for word in words)
    return f"{'' if prefix[:1].isupper() else 'Ops'}{prefix}>{op.name}"
