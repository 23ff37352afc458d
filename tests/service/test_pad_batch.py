"""Runs have the sizes of `pad_batch`, and requests get only their own rows."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from onnx import TensorProto, helper

from opgate.service.core.errors import ServingError
from tests.service.onnx_models import save, value
from tests.service.test_execution import infer


def sized(repository, name, sizes, batch=8, first="batch", extra="dynamic_batching { }"):
    """Saves a model that gives x + x, and in each row how many rows its run had."""
    nodes = [
        helper.make_node("Add", ["x", "x"], ["y"]),
        helper.make_node("Shape", ["x"], ["shape"], start=0, end=1),
        helper.make_node("Expand", ["one", "both"], ["ones"]),
        helper.make_node("Concat", ["shape", "one_dim"], ["both"], axis=0),
        helper.make_node("Mul", ["ones", "shape"], ["rows"]),
    ]
    constants = [
        helper.make_tensor("one", TensorProto.INT64, [1, 1], [1]),
        helper.make_tensor("one_dim", TensorProto.INT64, [1], [1]),
    ]
    nodes = [nodes[0], nodes[1], nodes[3], nodes[2], nodes[4]]
    outputs = [value("y", "FP32", (first, 3)), value("rows", "INT64", (first, 1))]
    config = f'max_batch_size: {batch} {extra} parameters {{ key: "pad_batch" value {{ string_value: "{sizes}" }} }}'
    inputs = [value("x", "FP32", (first, 3))]
    return save(repository, name, nodes, inputs, outputs, initializers=constants, config=config)


def ask(gateway, name, *counts):
    """Returns the answers to requests of so many rows that are sent at once."""

    async def main():
        generator = np.random.default_rng(0)
        inputs = [generator.standard_normal((rows, 3), dtype=np.float32) for rows in counts]
        answers = await asyncio.gather(*(infer(gateway, name, x=x) for x in inputs))
        for x, answer in zip(inputs, answers, strict=True):
            assert (answer["y"] == x + x).all()
            assert answer["rows"].shape == (len(x), 1)
        return [int(answer["rows"][0, 0]) for answer in answers]

    return asyncio.run(main())


@pytest.mark.parametrize(("rows", "size"), [(1, 1), (2, 4), (3, 4), (4, 4), (5, 8), (8, 8)])
def test_a_run_has_the_least_size_with_room(repository, load, rows, size):
    sized(repository, "m", "1,4,8")
    assert ask(load(), "m", rows) == [size]


def test_an_output_without_a_row_for_each_row_is_an_error_as_ever(repository, load):
    """The padding must not hide that a model doesn't batch."""
    nodes = [helper.make_node("NonZero", ["x"], ["z"]), helper.make_node("Transpose", ["z"], ["y"])]
    config = 'max_batch_size: 8 parameters { key: "pad_batch" value { string_value: "8" } }'
    save(
        repository,
        "m",
        nodes,
        [value("x", "FP32", ("n", 3))],
        [value("y", "INT64", ("m", 2))],
        config=config,
    )
    gateway = load()
    with pytest.raises(ServingError, match=r"output 'y' has shape \[24, 2\], expected 8 rows"):
        asyncio.run(infer(gateway, "m", x=np.ones((3, 3), np.float32)))


def test_requests_that_share_a_run_share_its_padding(repository, load):
    sized(repository, "m", "1,4,8", extra="dynamic_batching { max_queue_delay_microseconds: 200000 }")
    assert ask(load(), "m", 1, 2) == [4, 4]


def test_a_file_with_a_fixed_batch(repository, load):
    sized(repository, "m", "8", first=8)
    assert ask(load(), "m", 3) == [8]
    assert ask(load(), "m", *([1] * 20)) == [8] * 20


def test_no_request_waits_for_a_size_that_does_not_come(repository, load):
    extra = "dynamic_batching { preferred_batch_size: [ 8 ] max_queue_delay_microseconds: 1000 }"
    sized(repository, "m", "8", first=8, extra=extra)
    assert ask(load(), "m", 1) == [8]


@pytest.mark.parametrize(
    ("sizes", "batch", "extra", "text"),
    [
        ("8,4", 8, "", "expected ascending sizes up to max_batch_size 8, got '8,4'"),
        ("1,4", 8, "", "expected ascending sizes up to max_batch_size 8, got '1,4'"),
        ("", 8, "", "expected ascending sizes up to max_batch_size 8, got ''"),
        ("1", 0, "", "max_batch_size is 0, there is no batch"),
        ("8", 8, "sequence_batching { }", "can't be combined with"),
    ],
)
def test_what_is_wrong_is_refused(repository, load, sizes, batch, extra, text):
    sized(repository, "m", sizes, batch, extra=extra)
    with pytest.raises(ServingError, match=text):
        ask(load(), "m", 1)


def test_a_file_with_another_fixed_batch_says_what_to_do(repository, load):
    sized(repository, "m", "8", first=4)
    with pytest.raises(ServingError, match="pad_batch to 4"):
        ask(load(), "m", 1)
