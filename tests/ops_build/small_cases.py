"""A program that runs a few small cases of each op of a library in ONNX Runtime, in this process.

    python -m tests.ops_build.small_cases LIBRARY

Prints the instruction set that the library has chosen, each failure, and the number of cases that passed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from opgate.ops_build.adapters.onnxruntime.engine import OnnxRuntimeEngine
from opgate.ops_build.building.options import SOURCE
from opgate.ops_build.case import Case
from opgate.ops_build.dtypes import numpy_types
from opgate.ops_build.op_folder import folder_of
from opgate.ops_build.op_table import cpu_level, read_table
from opgate.ops_build.verification.verify import References, try_case

#: The most elements of an input, and the most cases of an op with one choice of dtypes.
MOST_ELEMENTS, MOST_CASES = 300, 4


def small(case: Case) -> bool:
    sizes = [
        np.size(array) for value in case.inputs.values() for array in (value if isinstance(value, list) else [value])
    ]
    return case.error is None and max(sizes, default=0) <= MOST_ELEMENTS


def main(library: Path) -> None:
    print(cpu_level(library))
    engine = OnnxRuntimeEngine(library)
    passed = 0
    for op in read_table(library):
        folder = folder_of(op, [SOURCE / "ops"])
        references = References(op, folder)
        for types in op.type_choices():
            for case in [case for case in folder.cases(numpy_types(types)) if small(case)][:MOST_CASES]:
                failure = try_case(op, references, case, types, engine)
                if failure:
                    print(f"{op.name} {types} {case.name}: {failure}")
                passed += failure is None
    print(f"{passed} passed")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
