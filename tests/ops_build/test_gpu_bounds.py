"""What `python -m opgate.ops_build.gpu_check.bounds` counts and bounds, without a GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import opgate.numpy
from opgate.ops_build.building.toolchain import LeftOut, find_cuda
from opgate.ops_build.case import Case
from opgate.ops_build.gpu_check import bounds
from opgate.ops_build.gpu_check.bounds import GPUS, Gpu, bound_of, kernel_table, kernels_of, measured_times

SOURCE = """
namespace opgate::ops::known {
namespace {
struct alignas(16) Four { float values[4]; };
template <int lanes>
__global__ void __launch_bounds__(64) widest(const Four* from, float* to, int count) {
  __shared__ float held[100];
  const Four four = from[threadIdx.x];
  held[threadIdx.x] = four.values[0] + four.values[1] + four.values[2] + four.values[3];
  __syncthreads();
  float sum = 0;
#pragma unroll 1
  for (int i = 0; i < count; ++i) sum = sum * held[i % 100] + 1;
  to[threadIdx.x] = sum * lanes;
}
__global__ void slow(const double* from, double* to, long divisor) {
  const long i = blockIdx.x * 64l + threadIdx.x;
  to[i / divisor] = from[i] * from[i + 1] + 2;
}
}  // namespace
void launch(const Four* from, float* to, const double* doubles, double* results) {
  widest<3><<<1, 64>>>(from, to, 7);
  slow<<<1, 64>>>(doubles, results, 7);
}
}  // namespace opgate::ops::known
"""


def test_what_kernels_are_made_of(tmp_path: Path) -> None:
    try:
        nvcc = find_cuda("90").nvcc
    except LeftOut as error:
        pytest.skip(f"nvcc is not installed: {error}")
    folder = tmp_path / "ops" / "known"
    folder.mkdir(parents=True)
    (folder / "known.cu").write_text(SOURCE)
    kernels = {kernel.name.partition("<")[0]: kernel for kernel in kernels_of(tmp_path, "known", nvcc, tmp_path)}
    widest, slow = kernels["widest"], kernels["slow"]
    assert widest.name == "widest<3>"
    assert widest.loads == {16: 1} and widest.shared == 400 and widest.doubles == widest.calls == 0
    assert 3 < widest.loop < widest.instructions and 0 < widest.registers <= 64
    assert slow.loads == {8: 2} and slow.doubles >= 1 and slow.calls >= 1 and slow.loop == 0
    assert widest.spilled == slow.spilled == widest.tensor == 0

    lines = list(kernel_table({"known": [widest, slow]}, {"known": [widest]}))
    assert f"| {widest.instructions} |" in lines[2] or f"| {widest.instructions} |" in lines[3]
    assert any(f"none → {slow.instructions}" in line for line in lines)


def test_the_bound_of_a_case_is_that_of_memory_or_arithmetic(library: Path) -> None:
    gpu = Gpu("one", bandwidth=1e9, f32=1e9, f16=1e12)
    ops = {op.name: op for op in opgate.numpy.ops(library)}
    case = Case("small", {"x": np.ones(1000, np.float32)})
    assert bounds.moved(opgate.numpy.load(library), ops["Mish"], case) == 8000
    assert bound_of(ops["Mish"], {"T": "f32"}, case, 8000, gpu) == pytest.approx(8e-3)
    image, weight = np.ones((1, 4, 8, 8), np.float32), np.ones((5, 4, 3, 3), np.float32)
    case = Case("filters", {"input": image, "weight": weight, "offset": np.zeros((1, 18, 6, 6), np.float32)})
    work = 2 * 5 * 4 * 9 * 36
    assert bound_of(ops["DeformConv2d"], {"T": "f32"}, case, 8, gpu) == pytest.approx(work / 1e9 * 1e3)
    assert bound_of(ops["DeformConv2d"], {"T": "f16"}, case, 8, gpu) == pytest.approx(work / 1e12 * 1e3)
    assert all(one.f16 > one.f32 > one.bandwidth for one in GPUS)


def test_times_of_a_page(tmp_path: Path) -> None:
    page = tmp_path / "gpu.md"
    page.write_text(
        "| Mish | f16 | 9/9 |  |\n"
        "| op | dtypes | case | ms | GB/s | share | peers |\n"
        "| Mish | f16 | 16 Mi | 0.0204 | 3,285 | 79% | F.mish 0.032 ms (1.58) |\n"
        "| BallQuery | f32 i32 | 16,384 x 4,096 | 0.2393 | 3 | 0% | cdist and topk 1.456 ms (6.09) |\n"
    )
    assert measured_times(page) == {("Mish", "f16"): 0.0204, ("BallQuery", "f32 i32"): 0.2393}
