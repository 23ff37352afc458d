"""The dtypes of tensors, with the name of each in signatures, in NumPy and in every engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np


@dataclass(frozen=True, slots=True)
class DType:
    """A dtype and its names.

    `name` is the name in a signature, `onnx` the name in TensorProto, `litert` the name in the schema of LiteRT's
    models, and `tensorrt` the name in TensorRT. `torch` and `tensorflow` are names of attributes of these modules.
    `torch` is None if torch has no such dtype, and `tensorrt` is None if a plugin can't have it: TensorRT has no f64
    and no str, and its plugins take neither u8 nor bool.
    """

    name: str
    numpy: np.dtype[Any]
    onnx: str
    torch: str | None
    tensorrt: str | None
    tensorflow: str
    litert: str

    @property
    def onnx_type(self) -> str:
        """The type as an onnx schema writes it, "tensor(float)" for f32."""
        return f"tensor({self.onnx.lower()})"


#: All dtypes by name, in the order of the C++ enum DType.
DTYPES: Mapping[str, DType] = {
    dtype.name: dtype
    for dtype in (
        DType("f16", np.dtype(np.float16), "FLOAT16", "float16", "HALF", "float16", "FLOAT16"),
        DType("bf16", np.dtype(ml_dtypes.bfloat16), "BFLOAT16", "bfloat16", "BF16", "bfloat16", "BFLOAT16"),
        DType("f32", np.dtype(np.float32), "FLOAT", "float32", "FLOAT", "float32", "FLOAT32"),
        DType("f64", np.dtype(np.float64), "DOUBLE", "float64", None, "float64", "FLOAT64"),
        DType("i8", np.dtype(np.int8), "INT8", "int8", "INT8", "int8", "INT8"),
        DType("u8", np.dtype(np.uint8), "UINT8", "uint8", None, "uint8", "UINT8"),
        DType("i32", np.dtype(np.int32), "INT32", "int32", "INT32", "int32", "INT32"),
        DType("i64", np.dtype(np.int64), "INT64", "int64", "INT64", "int64", "INT64"),
        DType("bool", np.dtype(np.bool_), "BOOL", "bool", None, "bool", "BOOL"),
        DType("str", np.dtype(object), "STRING", None, None, "string", "STRING"),
    )
}


def numpy_types(types: Mapping[str, str]) -> dict[str, np.dtype[Any]]:
    """Returns the NumPy dtype of each type variable. `types` maps the variables to names of dtypes."""
    return {variable: DTYPES[name].numpy for variable, name in types.items()}
