"""An op that is only a folder: the test writes it into an empty folder, builds it in another domain, and runs it in
every engine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from opgate.ops_build.building.options import BuildOptions, out_of_tree
from opgate.ops_build.op_table import read_table
from tests.conftest import ALL

#: All files that the op's author writes.
FILES = {
    "segment_max.h": r"""
#pragma once
#include <limits>

#include "kernel_toolkit/op.h"

OPGATE_OP(SegmentMax, "<T: f32|i32> SegmentMax(x: T[n,c], ends: i32[s]) -> (y: T[s,c])",
          "The greatest of each column in each segment of rows; the lowest number where a segment is empty.")

template <typename T>
constexpr T kLowest = std::numeric_limits<T>::lowest();

/// Element i of y.
template <typename T>
OPGATE_HOST_DEVICE T segment_max(const T* x, const std::int32_t* ends, std::int64_t n, std::int64_t c, std::int64_t i) {
  const std::int64_t s = i / c, begin = s ? ends[s - 1] : 0, end = ends[s];
  T most = kLowest<T>;
  for (std::int64_t row = begin < 0 ? 0 : begin; row < end && row < n; ++row) {
    if (x[row * c + i % c] > most) most = x[row * c + i % c];
  }
  return most;
}
""",
    "segment_max.cpp": r"""
#include "segment_max.h"

struct SegmentMaxCpu {
  template <typename T>
  opgate::Status operator()(opgate::Context& context, const opgate::Inputs& in, const opgate::Attributes&, opgate::Outputs& out) const {
    const T* x = in["x"].data<T>();
    context.parallel_for(out["y"].size(), 256, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        out["y"].data<T>()[i] = segment_max(x, in["ends"].data<std::int32_t>(), in.size("n"), in.size("c"), i);
    });
    return {};
  }
};
OPGATE_CPU_KERNEL(SegmentMax, SegmentMaxCpu)
""",
    "segment_max.cu": r"""
#include "kernel_toolkit/elementwise.cuh"
#include "segment_max.h"

template <typename T>
__global__ void run(const T* x, const std::int32_t* ends, T* y, std::int64_t n, std::int64_t c, std::int64_t count) {
  const std::int64_t i = blockIdx.x * std::int64_t{256} + threadIdx.x;
  if (i < count) y[i] = segment_max(x, ends, n, c, i);
}

struct SegmentMaxCuda {
  template <typename T>
  opgate::Status operator()(opgate::Context& context, const opgate::Inputs& in, const opgate::Attributes&, opgate::Outputs& out) const {
    const opgate::MutableTensor& y = out["y"];
    if (y.size() == 0) return {};
    run<<<opgate::blocks_for(y.size(), 256), 256, 0, opgate::stream_of(context)>>>(
        in["x"].data<T>(), in["ends"].data<std::int32_t>(), y.data<T>(), in.size("n"), in.size("c"), y.size());
    return opgate::launched();
  }
};
OPGATE_CUDA_KERNEL(SegmentMax, SegmentMaxCuda)
""",
    "reference.py": r"""
import numpy as np


def reference(x, ends):
    lowest = np.finfo(x.dtype).min if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    return np.stack([np.max(rows, axis=0, initial=lowest) for rows in np.split(x, ends)[:-1]]).astype(x.dtype)
""",
    "cases.py": r"""
import numpy as np

from opgate.ops_build.case import Case


def cases(types):
    x = (np.random.default_rng(1).standard_normal((9, 5)) * 100).astype(types["T"])
    yield Case("three segments, one empty", {"x": x, "ends": np.array([4, 4, 9], np.int32)})
    yield Case("ends of another rank", {"x": x, "ends": np.array([[9]], np.int32)}, error="input 'ends'")
""",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("segments")
    (folder / "segment_max").mkdir()
    for name, text in FILES.items():
        (folder / "segment_max" / name).write_text(text.lstrip())
    finished = opgate("build", str(folder), "--domain", "segments")
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return folder


@pytest.fixture(scope="module")
def options(folder: Path) -> BuildOptions:
    return out_of_tree(folder, domain="segments")


def opgate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "opgate", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def test_it_is_short() -> None:
    lines = [line for text in FILES.values() for line in text.splitlines() if line.strip()]
    assert len(lines) < 60


def test_onnxruntime_and_torch_agree_with_the_reference(folder: Path) -> None:
    finished = opgate("verify", "--folder", str(folder), "--domain", "segments")
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert " 0 failed" in finished.stdout


def test_torch_compiles_it(options: BuildOptions) -> None:
    torch = pytest.importorskip("torch")
    from opgate.ops_build.adapters.torch.registration import load

    load(options.library("torch"))

    def doubled(x, ends):
        return torch.ops.segments.segment_max(x * 2, ends) + 1

    compiled = torch.compile(doubled, fullgraph=True, dynamic=True)
    for rows in (9, 12):
        x = torch.randn(rows, 5)
        ends = torch.tensor([4, rows], dtype=torch.int32)
        torch.testing.assert_close(compiled(x, ends), doubled(x, ends))
        torch.testing.assert_close(compiled(x, ends)[0], (x[:4] * 2).amax(0) + 1)


def test_tensorrt_accepts_it(options: BuildOptions, tmp_path: Path) -> None:
    from tests.ops_build import tensorrt_rtx
    from tests.ops_build.test_tensorrt_adapter import check_all

    if not options.library("tensorrt").is_file():
        pytest.skip("the build left out tensorrt")
    if reason := tensorrt_rtx.missing():
        pytest.skip(reason)
    ops = read_table(options.library("onnxruntime_cuda"))
    assert check_all(options.library("tensorrt"), ops, options.ops[0], tmp_path) == 3 + ALL


def test_it_runs_beside_opgates_own_ops(options: BuildOptions, library: Path) -> None:
    import onnx
    import onnxruntime as ort
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("SegmentMax", ["x", "ends"], ["m"], domain="segments"),
        helper.make_node("LeakyRelu", ["m"], ["y"], domain="opgate", alpha=0.5),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 5]),
        helper.make_tensor_value_info("ends", TensorProto.INT32, ["s"]),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["s", 5])]
    opsets = [helper.make_opsetid(domain, version) for domain, version in (("", 18), ("segments", 1), ("opgate", 1))]
    graph = helper.make_graph(nodes, "both", inputs, outputs)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    onnx.checker.check_model(model)
    session_options = ort.SessionOptions()
    for path in (library, options.library()):
        session_options.register_custom_ops_library(str(path))
    session = ort.InferenceSession(model.SerializeToString(), session_options, providers=["CPUExecutionProvider"])
    x = np.random.default_rng(2).standard_normal((4, 5)).astype(np.float32) - 2
    (y,) = session.run(None, {"x": x, "ends": np.array([1, 4], np.int32)})
    most = np.stack([x[0], x[1:].max(axis=0)])
    np.testing.assert_allclose(y, np.where(most < 0, most * 0.5, most), rtol=1e-6)
