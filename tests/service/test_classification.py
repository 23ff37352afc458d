"""The largest elements of each row of an output as text: order, format, labels, shape and limits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from opgate.service.core.datatypes import DATATYPES
from opgate.service.core.errors import Kind, ServingError
from opgate.service.core.spec import TensorSpec
from opgate.service.wire.classification import Classification
from tests.conftest import examples

FLOATS = ("FP16", "FP32", "FP64")


def classes(array, count, datatype="FP32", batched=True, labels=(), most=1000):
    tensor = TensorSpec("y", DATATYPES[datatype], (-1,), labels=labels)
    return Classification(tensor, count, batched, most).classes(array)


def expected(row, count):
    """Returns the classes of a row of Python numbers, by comparing all of them."""
    order = sorted(range(len(row)), key=lambda i: (math.isnan(row[i]), 0.0 if math.isnan(row[i]) else -row[i], i))
    return [f"{f'{row[i]:f}' if isinstance(row[i], float) else row[i]}:{i}" for i in order[:count]]


@pytest.mark.parametrize("datatype", [name for name in DATATYPES if name not in ("BYTES", "BF16", "BOOL")])
def test_every_row_of_numbers_is_in_order(datatype):
    dtype = DATATYPES[datatype].dtype
    if datatype in FLOATS:
        element = st.floats(width=DATATYPES[datatype].itemsize * 8)
    else:
        element = st.integers(int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    few = st.sampled_from([0, 1, 2])  # many are equal

    @given(st.integers(1, 3), st.integers(0, 9), st.integers(1, 12), st.data())
    @hypothesis_settings(max_examples=examples(100), deadline=None)
    def check(rows, size, count, data):
        values = data.draw(st.lists(element | few, min_size=rows * size, max_size=rows * size))
        array = np.array(values, dtype).reshape(rows, size)
        got = classes(array, count, datatype)
        assert got.shape == (rows, min(count, size))
        assert got.tolist() == [expected(row, count) for row in array.tolist()]

    check()


def test_values_are_written_as_triton_writes_them():
    numbers = np.array([[1.23456789e-7, 1e30, -0.0, 0.1, np.inf, -np.inf, np.nan]], np.float32)
    assert classes(numbers, 9).tolist() == [
        [
            "inf:4",
            "1000000015047466219876688855040.000000:1",
            "0.100000:3",
            "0.000000:0",
            "-0.000000:2",
            "-inf:5",
            "nan:6",
        ]
    ]
    assert classes(np.array([[1, 2**64 - 1]], np.uint64), 2, "UINT64").tolist() == [["18446744073709551615:1", "1:0"]]
    assert classes(np.array([[-(2**63), 0]], np.int64), 2, "INT64").tolist() == [["0:1", "-9223372036854775808:0"]]


def test_bool_bf16_and_text():
    assert classes(np.array([[False, True, True]]), 3, "BOOL").tolist() == [["1:1", "1:2", "0:0"]]
    bits = (np.array([[1.5, -2.0, np.nan, 3.0]], np.float32).view(np.uint32) >> 16).astype(np.uint16)
    assert classes(bits, 4, "BF16").tolist() == [["3.000000:3", "1.500000:0", "-2.000000:1", "nan:2"]]
    texts = np.array([["b", "é", "", "b", "a:b"]], object)
    assert classes(texts, 9, "BYTES").tolist() == [["é:1", "b:0", "b:3", "a:b:4", ":2"]]
    assert classes(texts, 2, "BYTES").tolist() == [["é:1", "b:0"]]


def test_labels_of_the_indices_that_have_one():
    got = classes(np.array([[1, 2, 3, 4]], np.float32), 4, labels=("cat", "", "dog:x"))
    assert got.tolist() == [["4.000000:3", "3.000000:2:dog:x", "2.000000:1", "1.000000:0:cat"]]


def test_the_shape_is_that_of_rows_or_of_all_elements():
    array = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    assert classes(array, 2).tolist() == [["5.000000:5", "4.000000:4"], ["11.000000:5", "10.000000:4"]]
    assert classes(array, 2, batched=False).tolist() == ["11.000000:11", "10.000000:10"]
    assert classes(array, 10**30).shape == (2, 6)
    assert classes(np.empty((2, 0), np.float32), 3).shape == (2, 0)
    assert classes(np.empty((0,), np.float32), 3, batched=False).shape == (0,)
    assert classes(np.float32(7).reshape(()), 3, batched=False).tolist() == ["7.000000:0"]


def test_too_many_classes_are_refused():
    array = np.zeros((3, 5), np.float32)
    assert classes(array, 5, most=15).shape == (3, 5)
    with pytest.raises(ServingError, match="output 'y': 15 classes are over the limit of 14") as caught:
        classes(array, 5, most=14)
    assert caught.value.kind is Kind.TOO_LARGE
