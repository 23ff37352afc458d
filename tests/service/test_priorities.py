"""Priority levels and queue policies: which request runs next, which is refused, and which is put off."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opgate.service.core.checks import Limits
from opgate.service.core.datatypes import DATATYPES
from opgate.service.core.errors import ServingError
from opgate.service.core.request import Options, Request, run
from opgate.service.core.spec import Batching, ModelSpec, QueuePolicy, TensorSpec
from opgate.service.core.statistics import ModelStatistics
from opgate.service.execution import policy
from opgate.service.execution.cost import CostCurve, HandOver
from opgate.service.execution.pipeline import Pipeline, Step
from opgate.service.execution.rate_limiter import Demand, RateLimiter, Resource
from opgate.service.execution.scheduler import Scheduler
from opgate.service.execution.waiting import Waiting
from tests.conftest import examples
from tests.service.onnx_models import batching, double
from tests.service.scheduling import ENDLESS, blocked, request, spec_of, started, until

THREE = Batching(priority_levels=3, default_level=2)


def run_all(main):
    return asyncio.run(asyncio.wait_for(main(), 60))


def test_higher_levels_run_first_and_a_level_in_order_of_arrival(tmp_path):
    async def main():
        async with started(tmp_path, THREE) as clients:
            async with blocked(clients):
                asked = [(3, 30), (2, 20), (1, 10), (3, 31), (0, 21), (1, 11), (4, 22), (2, 23), (1 << 60, 24)]
                clients.send(*(request(value, priority=priority) for priority, value in asked))
                await until(lambda: clients.scheduler.statistics.pending == len(asked))
            return await clients.all()

    # A priority that is no level means the default one.
    assert run_all(main) == [10, 11, 20, 21, 22, 23, 24, 30, 31]


def test_levels_hold_across_shapes(tmp_path):
    async def main():
        async with started(tmp_path, THREE) as clients:
            async with blocked(clients):
                asked = [(3, 30, 1), (1, 10, 2), (2, 20, 1), (1, 11, 3), (3, 31, 2), (1, 12, 2), (2, 21, 3)]
                clients.send(*(request(value, priority=level, width=width) for level, value, width in asked))
                await until(lambda: clients.scheduler.statistics.pending == len(asked))
            return [int(value // 10) for value in await clients.all()]

    assert run_all(main) == [1, 1, 1, 2, 2, 3, 3]


def test_a_batch_takes_the_highest_levels_first(tmp_path):
    """Two rows of three requests fit."""
    rows = []

    async def main():
        async with started(tmp_path, Batching(False, (2,), 0, priority_levels=2, default_level=2), 2) as clients:
            session = clients.scheduler._instances.all[0].session
            real = session.run

            def watched(names, feeds, options=None):
                if feeds["x"].shape[1] == 1:  # the run that keeps the instance busy may begin late
                    rows.append(feeds["x"][:, 0].tolist())
                return real(names, feeds, options)

            session.run = watched
            async with blocked(clients):
                clients.send(
                    *(request(value, priority=level) for level, value in ((2, 1), (2, 2), (1, 3), (1, 4), (1, 5)))
                )
                await until(lambda: clients.scheduler.statistics.pending == 5)
            await clients.all()

    run_all(main)
    assert rows == [[3, 4], [5, 1], [2]]


def test_lower_levels_wait_while_a_higher_one_waits_for_its_batch(tmp_path):
    """Two shapes, and batches of two. The delay is longer than the test."""

    async def main():
        waits = Batching(False, (2,), 60 * 10**9, priority_levels=2, default_level=2)
        async with started(tmp_path, waits, 2) as clients:
            clients.send(request(1, priority=1, width=1))
            clients.send(request(2, width=2), request(3, width=2))  # of a preferred size
            await until(lambda: clients.scheduler.statistics.pending == 3)
            for _ in range(20):
                await asyncio.sleep(0.005)
            assert clients.ended == []
            clients.send(request(4, priority=1, width=1))
            return await clients.all()

    assert run_all(main) == [1, 4, 2, 3]


@pytest.mark.parametrize("levels", [0, 2])
def test_a_cheap_run_on_the_event_loop_does_not_go_past_a_higher_level(tmp_path, levels):
    """It needs no instance. Without levels it would go first."""

    async def main():
        block = Batching(priority_levels=levels, default_level=min(1, levels))
        async with started(tmp_path, block, inline_limit_us=100_000.0) as clients:
            for _ in range(60):
                await asyncio.gather(*clients.send(request(0)))
            clients.ended.clear()
            async with blocked(clients):
                clients.send(request(1, priority=1, width=5))
                await until(lambda: clients.scheduler.statistics.pending == 1)
                clients.send(request(2, priority=2))
                await until(lambda: clients.ended == [2] or clients.scheduler.statistics.pending == 2)
                for _ in range(5):
                    await asyncio.sleep(0.005)
                assert clients.ended == ([] if levels else [2])
            return sorted(await clients.all())

    assert run_all(main) == [1, 2]


def test_the_oldest_request_of_a_batch_ends_the_delay():
    """It may be of a lower level than the first."""
    first, second = Request({}, 1, (), ()), Request({}, 1, (), ())
    first.received_ns, second.received_ns = 900, 100
    levels = Batching(False, (4,), 1000, priority_levels=2, default_level=1)
    curve = CostCurve(HandOver(0))
    assert policy.choose([first, second], levels, 8, curve, 1000) == policy.Choice(0, 0, 1100)
    assert policy.choose([first, second], levels, 8, curve, 1100) == policy.Choice(2, 2, 0)


@pytest.mark.parametrize("size", [0, 2])
def test_each_level_has_its_queue(tmp_path, size):
    """Level 1 has a policy of its own, 2 and 3 have the default one. The gateway's limit holds for all together."""

    async def main():
        levels = Batching(
            policy=QueuePolicy(max_queue_size=3), priority_levels=3, default_level=2,
            policies={1: QueuePolicy(max_queue_size=size)},
        )  # fmt: skip
        async with started(tmp_path, levels, max_queue_size=8) as clients:
            async with blocked(clients):
                asked = [1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 1]
                tasks = clients.send(*(request(priority=level) for level in asked))
                await until(lambda: len(clients.ended) + clients.scheduler.statistics.pending == len(asked))
                pending, refused = clients.scheduler.statistics.pending, len(clients.ended)
            await clients.all()
            return pending, refused, [task.result() and task.result().message for task in tasks]

    pending, refused, texts = run_all(main)
    assert pending == 8 and refused == 4
    full = [i for i, text in enumerate(texts) if text]
    # With two places for level 1, all others have their three. Without a limit, the gateway's own is reached.
    assert full == ([2, 6, 10, 11] if size else [6, 9, 10, 11])
    assert texts[6] == "the queue of model 'm' is full: 3 requests wait"


def test_a_place_of_a_level_is_free_again(tmp_path):
    async def main():
        levels = Batching(priority_levels=2, default_level=2, policies={1: QueuePolicy(max_queue_size=1)})
        async with started(tmp_path, levels) as clients:
            async with blocked(clients):
                left = request(1, priority=1)
                clients.send(left, request(2, priority=1))
                await until(lambda: clients.ended == ["OVERLOADED"])
                left.cancel()
                clients.send(request(3, priority=1))
                await until(lambda: clients.scheduler.statistics.pending == 1)
            await until(lambda: clients.ended[-1] == 3)
            clients.send(request(4, priority=1))
            return await clients.all()

    assert run_all(main) == ["OVERLOADED", "CANCELED", 3, 4]


class TestTimeouts:
    DELAY = Batching(policy=QueuePolicy(delay=True))

    def test_a_request_that_is_late_waits_behind_the_others_of_its_level(self, tmp_path):
        async def main():
            levels = Batching(policy=QueuePolicy(delay=True), priority_levels=2, default_level=1)
            async with started(tmp_path, levels) as clients:
                async with blocked(clients):
                    late = [request(1, timeout_us=1000), request(2, timeout_us=500)]
                    clients.send(*late, request(3), request(4, priority=2), request(5, timeout_us=10**9))
                    await asyncio.sleep(0.05)
                    assert clients.ended == [] and clients.scheduler.statistics.pending == 5
                    clients.send(request(6))
                    await until(lambda: clients.scheduler.statistics.pending == 6)
                return await clients.all()

        assert run_all(main) == [3, 5, 6, 1, 2, 4]

    def test_a_request_that_came_late_is_put_off_too(self, tmp_path):
        async def main():
            async with started(tmp_path, self.DELAY) as clients:
                async with blocked(clients):
                    late = request(1, timeout_us=10)
                    late.received_ns -= 10**9
                    clients.send(late, request(2))
                    await until(lambda: clients.scheduler.statistics.pending == 2)
                return await clients.all()

        assert run_all(main) == [2, 1]

    def test_a_late_request_of_another_shape_is_put_off(self, tmp_path):
        async def main():
            async with started(tmp_path, self.DELAY) as clients:
                async with blocked(clients):
                    clients.send(request(1, timeout_us=500, width=1), request(2, width=2), request(3, width=2))
                    await asyncio.sleep(0.05)
                return await clients.all()

        assert run_all(main) == [2, 3, 1]

    def test_the_run_of_a_late_request_goes_on(self, tmp_path):
        async def main():
            async with started(tmp_path, self.DELAY) as clients:
                asked = request(1, turns=ENDLESS, timeout_us=10_000)
                clients.send(asked)
                await asyncio.sleep(0.1)
                assert clients.ended == [] and not asked.ended
                asked.cancel()
                return await clients.all()

        assert run_all(main) == ["CANCELED"]

    def test_each_level_has_its_action_and_its_default(self, tmp_path):
        """Level 1 puts off after a millisecond, and 2 fails after two. 3 has no timeout."""

        async def main():
            levels = Batching(
                priority_levels=3,
                default_level=3,
                policies={1: QueuePolicy(0, 1000, False, True), 2: QueuePolicy(0, 2000, False, False)},
            )
            async with started(tmp_path, levels) as clients:
                async with blocked(clients):
                    clients.send(request(1, priority=1), request(2, priority=2), request(3, priority=3))
                    await until(lambda: clients.ended == ["EXPIRED"])
                    await asyncio.sleep(0.02)
                return await clients.all()

        assert run_all(main) == ["EXPIRED", 1, 3]

    @pytest.mark.parametrize(
        ("default", "override", "asked", "expected"),
        [
            (0, False, 0, 0),
            (0, False, 70, 70),
            (50, False, 20, 50),
            (50, True, 20, 20),
            (50, True, 70, 50),
            (50, True, 0, 50),
        ],
    )
    def test_a_request_may_shorten_the_default(self, default, override, asked, expected):
        assert QueuePolicy(0, default, override).timeout_us(asked) == expected


def test_a_step_of_a_pipeline_has_the_priority_of_its_request(tmp_path):
    async def main():
        async with started(tmp_path, Batching(priority_levels=2, default_level=2)) as clients:
            model = clients.scheduler
            steps = [Step(model.spec, model, {"x": "x", "turns": "turns"}, {"y": "o"})]
            outputs = {"o": TensorSpec("o", DATATYPES["FP32"], (-1,))}
            spec = ModelSpec("p", "1", model.spec.inputs, outputs, 1)
            pipeline = Pipeline(spec, steps, ModelStatistics(), Limits())
            ended = []

            async def through(value, priority):
                part = request(value)
                asked = Request(part.inputs, 1, part.key, ("o",), options=Options(10**9, priority))
                ended.append(float((await run(pipeline.submit, asked))["o"][0, 0]))

            async with blocked(clients):
                tasks = [asyncio.ensure_future(through(value, level)) for value, level in ((1, 0), (2, 2), (3, 1))]
                await until(lambda: model.statistics.pending == 3)
            await asyncio.gather(*tasks)
            return ended

    assert run_all(main) == [3, 1, 2]


@pytest.mark.parametrize(
    ("block", "named"),
    [
        ("priority_levels: 2", "default_priority_level 0 outside 1 to priority_levels 2"),
        ("priority_levels: 2 default_priority_level: 3", "default_priority_level 3 outside 1 to priority_levels 2"),
        (
            "priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 3 value { } }",
            "dynamic_batching.priority_queue_policy key 3 outside 1 to priority_levels 2",
        ),
        (
            "priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 0 value { } }",
            "dynamic_batching.priority_queue_policy key 0 outside 1 to priority_levels 2",
        ),
    ],
)
def test_a_config_that_contradicts_itself_is_refused(repository, reason, block, named):
    double(repository, "m", config=batching(f"dynamic_batching {{ {block} }}"))
    assert named in reason("m")


def test_without_levels_nothing_is_read_of_them(repository, load):
    block = (
        "default_priority_level: 2 priority_queue_policy { key: 2 value { timeout_action: DELAY max_queue_size: 1 } }"
    )
    double(repository, "m", config=batching(f"dynamic_batching {{ {block} }}"))
    stated = load().find("m").model.spec.batching
    assert (stated.priority_levels, stated.level(0), stated.policies, stated.in_order) == (0, 0, {}, True)


def test_a_config_becomes_levels_with_policies(repository, load):
    block = """dynamic_batching { priority_levels: 3 default_priority_level: 2
        default_queue_policy { max_queue_size: 7 }
        priority_queue_policy { key: 1 value {
          timeout_action: DELAY default_timeout_microseconds: 50 allow_timeout_override: true max_queue_size: 9 } } }"""
    double(repository, "m", config=batching(block))
    found = load().find("m").model.spec.batching
    assert (found.priority_levels, found.default_level, found.in_order) == (3, 2, False)
    assert found.policy_of(1) == QueuePolicy(9, 50, True, True)
    assert found.policy_of(2) == found.policy_of(3) == QueuePolicy(max_queue_size=7)
    assert [found.level(priority) for priority in (0, 1, 3, 4)] == [2, 1, 3, 2]


class TestWaiting:
    """The queue against a list that is sorted anew for each look."""

    @settings(max_examples=examples(200), deadline=None)
    @given(st.data())
    def test_nothing_is_lost_and_levels_keep_their_order(self, data):
        levels = data.draw(st.integers(0, 3), "levels")
        batching = Batching(
            priority_levels=levels, default_level=min(1, levels), policy=QueuePolicy(4, 0, False, True)
        )  # fmt: skip
        waiting, expected = Waiting(batching, 12), []  # of (level, late, number, request)
        keys = ["a", "b", "c"]
        for number in range(data.draw(st.integers(1, 40), "steps")):
            what = data.draw(st.sampled_from(["add", "add", "add", "take", "remove", "postpone"]))
            if what == "add":
                asked = Request({}, data.draw(st.integers(1, 3)), data.draw(st.sampled_from(keys)), ())
                asked.options = Options(0, data.draw(st.integers(0, 4)))
                asked.received_ns = number
                level = batching.level(asked.options.priority)
                of_level = [entry for entry in expected if entry[0] == level]
                full = waiting.full_for(asked)
                assert bool(full) == (len(of_level) >= 4 or len(expected) >= 12)
                if not full:
                    waiting.add(asked)
                    expected.append((level, False, number, asked))
            elif not expected:
                continue
            elif what == "take":
                key = data.draw(st.sampled_from(sorted(waiting.lines)))
                line = sorted(entry for entry in expected if (entry[3].key, ()) == key)
                count = data.draw(st.integers(1, len(line)))
                assert list(waiting.lines[key])[:count] == [entry[3] for entry in line[:count]]
                waiting.take(key, count)
                expected = [entry for entry in expected if entry not in line[:count]]
            else:
                i = data.draw(st.integers(0, len(expected) - 1))
                level, _, came, asked = expected.pop(i)
                if what == "remove":
                    assert waiting.remove(asked)
                    assert not waiting.remove(asked)
                else:
                    waiting.postpone(asked)
                    expected.append((level, True, came, asked))
            self.check(waiting, expected, batching)

    def check(self, waiting, expected, batching):
        assert waiting.size == len(expected)
        for key, line in waiting.lines.items():
            entries = sorted(entry for entry in expected if (entry[3].key, ()) == key)
            assert entries and list(line) == [entry[3] for entry in entries] and len(line) == len(entries)
            for level in range(5):
                asked = Request({}, 1, entries[0][3].key, ())
                asked.options = Options(0, level)
                own, others = waiting.ahead_of(asked)
                lowest = batching.level(level)
                before = {key: sum(e[3].rows for e in expected if e[3].key == key and e[0] <= lowest) for key in "abc"}
                assert own == before[asked.key]
                assert {key: n for key, n in others if n} == {
                    key: n for key, n in before.items() if key != asked.key and n
                }
        order = list(waiting.order())
        heads = {(e[3].key, ()): e for e in sorted(expected, reverse=True)}
        assert sorted(order) == sorted(heads)
        assert order == sorted(heads, key=lambda key: heads[key][:3])


class Echo:
    """Answers with x, and takes a while for it."""

    gpu = None
    takes_requests = False
    isolated = False
    down = ""

    def close(self):
        return None

    def run_options(self):
        return None

    def run(self, names, feeds, options=None):
        if float(feeds["x"].sum()) % 7 == 0:
            raise RuntimeError("a bad sum")
        return [feeds["x"] for _ in names]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 3), st.integers(1, 3), st.integers(0, 2), st.sampled_from([0, 0, 1, 900]), st.booleans()
        ),
        min_size=1,
        max_size=40,
    ),
    st.sampled_from([0, 1, 2]),
    st.sampled_from([0, 100, 10**9]),
    *[st.booleans()] * 4,
    st.integers(1, 3),
)
def test_every_request_is_answered_once(asked, levels, latency_ns, delay, ordered, waits, limited, instances):
    """Whatever its level, its rows, its shape and its timeout, and whether its client leaves or the engine fails."""

    async def main():
        x, y = (TensorSpec(name, DATATYPES["FP32"], (-1,)) for name in "xy")
        block = Batching(
            adaptive=not waits,
            max_delay_ns=300_000 if waits else 0,
            policy=QueuePolicy(max_queue_size=9, delay=delay),
            priority_levels=levels,
            default_level=min(1, levels),
            preserve_ordering=ordered,
            max_latency_ns=latency_ns,
        )
        spec = ModelSpec("m", "1", {"x": x}, {"y": y}, 4, block)
        limiter = RateLimiter()
        claims = limiter.add([Demand({Resource("r", 0): 1})] * instances) if limited else ()
        model = Scheduler(spec, [Echo()] * instances, ModelStatistics(), inline_limit_us=50, claims=claims)
        ended, requests = [], []
        for number, (priority, rows, width, timeout_us, leaves) in enumerate(asked):
            values = np.full((rows, 1 + width), number, np.float32)
            sent = Request({"x": values}, rows, width, ("y",), options=Options(timeout_us, priority))
            sent.done = ended.append
            requests.append(sent)
            model.submit(sent)
            if leaves:
                requests[number // 2].cancel()
            if number % 5 == 4:
                await asyncio.sleep(0)
        await asyncio.wait_for(model.close(), 20)
        assert sorted(map(id, ended)) == sorted(map(id, requests))
        for number, sent in enumerate(requests):
            assert sent.error is not None or (sent.result["y"] == number).all()
        statistics = model.statistics
        assert statistics.success_count + statistics.fail_count == len(asked) and statistics.pending == 0
        assert not limiter._claims and not limiter._waiting and not any(limiter._used.values())
        if ordered:
            answered = [requests.index(sent) for sent in ended if sent.error is None]
            assert answered == sorted(answered)

    asyncio.run(main())


def test_a_level_of_its_own_for_each_request_costs_no_memory():
    """A client may choose among very many levels."""
    waiting = Waiting(Batching(priority_levels=1 << 40, default_level=1), 10)
    for level in range(1, 100):
        asked = Request({}, 1, "k", (), options=Options(0, level))
        waiting.add(asked)
        assert waiting.remove(asked)
    assert not waiting._of_level and not waiting.lines


def test_a_request_without_a_place_is_an_error_of_the_model(tmp_path):
    async def main():
        levels = Batching(priority_levels=1, default_level=1, policies={1: QueuePolicy(max_queue_size=1)})
        async with started(tmp_path, levels) as clients:
            async with blocked(clients):
                clients.send(request(1))
                await until(lambda: clients.scheduler.statistics.pending == 1)
                with pytest.raises(ServingError, match="the queue of model 'm' is full: 1 requests wait"):
                    await run(clients.scheduler.submit, request(2))
            await clients.all()
            return clients.scheduler.statistics.failures

    assert run_all(main) == {"OVERLOADED": 1, "CANCELED": 1}


def test_triton_hears_the_priority():
    from tritonclient.grpc.service_pb2 import ModelInferRequest

    from opgate.service.execution.triton.remote import RemoteModel

    model = RemoteModel(spec_of(None, 4), None, ModelStatistics(), Limits(), max_queue_size=1, call_timeout=1)
    sent = [ModelInferRequest.FromString(model._message(request(priority=level))) for level in (0, 2)]
    assert not sent[0].parameters
    assert sent[1].parameters["priority"].uint64_param == 2
