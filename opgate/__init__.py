"""Write a custom operator once, serve the models that use it."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["op_library"]

# ONNX Runtime 1.32 for Linux sends usage data, from a thread of its own. A service sends nothing that nobody asked for,
# and a process that is forked while that thread resolves a name can resolve none. ONNX Runtime reads this when it is
# imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


def op_library(engine: str = "onnxruntime") -> Path:
    """Returns opgate's op library for an engine: "onnxruntime", "onnxruntime_cuda", "torch", "tensorrt" or
    "tensorflow".

        options = onnxruntime.SessionOptions()
        options.register_custom_ops_library(str(opgate.op_library()))

    Raises FileNotFoundError that says what to do if it was not built, ValueError for another engine.
    """
    engines = ("onnxruntime", "onnxruntime_cuda", "torch", "tensorrt", "tensorflow", "litert")
    if engine not in engines:
        raise ValueError(f"expected one of {', '.join(engines)}, got '{engine}'")
    from opgate.ops_build.building.options import BuildOptions

    path = BuildOptions().library(engine)
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there: run opgate build")
    return path
