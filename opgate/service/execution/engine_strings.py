"""Puts strings with any bytes into ONNX Runtime and gets them out. Its Python API takes and gives UTF-8 text only."""

from __future__ import annotations

import logging
import math
from functools import cache
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import NodeProto, TensorProto, ValueInfoProto, helper

from opgate.service.core.request import Array
from opgate.service.execution.arena import small_session
from opgate.service.native import engine_strings as native

logger = logging.getLogger("opgate.session")

# What the engine must give back as it was: short and long strings, zeros, text, and bytes that aren't text.
_SAMPLES = ("", "a", "é\0", b"\xff\0\xfe", "ä" * 1000, b"\0\xff" * 1000, b"\xed\xa0\x80", b"\xff" * 16, "x" * 15)


class EngineStrings:
    """Makes string tensors of the engine and reads them. Any thread may use it."""

    def __init__(self) -> None:
        # Only the engine can make a tensor of strings: this graph answers with an empty one of the shape that it gets.
        text = helper.make_node("Constant", [], ["text"], value_string=b"")
        expand = helper.make_node("Expand", ["text", "shape"], ["y"])
        self._empty = _session([text, expand], helper.make_tensor_value_info("shape", TensorProto.INT64, [None]))

    def make(self, array: Array) -> Any:
        """Returns an OrtValue with the elements of an array of str and bytes.

        Raises UnicodeEncodeError for a str that UTF-8 can't express.
        """
        shape = ort.OrtValue.ortvalue_from_numpy(np.array(array.shape, np.int64))
        (value,) = self._empty.run_with_ort_values(["y"], {"shape": shape})
        if array.size:
            native.fill(value.data_ptr(), np.ascontiguousarray(array))
        return value

    def read(self, value: Any) -> Array:
        """Returns the elements of an OrtValue with strings, as an array of str and bytes."""
        shape = tuple(value.shape())
        array: Array = np.empty(math.prod(shape), np.object_)
        if array.size:
            native.read(value.data_ptr(), array)
        return array.reshape(shape)

    def works(self) -> bool:
        """Tries whether the engine's strings are what this process takes them for. It writes nothing if they aren't."""
        many = ort.OrtValue.ortvalue_from_numpy(np.array([64], np.int64))
        (value,) = self._empty.run_with_ort_values(["y"], {"shape": many})  # large enough for every layout
        if not native.has_layout(value.data_ptr()):
            return False
        samples = np.array(_SAMPLES, np.object_)
        x = helper.make_tensor_value_info("x", TensorProto.STRING, None)
        copy = _session([helper.make_node("Identity", ["x"], ["y"])], x)
        (copied,) = copy.run_with_ort_values(["y"], {"x": self.make(samples)})
        return bool(self.read(copied).tolist() == samples.tolist())


@cache
def engine_strings() -> EngineStrings | None:
    """Returns what makes and reads strings with any bytes, None if that doesn't work with this ONNX Runtime."""
    try:
        found = EngineStrings()
        if found.works():
            return found
        reason = "its std::string has another layout than the one that this gateway was built for"
    except Exception as error:  # Exception is the only common base class of ONNX Runtime's exceptions
        reason = str(error).strip()
    logger.warning("BYTES tensors can hold UTF-8 text only with ONNX Runtime %s: %s", ort.__version__, reason)
    return None


def _session(nodes: list[NodeProto], taken: ValueInfoProto) -> Any:
    """Returns a session on the CPU of a graph with one input and the output y, which has strings."""
    options = ort.SessionOptions()
    options.enable_cpu_mem_arena = False
    answer = helper.make_tensor_value_info("y", TensorProto.STRING, None)
    return small_session(helper.make_graph(nodes, "strings", [taken], [answer]), options)
