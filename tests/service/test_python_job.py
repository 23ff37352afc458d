"""The outputs of a model in Python in the types that its config states."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opgate.service.core.datatypes import DATATYPES
from opgate.service.core.request import Request
from opgate.service.core.spec import ModelSpec, TensorSpec
from opgate.service.isolation.python_job import settle


def settled(datatype: str, given: Any) -> Request:
    """Returns a request that a model has answered with an array, where its config states a type."""
    spec = ModelSpec("m", "1", {}, {"y": TensorSpec("y", DATATYPES[datatype], (-1,))}, 0, None)
    request = Request({}, 1, ((),), ("y",))
    settle(spec, request, {"y": given}, None, {})
    return request


@pytest.mark.parametrize(
    ("datatype", "given"),
    [
        ("FP32", np.array([0.1, np.inf, np.nan])),
        ("FP16", np.array([1.5], np.float32)),
        ("FP32", np.array([3], np.int64)),
        ("FP64", np.array([3], np.int32)),
        ("INT32", np.array([-(2**31), 2**31 - 1])),
        ("INT64", np.array([7], np.uint8)),
        ("UINT8", np.array([0, 255])),
        ("INT8", np.zeros(0, np.int64)),
    ],
)
def test_numbers_become_those_of_the_config(datatype: str, given: np.ndarray) -> None:
    request = settled(datatype, given)
    assert request.error is None and request.result is not None
    assert request.result["y"].dtype == DATATYPES[datatype].dtype
    np.testing.assert_array_equal(request.result["y"], given.astype(DATATYPES[datatype].dtype))


@pytest.mark.parametrize(
    ("datatype", "given", "said"),
    [
        ("INT32", np.array([2**31]), "int64 has numbers that INT32 doesn't hold"),
        ("INT8", np.array([-129], np.int16), "int16 has numbers that INT8 doesn't hold"),
        ("INT32", np.array([1.0]), "expected INT32, the model gave float64"),
        ("UINT8", np.array([-1]), "int64 has numbers that UINT8 doesn't hold"),
        ("INT64", np.array([2**63], np.uint64), "uint64 has numbers that INT64 doesn't hold"),
        ("FP32", np.array([1], np.uint16), "expected FP32, the model gave uint16"),
        ("BF16", np.array([1.0]), "expected BF16, the model gave float64"),
        ("BOOL", np.array([1]), "expected BOOL, the model gave int64"),
        ("FP32", np.array([True]), "expected FP32, the model gave bool"),
        ("FP32", np.array(["1"], object), "expected FP32, the model gave object"),
        ("BYTES", np.array([1]), "expected BYTES, the model gave int64"),
    ],
)
def test_what_the_config_does_not_hold_is_an_error(datatype: str, given: np.ndarray, said: str) -> None:
    request = settled(datatype, given)
    assert request.result is None and request.error is not None
    assert said in request.error.message
