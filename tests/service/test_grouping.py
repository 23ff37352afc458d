"""Requests share a batch only if their inputs of `batch_by` have equal values."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opgate.service.core.errors import Kind
from opgate.service.core.request import Options, Request
from opgate.service.execution.grouping import group_of
from tests.service.onnx_models import identity
from tests.service.padded_models import config, sized
from tests.service.test_execution import infer, make_request


def asked(t, word="en", rows=1, length=2):
    t = np.broadcast_to(np.array(t, np.float32).reshape(-1, 1), (rows, 1))
    return {"x": np.ones((rows, length), np.float32), "t": t, "word": np.full((rows, 1), word, object)}


def together(gateway, name, requests):
    async def main():
        return await asyncio.gather(*(infer(gateway, name, **r) for r in requests), return_exceptions=True)

    return asyncio.run(main())


def rows_of(answers):
    """Returns how many rows the batch of each answer had."""
    return [int(answer["rows"][0, 0]) for answer in answers]


def test_only_equal_values_share(repository, load):
    sized(repository, text=config(batch_by="t"))
    gateway = load()
    answers = together(gateway, "sized", [asked(0.5), asked(0.7), asked(0.5), asked(0.7, rows=3), asked(0.5, "de")])
    assert rows_of(answers) == [3, 4, 3, 4, 3]
    assert [answer["same"][0, 0] for answer in answers] == ["en"] * 4 + ["de"]
    assert gateway.find("sized").model.statistics.executions == 2


def test_several_inputs_and_texts(repository, load):
    sized(repository, text=config(batch_by="t, word"))
    answers = together(load(), "sized", [asked(1), asked(1, "de"), asked(1), asked(2, "de"), asked(1, "de")])
    assert rows_of(answers) == [2, 2, 2, 1, 2]


def test_strings_that_are_no_text(repository, load):
    sized(repository, text=config(batch_by="word"))
    words = [b"\xff\0a", b"\xff\0b", "en", b"\xff\0a"]
    answers = together(load(), "sized", [asked(1, word) for word in words])
    assert rows_of(answers) == [2, 1, 1, 2]
    assert [answer["same"][0, 0] for answer in answers] == words


def test_requests_whose_rows_differ_share_only_with_the_same(repository, load):
    sized(repository, text=config(batch_by="t"))
    both = asked([1, 2], rows=2)
    answers = together(load(), "sized", [both, asked(1), asked([2, 1], rows=2), both])
    assert rows_of(answers) == [4, 1, 2, 4]


def test_with_padding(repository, load):
    sized(repository, text=config(batch_by="t", pad_inputs="x"))
    answers = together(load(), "sized", [asked(1, length=n) for n in (1, 5, 3)] + [asked(2, length=5)])
    assert rows_of(answers) == [3, 3, 3, 1]
    assert [answer["y"].shape for answer in answers] == [(1, 1), (1, 5), (1, 3), (1, 5)]


def test_with_priorities_and_a_latency_limit(repository, load):
    """Their lines are of another kind, and the estimates look at the lines of others."""
    block = "dynamic_batching { priority_levels: 2 default_priority_level: 1 max_queue_delay_microseconds: 100000 }"
    sized(repository, text=config(block, batch_by="t", max_latency_ms="60000"))
    gateway = load()
    model = gateway.find("sized").model

    async def one(i):
        request = make_request(model, asked(i % 3), gateway)
        request.options = Options(priority=1 + i % 2)
        return await gateway.infer(model, request)

    async def main():
        for _ in range(3):
            answers = await asyncio.gather(*(one(i) for i in range(12)))
            assert max(rows_of(answers)) <= 4

    asyncio.run(main())
    assert 9 <= model.statistics.executions < 36


def test_texts_of_a_length_share(repository, load):
    sized(repository, text=config(length_buckets="word=2,8"))
    words = ["a", "bc", "bcd", "x" * 9, "x" * 500, "bcdefghi", "é" * 2, b"\xff" * 2, ""]
    answers = together(load(), "sized", [asked(1, word) for word in words])
    assert rows_of(answers) == [5, 5, 2, 2, 2, 2, 5, 5, 5]


def test_the_longest_row_says_the_bucket(repository, load):
    sized(repository, text=config(length_buckets="word=2;x=3"))
    requests = [asked(1, "a"), asked(1, "a", rows=2), asked(1, "abc"), asked(1, "a", length=4), asked(1, "a", length=3)]
    requests[1]["word"] = np.array([["a"], ["abc"]], object)
    answers = together(load(), "sized", requests)
    assert rows_of(answers) == [1, 3, 3, 1, 1]  # the last one has another shape


@pytest.mark.parametrize(
    ("word", "size"), [("x" * 4093, 4097), ("é" * 2047, 4098), ("é" * 100_000, 100_004), (b"\xff" * 4093, 4097)]
)
def test_a_large_value_is_refused(repository, load, word, size):
    sized(repository, text=config(batch_by="word"))
    gateway = load()
    good, bad = together(gateway, "sized", [asked(1), asked(1, word)])
    assert rows_of([good]) == [1]
    assert bad.kind is Kind.TOO_LARGE
    assert f"input 'word' of model 'sized' has {size} bytes or more, the limit is 4096" in bad.message
    statistics = gateway.find("sized").model.statistics
    assert (statistics.success_count, sum(statistics.failures.values()), gateway.running) == (1, 1, 0)


def test_a_large_array_is_refused(repository, load):
    identity(repository, "m", "FP32", ("batch", "n"), config(batch_by="x"))
    gateway = load()
    good, bad = together(gateway, "m", [{"x": np.zeros((1, n), np.float32)} for n in (1024, 1025)])
    assert good["y"].shape == (1, 1024)
    assert bad.kind is Kind.TOO_LARGE


def test_many_strings_are_refused(repository, load):
    identity(repository, "m", "BYTES", ("batch", "n"), config(batch_by="x"))
    good, bad = together(load(), "m", [{"x": np.full((1, n), "", object)} for n in (1024, 1025)])
    assert good["y"].shape == (1, 1024)
    assert "has 4100 bytes or more" in bad.message


def test_without_dynamic_batching_requests_run_alone(repository, load):
    sized(repository, text=config("", batch_by="t"))
    assert rows_of(together(load(), "sized", [asked(1), asked(1), asked(2, rows=2)])) == [1, 1, 2]


def test_configs_that_are_refused(repository, reason):
    sized(repository, "a", config(batch_by="t,nope"))
    identity(repository, "b", "FP32", ("n",), config("", 0, batch_by="x"))
    assert "parameter 'batch_by': 'nope' is not an input, the inputs are x, t, word" in reason("a")
    assert "parameter 'batch_by': max_batch_size is 0, there is no batch" in reason("b")


@given(
    st.lists(st.tuples(st.integers(1, 3), st.sampled_from([0.0, 1.0]), st.sampled_from(["", "a", "ab"])), max_size=8)
)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_groups_are_equal_if_the_values_are(repository, load, requests):
    sized(repository, text=config("dynamic_batching { }", batch_by="t,word"))
    spec = load().find("sized").model.spec
    groups = [(group_of(spec, Request(asked(t, word, rows), rows, (), ())), (t, word)) for rows, t, word in requests]
    for group, values in groups:
        for other, other_values in groups:
            assert (group == other) == (values == other_values)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("words=2", "'words' is not an input, the inputs are x, t, word"),
        ("word", "expected each input once, word and ascending sizes, word=64,256, got 'word'"),
        ("word=2,2", "expected each input once, word and ascending sizes"),
        ("word=0,2", "expected each input once, word and ascending sizes"),
        ("word=a", "expected each input once, word and ascending sizes"),
        ("word=2;word=3", "expected each input once, word and ascending sizes"),
    ],
)
def test_buckets_that_are_none(repository, reason, text, message):
    sized(repository, text=config(length_buckets=text))
    assert message in reason("sized")
