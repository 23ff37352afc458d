"""Calls ops with attributes, dims and values that ask for much memory or time, in this process, under limits.

    python -m tests.ops_build.hostile_calls <library> <MiB> <seconds> [all]

Prints what each call is before it runs, so that the last line names the one that ends the process. A line that begins
with "wrong" is a call that failed without saying why.
"""

from __future__ import annotations

import itertools
import math
import re
import resource
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from opgate.ops_build.adapters.numpy.functions import function
from opgate.ops_build.adapters.numpy.library import THREADS, load
from opgate.ops_build.building.options import SOURCE
from opgate.ops_build.case import Array, Case
from opgate.ops_build.dtypes import numpy_types
from opgate.ops_build.op_folder import folder_of
from opgate.ops_build.op_table import Attribute, Expr, Op
from opgate.ops_build.signature_walk import DIVISIONS, OPERATIONS
from opgate.ops_build.text import samples

INTEGERS = (-(2**63), -1, 0, 2**31 - 1, 2**31, 2**62, 2**63 - 1)
FLOATS = (-math.inf, -3e38, -1.0, 0.0, 1e-45, 3e38, math.inf, math.nan)
SIZES = (2**20, 2**31 - 1, 2**31, 2**40, 2**60)
#: The most elements of the inputs of a case whose attributes and dims are replaced.
MOST_ELEMENTS = 3000


def hostile_values(attribute: Attribute) -> list[Any]:
    values: Mapping[str, list[Any]] = {
        "int": [*INTEGERS],
        "float": [*FLOATS],
        "bool": [False, True],
        "choice": [*attribute.choices, "", "x" * 10_000],
        "str": ["", "x" * 10_000],
    }
    if not attribute.list:
        return values[attribute.kind]
    lists = [[value] * (attribute.length or 1) for value in values[attribute.kind]]
    return [*lists, [], [values[attribute.kind][-1]] * 1000]


def with_attributes(op: Op, case: Case) -> Iterator[Case]:
    """Replaces each attribute, and each two integers."""
    for attribute in op.attributes:
        for value in hostile_values(attribute):
            text = f"{attribute.name}={str(value)[:40]}"
            yield replace(case, name=f"{case.name}, {text}", attributes={**case.attributes, attribute.name: value})
    integers = [attribute.name for attribute in op.attributes if attribute.kind == "int" and not attribute.list]
    for pair in itertools.combinations(integers, 2):
        for value in (2**16, 2**31 - 1):
            attributes = {**case.attributes, **dict.fromkeys(pair, value)}
            yield replace(case, name=f"{case.name}, {'='.join(pair)}={value}", attributes=attributes)


def evaluate(expr: Expr, sizes: Mapping[str, int]) -> int:
    if not isinstance(expr, list):
        return sizes[expr] if isinstance(expr, str) else expr
    a, b = evaluate(expr[1], sizes), evaluate(expr[2], sizes)
    return 0 if b == 0 and expr[0] in DIVISIONS else OPERATIONS[expr[0]](a, b)


def sizes_of(op: Op, case: Case) -> dict[str, int]:
    """Returns the named sizes of a case without variadic inputs."""
    sizes = {a.name: case.attributes.get(a.name, a.default) for a in op.attributes if a.kind == "int" and not a.list}
    for tensor in op.inputs:
        if (array := case.inputs.get(tensor.name)) is None:
            continue
        loose = [i for i, dim in enumerate(tensor.dims) if dim["kind"] in ("ellipsis", "any")]
        for i, dim in enumerate(tensor.dims):
            if dim["kind"] == "name":
                sizes[dim["name"]] = np.shape(array)[i if not loose or i < loose[0] else i - len(tensor.dims)]
    return sizes


def with_dims(op: Op, case: Case, everything: bool) -> Iterator[Case]:
    """Makes one size 0, so that the others may be huge without memory for the inputs."""
    if any(tensor.variadic for tensor in op.inputs):
        return
    sizes = sizes_of(op, case)
    names = sorted({dim["name"] for tensor in op.inputs for dim in tensor.dims if dim["kind"] == "name"} & set(sizes))
    for empty in [*names, "..."]:
        others = [name for name in names if name != empty]
        chosen = [*itertools.combinations(others, 1), *(itertools.combinations(others, 2) if everything else ())]
        for many, size in itertools.product(chosen, SIZES if everything else (2**31, 2**60)):
            inputs = tensors(op, case, {**sizes, empty: 0, **dict.fromkeys(many, size)}, 0 if empty == "..." else 2)
            if inputs is not None:
                yield replace(case, name=f"{case.name}, {empty}=0, {'='.join(many)}={size}", inputs=inputs)


def tensors(op: Op, case: Case, sizes: Mapping[str, int], loose: int) -> dict[str, Array] | None:
    """Returns inputs of zeros, or None if they take memory or NumPy has none of these dims."""
    inputs: dict[str, Array] = {}
    for tensor in op.inputs:
        if (array := case.inputs.get(tensor.name)) is None:
            continue
        inputs[tensor.name] = np.asarray(array)
        if not tensor.dims or tensor.const:
            continue
        shape = [
            loose if dim["kind"] in ("ellipsis", "any") else evaluate(dim.get("expr", dim.get("name")), sizes)
            for dim in tensor.dims
        ]
        if 0 not in shape and math.prod(shape) > 1 << 20:
            return None
        try:
            inputs[tensor.name] = np.zeros(shape, inputs[tensor.name].dtype)
        except ValueError:
            return None
    return inputs


def colliding_voxels(count: int) -> Array:
    """Returns voxels (x, y, z) that all lie in the same place of a table which multiplies their coordinates, 21 bits
    each, by a number that everybody knows, as VoxelOfPoint's did."""
    inverse, mask = pow(0x9E3779B97F4A7C15, -1, 1 << 64), (1 << 64) - 1
    found = []
    for k in range(1, 4 * count):
        key = k * inverse & mask
        key ^= key >> 32
        if key < 1 << 63:
            found.append([(key >> 21 * axis & (1 << 21) - 1) - (1 << 20) for axis in range(3)])
    return np.array(found[:count], np.int32)


def of_clients() -> Iterator[tuple[str, Case]]:
    """Yields names of ops, and values that a client may send to them."""
    f32, voxels = np.float32, colliding_voxels(200_000)
    region = np.array([[0, 4, 4, 1e9, 1e9, 0.3]], f32)
    picture = {"input": np.ones((1, 1, 8, 8), f32), "rois": region}
    sides = {"output_height": 7, "output_width": 7, "sampling_ratio": 0}
    yield "RoiAlignRotated", Case("a region of 10^9 pixels", picture, sides)
    points = (voxels[:1000] + 0.5).astype(f32)
    yield (
        "VoxelOfPoint",
        Case("voxels in one place of a table", {"points": points, "coords": voxels, "size": np.ones(3, f32)}),
    )
    cloud = np.random.default_rng(0).random((300_000, 3), f32)
    radii = {"min_radius": 2.0, "max_radius": 3.0, "nsample": 16}
    offset = np.array([len(cloud)], np.int32)
    yield "BallQuery", Case("no point is far enough", {"xyz": cloud, "offset": offset}, radii)


def of_no_elements() -> Iterator[tuple[str, Case]]:
    """Yields names of ops, and inputs without elements that once took minutes or gigabytes."""

    def empty(*dims: int) -> Array:
        return np.empty(dims, np.float32)

    many, most = 2**20, 2**40
    indices = np.empty((most, 0), np.int32)
    nothing = {"features": empty(0, 0), "idx": indices, "weight": empty(most, 0)}
    yield "ThreeInterpolate", Case("no channels", nothing)
    yield "ThreeInterpolateBackward", Case("no neighbours", {"grad_y": empty(most, 0), **nothing})
    no_channels = {"features": empty(most, 0), "idx": indices[:0], "weight": empty(0, 0)}
    yield "ThreeInterpolateBackward", Case("no channels", {"grad_y": empty(0, 0), **no_channels})
    no_levels = {
        "grad_output": empty(1, most, 0),
        "value": empty(1, 0, 1, 0),
        "spatial_shapes": np.empty((0, 2), np.int32),
        "level_start_index": np.empty(0, np.int32),
        "sampling_locations": empty(1, most, 1, 0, 1, 2),
        "attention_weights": empty(1, most, 1, 0, 1),
    }
    yield "MultiScaleDeformableAttentionBackward", Case("no levels", no_levels)
    no_filters = {
        "grad_output": empty(1, 0, 1, 1),
        "input": np.ones((1, many, 1, 1), np.float32),
        "weight": empty(0, many, 1, 1),
        "offset": np.zeros((1, 2, 1, 1), np.float32),
    }
    yield "DeformConv2dBackward", Case("no filters", no_filters)


def calls(ops: Iterable[Op], everything: bool) -> Iterator[tuple[Op, Case]]:
    known = {op.name: op for op in ops}
    for name, case in itertools.chain(of_clients(), of_no_elements()):
        yield known[name], case
    for op in known.values():
        for types in itertools.islice(op.type_choices(), 2 if everything else 1):
            cases = [case for case in folder_of(op, [SOURCE / "ops"]).cases(numpy_types(types)) if not case.error]
            small = [case for case in cases if 0 < sum(map(np.size, case.inputs.values())) <= MOST_ELEMENTS]
            for case in [small[0], small[len(small) // 2]] if everything else small[len(small) // 2 :][:1]:
                for hostile in itertools.chain(with_attributes(op, case), with_dims(op, case, everything)):
                    yield op, hostile


def failure_of(library: Any, op: Op, case: Case) -> str | None:
    """Returns how a call failed, unless it worked or its error names the op and what is wrong with it."""
    try:
        function(library, op, op.name, op)(**case.inputs, **case.attributes)
    except (TypeError, ValueError, RuntimeError, MemoryError) as error:
        text = str(error)
        if re.match(rf"opgate::{op.name}\b.*'\w+'", text, re.DOTALL) and len(text) < 1000:
            return None
        return f"{type(error).__name__}: {text[:200]}"
    return None


def main(path: str, mebibytes: str, seconds: str, *everything: str) -> None:
    warnings.simplefilter("ignore")  # of NumPy, about floats beyond f32
    library = load(Path(path))
    THREADS.count = 1
    made = calls(library.ops, bool(everything))
    first = next(made)  # loads what the cases import
    samples.tokenizers()  # trains those of the cases, in threads that keep memory of their own
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (int(mebibytes) << 20),) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds),) * 2)
    for op, case in itertools.chain([first], made):
        print(op.name, case.name, flush=True)
        if failure := failure_of(library, op, case):
            print(f"wrong: {op.name}, {case.name}: {failure}", flush=True)
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
