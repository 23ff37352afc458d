"""The items that a stage goes through: every op with each of its choices of dtypes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from opgate.ops_build.building.options import SOURCE
from opgate.ops_build.case import Case
from opgate.ops_build.dtypes import numpy_types
from opgate.ops_build.op_folder import folder_of
from opgate.ops_build.op_table import Op

#: An op, and its choice of dtypes by type variable.
Item = tuple[Op, Mapping[str, str]]
#: Returns the large case of an item, or None if there is none.
Large = Callable[[Op, Mapping[str, str]], Case | None]


def items_of(ops: Sequence[Op]) -> list[Item]:
    """Returns every op with each of its choices of dtypes."""
    return [(op, types) for op in ops for types in op.type_choices()]


def large_case(op: Op, types: Mapping[str, str]) -> Case | None:
    """Returns the large case of an op of this project, or None if it has none."""
    return folder_of(op, [SOURCE / "ops"]).large(numpy_types(types))


def measured(items: Sequence[Item]) -> list[Item]:
    """Returns the items whose speed is measured: not f64 where an op has a narrower type, and one type of indices."""
    rows: dict[tuple[str, str], Item] = {}
    for op, types in items:
        value = types.get("T", "")
        if value != "f64" or len({choice.get("T") for choice in op.type_choices()}) == 1:
            rows.setdefault((op.name, value), (op, types))
    return list(rows.values())
