"""Write a custom operator once, serve the models that use it."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opgate.ops_build.case import Case
    from opgate.ops_build.python_ops.functions import erf, gaussian, normal_cdf, select, sigmoid
    from opgate.ops_build.python_ops.python_op import InvalidArgument, op

__all__ = ["Case", "InvalidArgument", "erf", "gaussian", "normal_cdf", "op", "op_library", "select", "sigmoid"]

#: What ops in Python are written with, and where it is.
_LATER = {
    "Case": "case",
    "InvalidArgument": "python_ops.python_op",
    "op": "python_ops.python_op",
    **dict.fromkeys(["erf", "gaussian", "normal_cdf", "select", "sigmoid"], "python_ops.functions"),
}

# ONNX Runtime 1.32 for Linux sends usage data, from a thread of its own. A service sends nothing that nobody asked for,
# and a process that is forked while that thread resolves a name can resolve none. ONNX Runtime reads this when it is
# imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


def op_library(engine: str = "onnxruntime") -> Path:
    """Returns opgate's op library for an engine: "onnxruntime", "onnxruntime_cuda", "torch", "tensorrt" or
    "tensorflow".

        options = onnxruntime.SessionOptions()
        options.register_custom_ops_library(str(opgate.op_library()))

    Raises FileNotFoundError that says what to do if it was not built, ValueError for another engine, and RuntimeError
    if it doesn't work with the version of the engine that is there.
    """
    engines = ("onnxruntime", "onnxruntime_cuda", "torch", "tensorrt", "tensorflow", "litert")
    if engine not in engines:
        raise ValueError(f"expected one of {', '.join(engines)}, got '{engine}'")
    from opgate.engine_range import check_library
    from opgate.ops_build.building.options import BuildOptions

    path = BuildOptions().library(engine)
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there: run opgate build")
    check_library(path)
    return path


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'opgate' has no attribute '{name}'")
    return getattr(importlib.import_module(f"opgate.ops_build.{_LATER[name]}"), name)
