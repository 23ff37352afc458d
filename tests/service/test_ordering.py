"""preserve_ordering: answers come in the order of the requests, whatever runs first."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opgate.service.core.request import Request
from opgate.service.core.spec import Batching, QueuePolicy
from opgate.service.execution.ordering import OrderedAnswers
from tests.conftest import examples
from tests.service.onnx_models import batching, double
from tests.service.scheduling import ENDLESS, request, started, until

ORDERED = Batching(preserve_ordering=True)


def run_all(main):
    return asyncio.run(asyncio.wait_for(main(), 60))


def ran(asked):
    """Whether the model has run a request, even if its answer is held."""
    return asked.result is not None or asked.error is not None


def test_a_fast_request_waits_for_the_answer_of_a_slow_one_before_it(tmp_path):
    async def main():
        async with started(tmp_path, ORDERED, instances=2) as clients:
            slow = request(1, turns=300_000)
            fast = [request(value) for value in (2, 3, 4)]
            clients.send(slow, *fast)
            await until(lambda: all(map(ran, fast)))
            # The second instance has run them all. They are not pending any more, and have no answer yet.
            assert clients.ended == [] and not slow.ended
            assert clients.scheduler.statistics.pending == 0
            assert clients.scheduler.statistics.success_count == 0
            assert await clients.all() == [1, 2, 3, 4]
            statistics = clients.scheduler.statistics
            assert statistics.success_count == 4 and statistics.executions == 4
            # A request takes until its answer is let out, and a queue until its run begins.
            for asked in fast:
                assert asked.ended_ns >= slow.run_ns[1] > asked.run_ns[1]
            least = sum(slow.run_ns[1] - asked.received_ns for asked in (slow, *fast))
            assert statistics.request_ns >= least
            assert statistics.queue_ns == sum(asked.started_ns - asked.received_ns for asked in (slow, *fast))
            assert statistics.request_seconds.total == statistics.request_ns

    run_all(main)


def test_without_it_the_fast_one_is_answered_first(tmp_path):
    async def main():
        async with started(tmp_path, Batching(), instances=2) as clients:
            slow = request(1, turns=ENDLESS, width=3)
            clients.send(slow, request(2))
            await until(lambda: clients.ended == [2])
            slow.cancel()
            return await clients.all()

    assert run_all(main) == [2, "CANCELED"]


@pytest.mark.parametrize("how", ["leaves", "timeout", "overdue", "fails"])
def test_one_that_ends_without_an_answer_holds_nobody_up(tmp_path, how):
    async def main():
        more = {"run_timeout": 0.2} if how == "overdue" else {}
        async with started(tmp_path, ORDERED, instances=2, **more) as clients:
            first = request(1, turns=ENDLESS, width=3, timeout_us=200_000 if how == "timeout" else 0)
            if how == "fails":
                # A number of turns and rows that don't fit together: the engine refuses the product.
                first = request(1, turns=200_000, width=3)
                first.inputs["x"] = np.ones((1, 3, 1, 0), np.float32)
            fast = [request(value) for value in (2, 3)]
            clients.send(first, *fast)
            await until(lambda: all(map(ran, fast)))
            if how == "leaves":
                assert clients.ended == []
                first.cancel()
            return await clients.all()

    kinds = {"leaves": "CANCELED", "timeout": "DEADLINE", "overdue": "INTERNAL", "fails": "INVALID"}
    assert run_all(main) == [kinds[how], 2, 3]


def test_an_answer_that_is_held_may_leave_or_run_out_of_time(tmp_path):
    async def main():
        async with started(tmp_path, ORDERED, instances=2) as clients:
            slow = request(1, turns=ENDLESS, width=3)
            held = [request(2), request(3, timeout_us=200_000), request(4)]
            clients.send(slow, *held)
            await until(lambda: all(map(ran, held)))
            held[0].cancel()
            await until(lambda: clients.ended == ["CANCELED", "DEADLINE"])
            slow.cancel()
            await clients.all()
            return clients.ended, clients.scheduler.statistics

    ended, statistics = run_all(main)
    assert ended == ["CANCELED", "DEADLINE", "CANCELED", 4]
    assert statistics.failures == {"CANCELED": 2, "DEADLINE": 1} and statistics.success_count == 1


def test_one_that_leaves_the_queue_holds_nobody_up(tmp_path):
    async def main():
        async with started(tmp_path, ORDERED) as clients:
            running, waits = request(1, turns=200_000), request(2)
            clients.send(running, waits, request(3))
            await until(lambda: clients.scheduler.statistics.pending == 2)
            waits.cancel()
            return await clients.all()

    assert run_all(main) == ["CANCELED", 1, 3]


def test_a_refused_request_is_answered_at_once(tmp_path):
    async def main():
        block = Batching(policy=QueuePolicy(max_queue_size=1), preserve_ordering=True)
        async with started(tmp_path, block) as clients:
            running = request(1, turns=ENDLESS)
            clients.send(running)
            await until(lambda: not clients.scheduler._idle)
            clients.send(request(2), request(3))
            await until(lambda: clients.ended == ["OVERLOADED"])
            running.cancel()
            return await clients.all()

    assert run_all(main) == ["OVERLOADED", "CANCELED", 2]


def test_runs_on_the_event_loop_keep_the_order_too(tmp_path):
    """After some runs they happen on the loop, while a slow one is on a thread."""

    async def main():
        async with started(tmp_path, ORDERED, instances=2, inline_limit_us=100_000.0) as clients:
            for _ in range(60):
                (task,) = clients.send(request(0))
                await task
            clients.ended.clear()
            slow = request(1, turns=300_000, width=3)
            clients.send(slow, *[request(value) for value in (2, 3, 4)])
            return await clients.all()

    assert run_all(main)[-4:] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("block", "named"),
    [
        ("priority_levels: 2 default_priority_level: 1", "dynamic_batching.priority_levels 2 with preserve_ordering"),
        (
            "default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 1 }",
            "dynamic_batching.default_queue_policy.timeout_action DELAY with preserve_ordering",
        ),
        (
            "priority_levels: 1 default_priority_level: 1 priority_queue_policy { key: 1 "
            "value { timeout_action: DELAY default_timeout_microseconds: 1 } }",
            "dynamic_batching.priority_queue_policy 1.timeout_action DELAY with preserve_ordering",
        ),
    ],
)
def test_what_contradicts_the_order_is_refused_as_in_triton(repository, reason, block, named):
    double(repository, "m", config=batching(f"dynamic_batching {{ preserve_ordering: true {block} }}"))
    assert named in reason("m")


def test_one_level_and_a_delay_without_a_timeout_are_allowed(repository, load):
    block = "priority_levels: 1 default_priority_level: 1 default_queue_policy { timeout_action: DELAY }"
    double(repository, "m", config=batching(f"dynamic_batching {{ preserve_ordering: true {block} }}"))
    assert load().find("m").model.spec.batching.preserve_ordering


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_nothing_overtakes_and_nothing_is_held_for_ever(data):
    """Each request gets its answer or leaves, in any order. An answer may end another request."""
    count = data.draw(st.integers(1, 12))
    requests = [Request({}, 1, i, ()) for i in range(count)]
    answers, out, gone = OrderedAnswers(), [], set()
    kills = data.draw(st.dictionaries(st.integers(0, count - 1), st.integers(0, count - 1), max_size=3))
    todo = data.draw(st.permutations(range(count)))
    leaving = data.draw(st.sets(st.integers(0, count - 1)))
    added = 0

    def let_out(i):
        out.append(i)
        victim = kills.get(i)
        if victim is not None and victim < added and victim not in out and victim not in gone:
            gone.add(victim)
            answers.leave(requests[victim])

    for i in todo:
        while added <= i:
            answers.add(requests[added])
            added += 1
        if i in gone:
            continue
        if i in leaving:
            gone.add(i)
            answers.leave(requests[i])
            answers.leave(requests[i])  # it may be told twice
        else:
            answers.answer(requests[i], lambda i=i: let_out(i))
    assert out == sorted(out)
    assert set(out) | gone == set(range(count)) and not set(out) & gone
