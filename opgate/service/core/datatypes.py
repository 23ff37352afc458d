"""The tensor types, with their names in the KServe protocol, in config.pbtxt, in ONNX Runtime and in NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class DataType:
    """One element type. `dtype` is that of its arrays: uint16 bits for BF16, and objects for BYTES.

    An element of a BYTES array is a str if it is UTF-8, otherwise bytes.
    """

    name: str
    onnx: str
    onnx_code: int
    dtype: np.dtype[Any]
    itemsize: int  # bytes of an element on the wire; 0 if elements differ in size

    @property
    def config_name(self) -> str:
        """The name in config.pbtxt."""
        return "TYPE_STRING" if self.name == "BYTES" else f"TYPE_{self.name}"


def _types() -> tuple[DataType, ...]:
    rows: tuple[tuple[str, str, int, Any], ...] = (
        ("BOOL", "bool", 9, np.bool_),
        ("UINT8", "uint8", 2, np.uint8),
        ("UINT16", "uint16", 4, np.uint16),
        ("UINT32", "uint32", 12, np.uint32),
        ("UINT64", "uint64", 13, np.uint64),
        ("INT8", "int8", 3, np.int8),
        ("INT16", "int16", 5, np.int16),
        ("INT32", "int32", 6, np.int32),
        ("INT64", "int64", 7, np.int64),
        ("FP16", "float16", 10, np.float16),
        ("FP32", "float", 1, np.float32),
        ("FP64", "double", 11, np.float64),
        ("BF16", "bfloat16", 16, np.uint16),
        ("BYTES", "string", 8, np.object_),
    )
    return tuple(
        DataType(name, f"tensor({onnx})", code, np.dtype(dtype), 0 if name == "BYTES" else np.dtype(dtype).itemsize)
        for name, onnx, code, dtype in rows
    )


DATATYPES: dict[str, DataType] = {t.name: t for t in _types()}
BY_CONFIG: dict[str, DataType] = {t.config_name: t for t in DATATYPES.values()}
BY_ONNX: dict[str, DataType] = {t.onnx: t for t in DATATYPES.values()}
