"""Chooses ops and cases for builds and engines on which `make test` doesn't run all of them."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from opgate.ops_build.building.options import SOURCE
from opgate.ops_build.case import Case
from opgate.ops_build.dtypes import numpy_types
from opgate.ops_build.engines.engine import Engine
from opgate.ops_build.op_folder import folder_of
from opgate.ops_build.op_table import Op
from opgate.ops_build.verification.verify import References, try_case

#: The most cases of an op with its first choice of dtypes, and with each other choice.
MOST, MOST_OF_OTHERS = 8, 2


def chosen_cases(
    ops: Iterable[Op], folder: Path, *, everything: bool
) -> Iterator[tuple[Op, dict[str, str], list[Case]]]:
    """Yields cases of each op and choice of dtypes: with `everything` all, and otherwise a few from all over the list."""
    for op in ops:
        for index, types in enumerate(op.type_choices()):
            cases = folder_of(op, [folder]).cases(numpy_types(types))
            most = MOST_OF_OTHERS if index else MOST
            yield op, types, cases if everything else cases[:: -(-len(cases) // most)]


def folder_of_ops(folder: Path, names: Iterable[str]) -> Path:
    """Makes a folder of links to these ops of opgate, to build them alone. Returns it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).symlink_to(SOURCE / "ops" / name)
    return folder


def failures_on(engine: Engine, ops: Iterable[Op], folder: Path, *, everything: bool) -> tuple[list[str], int]:
    """Runs three cases of each op and choice of dtypes that an engine doesn't refuse, or all with `everything`. Returns
    what failed, and how many ran."""
    failures, tried = [], 0
    for op, types, cases in chosen_cases(ops, folder, everything=everything):
        if engine.refusal(op, types):
            continue
        references = References(op, folder_of(op, [folder]))
        for case in cases if everything else cases[:3]:
            failure = try_case(op, references, case, types, engine)
            failures += [f"{op.name} {types} {case.name}: {failure}"] if failure else []
            tried += 1
    return failures, tried
