"""The CUDA kernels on the CPU: every case of every op under the address and undefined-behaviour sanitizers.

ops_build/cuda_emulation/include/emulation.h says which errors this finds and which only a GPU shows.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opgate.ops_build.building.options import SOURCE
from opgate.ops_build.case import Case
from opgate.ops_build.cuda_emulation.build import rewritten
from opgate.ops_build.dtypes import numpy_types
from opgate.ops_build.op_folder import folder_of
from opgate.ops_build.runner.cases_file import CaseFailed
from opgate.ops_build.runner.engine import KernelsEngine
from opgate.ops_build.table import Op, snake_case
from opgate.ops_build.verification.comparison import difference
from opgate.ops_build.verification.verify import Cell, verify_cell
from tests import PROJECT
from tests.conftest import ALL
from tests.ops_build.emulation import build
from tests.ops_build.faults import Fault, chosen

KERNELS = sorted((SOURCE / "ops").glob("*/*.cu"))
NAMES = [kernel.stem for kernel in KERNELS]


def engine(program: Path, *arguments: str, seed: int = 0) -> KernelsEngine:
    return KernelsEngine(program, arguments, os.environ | {"EMULATION_SEED": str(seed)})


@pytest.fixture(scope="module")
def program() -> Path:
    return build()


def op_of(program: Path, name: str) -> Op:
    return next(op for op in engine(program).ops() if snake_case(op.name) == name)


def cells(program: Path, name: str, *arguments: str, seed: int, most: float = math.inf, step: int = 1) -> list[Cell]:
    """Runs every `step`-th of the cases whose inputs have at most `most` elements each."""
    running, op = engine(program, *arguments, seed=seed), op_of(program, name)
    folder = folder_of(op, [SOURCE / "ops"])
    results = []
    for types in op.type_choices():
        cases = [case for case in folder.cases(numpy_types(types)) if all(np.size(a) <= most for a in arrays_of(case))]
        results.append(verify_cell(op, types, folder, cases[::step], running))
    running.close()
    return results


def arrays_of(case: Case) -> list[Any]:
    return [array for value in case.inputs.values() for array in (value if isinstance(value, list) else [value])]


#: How the runner calls the kernels, and the order of the threads.
RUNS: list[tuple[tuple[str, ...], int]] = [((), 0), (("--unaligned", "--padded"), 7), (("--graph",), 0)]
RUNS += [(("--streams", "--exact"), 0)] + ([((), 1)] if ALL else [])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("arguments", "seed"), RUNS)
def test_every_case(program: Path, name: str, arguments: tuple[str, ...], seed: int) -> None:
    # Graphs and streams concern the calls around a kernel, so that a few small cases show what they do.
    few = bool({"--graph", "--streams"} & {*arguments}) and not ALL
    for cell in cells(program, name, *arguments, seed=seed, most=600 if few else math.inf, step=3 if few else 1):
        assert not cell.failures and not cell.skipped, f"{cell.types}: {cell.failures[:5]} {cell.skipped}"
        assert cell.passed


def test_launches_are_rewritten() -> None:
    launch = "::emulation::launch(::emulation::configuration(1, 2), [](auto... arguments) { %s(arguments...); }, a, b);"
    assert rewritten("run<<<1, 2>>>(a, b);") == launch % "run"
    assert rewritten("x::run<A<int>, 3>\n    <<<1, 2>>>(a, b);") == launch % "x::run<A<int>, 3>"
    with pytest.raises(ValueError, match=r"line 2: expected a launch .* got \(\*kernel\)<<<"):
        rewritten("\n(*kernel)<<<1, 2>>>(a, b);")


def test_optional_outputs_that_nobody_wants(program: Path) -> None:
    running = engine(program)
    for op in running.ops():
        required = [output.name for output in op.outputs if not output.optional]
        for types in op.type_choices() if len(required) < len(op.outputs) else ():
            for case in folder_of(op, [SOURCE / "ops"]).cases(numpy_types(types)):
                if case.error or max(np.size(array) for array in case.inputs.values()) > (10_000 if ALL else 600):
                    continue
                every = running.run(op, case, types)
                outputs = running.run_wanted(op, case, required).outputs
                for output, array in zip(op.outputs, outputs, strict=True):
                    assert (array is not None) == (output.name in required)
                    assert array is None or not difference(array, every[output.name], (0, 0)), case.name
    running.close()


def test_the_program_goes_on_after_a_refusal(program: Path) -> None:
    op, running = op_of(program, "my_add"), engine(program)
    one = np.ones(3, np.float32)
    with pytest.raises(CaseFailed, match="input 'b'"):
        running.run(op, Case("", {"a": one, "b": np.ones(2, np.float32)}), {"T": "f32"})
    assert running.run(op, Case("", {"a": one, "b": one}), {"T": "f32"})["y"].tolist() == [3, 3, 3]
    running.close()


def test_an_error_does_not_stick(tmp_path: Path) -> None:
    """CUDA keeps the last error, and the next good launch would report it."""
    (tmp_path / "main.cpp").write_text(
        '#include "core/cuda.h"\n'
        "#include <cstdio>\n"
        "using namespace opgate::cuda;\n"
        'void say(bool failed) { std::printf("%d%d ", failed, cudaGetLastError() != cudaSuccess); }\n'
        "int main() {\n"
        "  float host = 1;\n"
        "  auto* array = new DeviceArray<float>;\n"
        "  CUstream_st stream;\n"
        "  say(!copy(&host, &host, 4, &stream).ok());\n"
        "  say(!read(&host, &host, 4, &stream).ok());\n"
        "  { DeviceGuard guard(7); }\n"
        "  say(true);\n"
        "  emulation::captures = 1;\n"
        "  say(!array->assign(std::span<const float>(&host, 1)).ok());\n"
        "  emulation::captures = 0;\n"
        "  say(!array->assign(std::span<const float>(&host, 1)).ok());\n"
        "  emulation::captures = 1;\n"
        "  delete array;\n"
        "  say(true);\n"
        "}\n"
    )
    here, program = SOURCE / "cuda_emulation", tmp_path / "main"
    command = ["g++", "-std=c++20", "-march=x86-64-v3", "-fsanitize=address", f"-I{SOURCE}", f"-I{here / 'include'}"]
    sources = [str(tmp_path / "main.cpp"), str(here / "emulation.cpp")]
    finished = subprocess.run([*command, *sources, "-o", str(program)], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    environment = os.environ | {"ASAN_OPTIONS": "detect_leaks=0"}
    said = subprocess.run([program], env=environment, capture_output=True, text=True)
    assert said.stdout.split() == ["10", "10", "10", "10", "00", "10"], said.stderr


def test_no_kernel_waits_or_allocates() -> None:
    for kernel in [*KERNELS, *(SOURCE / "core").glob("*.cuh")]:
        calls = re.findall(r"cuda(?:Malloc|Free)\w*|cuda\w*Synchronize|cudaMemcpy\b|cudaMemset\b", kernel.read_text())
        assert not calls, f"{kernel.name}: {calls}"


FAULTS = [
    Fault("reads past the end", "rms_norm", "ops/rms_norm/rms_norm.cu", "vectors = static_cast<int>(c / lanes);",
          "vectors = static_cast<int>(c / lanes) + 1;", "heap-buffer-overflow"),
    Fault("a barrier that is missing", "rms_norm", "ops/rms_norm/rms_norm.cu", "= value;\n    __syncthreads();", "= value;",
          "elements differ"),
    Fault("a barrier that not all reach", "rms_norm", "ops/rms_norm/rms_norm.cu",
          "    __syncthreads();  // the next row writes to `partial` again", "    if (threadIdx.x) __syncthreads();", "a deadlock"),
    Fault("the host reads device memory", "rms_norm", "ops/rms_norm/rms_norm.cu", "if (whole) {",
          "if (whole && static_cast<float>(rows.x[0]) < 1e30f) {", "use-after-poison"),
    Fault("another stream", "rms_norm", "ops/rms_norm/rms_norm.cu", "launch_elements(rows, stream_of(context))",
          "launch_elements(rows, nullptr)", "default stream"),
    Fault("a chunk too few", "layer_norm_backward", "ops/layer_norm_backward/row_gradients.cuh", "chunk = 0; chunk < chunks", "chunk = 1; chunk < chunks", "elements differ"),
    Fault("a sum before all have added to it", "layer_norm", "core/rows.cuh", "= value;\n  __syncthreads();", "= value;", "elements differ"),
    Fault("a size that is never written", "voxelize", "ops/voxelize/voxelize.cu", "    *v = begun[i];\n", "", "not in 0.."),
    Fault("the last of a voxel's points for its first", "voxelize", "ops/voxelize/voxelize.cu", "begun[sorted.points[starts[voxel]]]", "begun[sorted.points[starts[voxel + 1] - 1]]", "elements differ"),
    Fault("a key that is only near", "voxel_of_point", "ops/voxel_of_point/voxel_of_point.cu", "place < v && keys[place] == key", "place < v", "elements differ"),
    Fault("one buffer for the least of every round", "detection_postprocess", "detection/greedy.cuh",
          "partial[kept % 2]", "partial[0]", "elements differ"),
    Fault("a channel that is no class", "detection_postprocess", "ops/detection_postprocess/detection_postprocess.cu",
          "label >= 0 && label < classes", "label >= 0", "elements differ"),
    Fault("a class that is never full", "multi_class_nms", "detection/greedy.cuh", "(full && same)", "(full && !same)", "elements differ"),
    Fault("boxes of all labels suppress one another", "nms_rotated", "detection/greedy.cuh", "same = same && pictures.same_group(i, anchor, index_of(other) / classes);", "same = same;", "elements differ"),
    Fault("another channel", "roi_align_rotated", "ops/roi_align_rotated/roi_align_rotated.cu", "element / bins % channels", "element / bins", "heap-buffer-overflow"),
    Fault("every crop of the first picture", "warp_affine", "ops/warp_affine/warp_affine.cu", "((picture * warp.h + py)", "((0 * warp.h + py)", "elements differ"),
    Fault("the maxima before a warp's width lost", "corner_pool", "ops/corner_pool/corner_pool.cu", "__shfl_sync(kWholeWarp, value, kWarp - 1)", "__shfl_sync(kWholeWarp, most, kWarp - 1)", "elements differ"),
    Fault("the best of half a warp", "soft_nms", "ops/soft_nms/soft_nms.cu", "int bits = kWarp / 2; bits > 0", "int bits = kWarp / 2; bits > 1", "expected shape [2, 5], got [1, 5]"),
    Fault("a byte of the next histogram", "top_k_labels", "ops/top_k_labels/top_k_labels.cu", "entry >> (shift + 8) == prefix", "entry >> shift == prefix", "index 256 out of bounds"),
    Fault("a tile that is overwritten while it is read", "log_mel_spectrogram", "ops/log_mel_spectrogram/log_mel_spectrogram.cu",
          "      __syncthreads();\n      for (int i = static_cast<int>(threadIdx.x)", "      for (int i = static_cast<int>(threadIdx.x)", "elements differ"),
    Fault("a lane too few", "knn_query", "ops/knn_query/knn_query.cu", "if (lane > position) own", "if (lane > position + 1) own", "elements differ"),
    Fault("a place too many", "ball_query", "ops/ball_query/ball_query.cu", "hits & ((1u << lane) - 1)", "hits & ((2u << lane) - 1)", "elements differ"),
    Fault("the farthest point of the first warp", "farthest_point_sample", "ops/farthest_point_sample/farthest_point_sample.cu",
          "own = farthest_of_warp(partial[threadIdx.x % kWarps]);", "own = partial[0];", "elements differ"),
    Fault("the places in another order", "three_interpolate_backward", "ops/three_interpolate_backward/three_interpolate_backward.cu", "sorted.rows[j]", "static_cast<std::uint32_t>(j)", "elements differ"),
    Fault("a barrier less between two rounds", "grid_cluster", "ops/grid_cluster/grid_cluster.cu",
          "      __syncthreads();\n    }\n", "    }\n", "elements differ"),
    Fault("a warp that is only half summed", "segment_reduce", "ops/segment_reduce/rows.cuh", "bits = lanes / 2", "bits = lanes / 4", "elements differ"),
    Fault("the rows in another order", "scatter_reduce", "ops/scatter_reduce/sorted.cuh", "{ return rows[i]; }", "{ return i; }", "elements differ"),
    Fault("the sorted positions ignored", "knn_query_backward", "ops/knn_query_backward/knn_query_backward.cu",
          "all.value(static_cast<std::int64_t>(positions[i]), axis)", "all.value(i, axis)", "elements differ"),
    Fault("the points of the next cell too", "bev_pool_v2", "core/sorted.cuh", "(key + 1)", "(key + 2)", "elements differ"),
    Fault("the samples of every level that shares a key", "multi_scale_deformable_attention_backward", "ops/multi_scale_deformable_attention_backward/multi_scale_deformable_attention_backward.cu",
          "if (number / sizes.points % sizes.levels != l) continue;", "", "elements differ"),
    Fault("filters that are overwritten while they are read", "deform_conv2d", "ops/deform_conv2d/deform_conv2d.cu", "        __syncthreads();\n      }\n    }\n", "      }\n    }\n", "elements differ"),
    Fault("samples of the neighbour", "deform_conv2d_backward", "ops/deform_conv2d_backward/deform_conv2d_backward.cu", "if (sample.x != left || sample.y != top) continue;", "", "elements differ"),
    Fault("half a warp's products", "bev_pool_v2_backward", "ops/bev_pool_v2_backward/bev_pool_v2_backward.cu", "bits = kWarp / 2", "bits = kWarp / 4", "elements differ"),
]  # fmt: skip


@pytest.fixture(scope="module")
def sources(program: Path) -> Path:
    """Copies the sources, so that the tests can write faults into the copy. The copy uses the build folder of the
    unchanged sources, so that only changed files are compiled. The next run compiles the right ones again."""
    copy = PROJECT / "build" / "cuda_emulation_faults"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.mark.parametrize("fault", chosen(FAULTS), ids=lambda fault: fault.name)
def test_a_fault_is_found(sources: Path, fault: Fault) -> None:
    with fault.written_into(sources):
        failures = [text for cell in cells(build(source=sources), fault.op, seed=7) for text in cell.failures]
    assert any(fault.says in text for text in failures), failures[:3]
