"""Calls the plugins from a program without TensorRT: clones, serialization, formats, shapes and errors. In `make test-all`
the address and undefined-behaviour sanitizers watch."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opgate.ops_build.building.build import Build, build
from opgate.ops_build.building.options import SOURCE, BuildOptions, out_of_tree
from opgate.ops_build.building.toolchain import find_cuda, toolchain_folder
from opgate.ops_build.case import Case
from opgate.ops_build.dtypes import numpy_types
from opgate.ops_build.onnx.nodes import node_attributes
from opgate.ops_build.op_folder import folder_of
from opgate.ops_build.op_table import Op
from tests import PROJECT
from tests.conftest import ALL, FIXTURE_OPS, silent, thorough
from tests.ops_build.test_tensorrt_adapter import DTYPES, carried, fixture_trials, on_cuda, suitable
from tests.ops_build.walking import walk_of

FLAGS = ["-std=c++20", "-Wall", "-Wextra", "-Werror", "-g"]
if ALL:
    FLAGS += [
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover",
        "-fno-sanitize=null,object-size,vptr,pointer-overflow",
    ]


def toolkit_headers() -> Path:
    toolkit = find_cuda("auto").nvcc.resolve().parent.parent / "include"
    if (toolkit / "cuda_runtime_api.h").is_file():
        return toolkit
    return Path("/usr/local/cuda/include")  # nvcc on PATH may be a script that calls the real one


@pytest.fixture(scope="module", params=[10, 11])
def headers(request: pytest.FixtureRequest, tensorrt_headers: Path) -> Path:
    """The headers of each major version: the plugins are built once, and must fit all of them."""
    for file in (tensorrt_headers / "NvInferVersion.h", *sorted(toolchain_folder().rglob("NvInferVersion.h"))):
        if re.search(rf"#define (NV_TENSORRT_MAJOR|TRT_MAJOR_ENTERPRISE) {request.param}\b", file.read_text()):
            return file.parent
    pytest.skip(f"the headers of TensorRT {request.param} are not here: deploy/test-headers.sh brings what it can")


@pytest.fixture(scope="module")
def host(built: Build, headers: Path) -> Path:
    if reason := built.left_out.get("tensorrt"):
        pytest.skip(f"tensorrt was left out: {reason}")
    program = PROJECT / "build" / "tensorrt_host"
    source = Path(__file__).parent / "tensorrt_host" / "host.cpp"
    command = [
        "g++",
        *FLAGS,
        f"-I{SOURCE}",
        "-isystem",
        str(headers),
        "-isystem",
        str(toolkit_headers()),
        str(source),
        "-o",
        str(program),
        "-rdynamic",
        "-ldl",
    ]
    finished = subprocess.run(command, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    return program


def sanitized(options: BuildOptions) -> Path:
    return build(replace(options, sanitize="address,undefined", engines=("tensorrt",)), silent).libraries["tensorrt"]


def trial(op: Op, case: Case) -> str:
    """Returns the lines that describe a node to the host program."""
    present = [i for i, tensor in enumerate(op.inputs) if case.inputs.get(tensor.name) is not None]
    lines = [f"op {op.name}", f"int opgate_inputs {' '.join(map(str, present))}"]
    for name, value in node_attributes(op, case.attributes).items():
        values = value if isinstance(value, list | tuple) else [value]
        kind = "char" if isinstance(values[0], str) else "float" if isinstance(values[0], float) else "int"
        lines.append(f"{kind} {name} {' '.join(map(str, values))}")
    for index in present:
        value = case.inputs[op.inputs[index].name]
        for array in value if op.inputs[index].variadic else [value]:
            if op.inputs[index].const:
                lines.append(f"scalar {int(np.asarray(array))}")
            else:
                lines.append(f"in {' '.join(map(str, np.asarray(array).shape))}")
    return "\n".join([*lines, "run", ""])


def answers(host: Path, library: Path, trials: list[str]) -> list[dict[str, Any]]:
    finished = subprocess.run(
        [str(host), str(library)],
        input="".join(trials),
        capture_output=True,
        text=True,
        timeout=300,
        # The CUDA runtime inside the library frees nothing when it is unloaded.
        env=os.environ | {"ASAN_OPTIONS": "detect_leaks=0:protect_shadow_gap=0"},
    )
    assert finished.returncode == 0, finished.stderr[-4000:]
    return [json.loads(line) for line in finished.stdout.splitlines()]


def expected_shapes(op: Op, case: Case) -> list[list[int]]:
    """Returns the dims of each output, then [] for each size tensor. An unknown size is its bound, negated."""
    walk = walk_of(op, case, scalars=True)
    sizes = {name: walk.bound_of(name) for name in walk.kernel_sizes}
    for name, bound in sizes.items():
        walk.set_kernel_size(name, bound)
    shapes = [walk.output_dims(output) for output in op.outputs]
    filled: list[list[int]] = []
    for output, shape in zip(op.outputs, shapes, strict=True):
        assert shape is not None
        names = [dim.get("name", dim.get("expr")) for dim in output.dims]
        open_names = [name if isinstance(name, str) and name in sizes else None for name in names]
        filled.append([-sizes[name] if name else size for name, size in zip_longest(open_names, shape)][: len(shape)])
    return [*filled, *([] for _ in sizes)]


def expected_formats(op: Op, case: Case) -> Mapping[str, list[list[str]]]:
    """Returns, for each type of the first tensor, the types that every tensor may have."""
    inputs = [t for t in op.inputs if case.inputs.get(t.name) is not None and not t.const]
    types = [t.type for t in inputs for _ in range(len(case.inputs[t.name]) if t.variadic else 1)]
    types += [output.type for output in op.outputs]
    names = {variable: [DTYPES[d] for d in dtypes if d in DTYPES] for variable, dtypes in op.type_variables.items()}
    table = {}
    for first in names.get(types[0], [DTYPES[types[0]]] if types[0] in DTYPES else []):
        chosen = {types[0]: first}
        row = []
        for name in types:
            allowed = names.get(name, [DTYPES.get(name, "")])
            row.append([chosen[name]] if name in chosen else allowed)
            if name in names:
                chosen.setdefault(name, min(allowed, key=list(ORDER).index))
        table[first] = [
            *row,
            *([["INT32"]] * len({d["name"] for o in op.outputs for d in o.dims if d["kind"] == "bounded"})),
        ]
    return table


#: TensorRT's types, in the order in which the host program tries them.
ORDER = ("FLOAT", "HALF", "INT8", "INT32", "BOOL", "UINT8", "FP8", "BF16", "INT64")


def check(op: Op, case: Case, answer: dict[str, Any]) -> None:
    where = f"{op.name} {case.name}"
    assert answer["known"] and answer["clone"] and answer["revived"], (where, answer)
    assert answer["other_formats"] == 0, where
    assert answer["errors"] == [], (where, answer["errors"])
    assert answer["shapes"] == expected_shapes(op, case), where
    sort = {first: [sorted(names) for names in row] for first, row in answer["formats"].items()}
    assert sort == {f: [sorted(names) for names in row] for f, row in expected_formats(op, case).items()}, where


@thorough("every run calls the plugins of all ops on emulated kernels")
def test_every_op(built: Build, host: Path) -> None:
    library = sanitized(BuildOptions(output=PROJECT / "build" / "sanitized_tensorrt"))
    trials: list[tuple[Op, Case]] = []
    for op in on_cuda(built.libraries["onnxruntime_cuda"]):
        folder = folder_of(op, [SOURCE / "ops"])
        for types in carried(op):
            trials += [(op, case) for case in suitable(folder.cases(numpy_types(types)))]
    results = answers(host, library, [trial(op, case) for op, case in trials])
    for (op, case), answer in zip(trials, results, strict=True):
        check(op, case, answer)


@pytest.fixture(scope="module")
def fixture_plugins(host: Path, fixture_built: Build) -> Path:
    if ALL:
        return sanitized(out_of_tree(FIXTURE_OPS, PROJECT / "build" / "sanitized_fixture_tensorrt"))
    return fixture_built.libraries["tensorrt"]


def fixture_cases(built: Build) -> Iterator[tuple[Op, Case]]:
    ops = {op.name: op for op in on_cuda(built.libraries["onnxruntime_cuda"])}
    for name, case, _ in fixture_trials():
        yield ops[name], case


def test_every_part_of_the_grammar(fixture_built: Build, host: Path, fixture_plugins: Path) -> None:
    trials = list(fixture_cases(fixture_built))
    results = answers(host, fixture_plugins, [trial(op, case) for op, case in trials])
    for (op, case), answer in zip(trials, results, strict=True):
        check(op, case, answer)


def test_a_workspace_that_can_not_be_measured_fits_no_engine(host: Path, fixture_plugins: Path) -> None:
    trials = [f"op ScaledColumns\nworkspace\nin {x}\nin 3\nrun\n" for x in ("5 3", "5")]
    right, wrong = answers(host, fixture_plugins, trials)
    assert right["workspace"] == 256 and not right["errors"]
    assert wrong["workspace"] == 2**64 - 1
    assert "fixture_ops::ScaledColumns: input 'x': expected f32[n, c]" in wrong["errors"][-1]


def test_the_workspace_of_a_spectrogram_does_not_grow_with_the_sound(host: Path, built: Build) -> None:
    """Sound of a day takes 14 GB of energies of frames that are too long for shared memory, if all are held at once."""
    plugins = built.libraries["tensorrt"]
    (answer,) = answers(host, plugins, ["op LogMelSpectrogram\nint n_fft 8192\nworkspace\nin 1 1400000000\nrun\n"])
    assert not answer["errors"]
    assert 0 < answer["workspace"] <= 64 << 20


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("op NearestSum\nchar scale much\nin 3 2", "NearestSum: attribute 'scale': expected float (1.0, not 1), got 4 values of char"),
        ("op NearestSum\nint opgate_inputs 2 0\nin 3 2", "NearestSum: opgate_inputs: expected ascending indices of inputs, got 0"),
        ("op NearestSum\nint opgate_inputs 0 9\nin 3 2", "NearestSum: opgate_inputs: expected ascending indices of inputs, got 9"),
        ("op NearestSum\nin 3", "NearestSum: input 'points': expected f32[n, d], got a tensor of shape [3]"),
        ("op NearestSum\nin 3 2\nin 3\nin 3 2\nin 3\nin 3", "NearestSum: expected at most 4 inputs, got 5"),
        ("op Tiles\nin 3 2\nin 4", "Tiles: input 'times' is read on the host: its node needs the attribute"),
    ],
)  # fmt: skip
def test_refusals_name_the_op_and_the_reason(host: Path, fixture_plugins: Path, lines: str, message: str) -> None:
    (answer,) = answers(host, fixture_plugins, [f"{lines}\nrun\n"])
    assert any(error.startswith(f"fixture_ops::{message}") for error in answer["errors"]), answer["errors"]
    assert answer.get("shapes") is None


@pytest.mark.parametrize("another", [False, True])
def test_the_library_registers_its_plugins_when_it_is_loaded(
    built: Build, headers: Path, tmp_path: Path, another: bool
) -> None:
    """ONNX Runtime's TensorRT provider loads the library and calls nothing of it."""
    if reason := built.left_out.get("tensorrt"):
        pytest.skip(f"tensorrt was left out: {reason}")
    registry, plugins = tmp_path / "libregistry.so", built.libraries["tensorrt"]
    source = Path(__file__).parent / "tensorrt_host" / "registry.cpp"
    includes = ["-isystem", str(headers), "-isystem", str(toolkit_headers())]
    command = ["g++", "-std=c++20", "-shared", "-fPIC", *includes, str(source), "-o", str(registry)]
    finished = subprocess.run(command, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    program = (
        "import ctypes, sys; registry, plugins = map(ctypes.CDLL, sys.argv[1:]); count = ctypes.c_int();"
        "plugins.getCreators.restype = ctypes.c_void_p; plugins.getCreators(ctypes.byref(count));"
        "registry.registered_names.restype = ctypes.c_char_p;"
        "print(count.value, registry.registered_names().decode())"
    )
    environment = os.environ | {"OPGATE_TENSORRT_REGISTRY": str(registry)}
    if another:
        environment["ANOTHER_VERSION"] = "1"
    finished = subprocess.run(
        [sys.executable, "-c", program, str(registry), str(plugins)], env=environment, capture_output=True, text=True
    )
    assert finished.returncode == 0, finished.stderr
    names = [op.name for op in on_cuda(built.libraries["onnxruntime_cuda"])]
    if another:
        assert finished.stdout.split() == [str(len(names))]
        assert re.search(r"is of TensorRT 2[01], and these plugins fit 10 and 11", finished.stderr)
    else:
        # TensorRT would register what getCreators returns once more.
        assert finished.stdout.split() == ["0", *names] and not finished.stderr
