"""max_latency_ms: requests that would be answered too late are refused, and batches are as large as the oldest allows."""

from __future__ import annotations

import asyncio
import itertools
import re
from time import perf_counter_ns
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opgate.service.core.request import Request
from opgate.service.core.spec import Batching, ModelSpec, QueuePolicy
from opgate.service.execution import cost
from opgate.service.execution.cost import CostCurve, HandOver, RunTimes
from opgate.service.execution.latency import LatencyLimit, Work, answered_in, still_busy
from opgate.service.execution.policy import Choice, choose
from tests.service.onnx_models import batching, double
from tests.service.padded_models import config
from tests.service.scheduling import ENDLESS, blocked, request, started, until

S = 10**9
KNOWN = cost.WARM_UP + cost.EXPLORE


def times(seconds):
    """Returns the times of a shape whose runs were measured: seconds by rows."""
    found = RunTimes()
    fill(found, seconds)
    return found


def fill(found, seconds, count=KNOWN):
    for rows, each in seconds.items():
        for _ in range(count):
            found.record(rows, int(each * S))


class TestRunTimes:
    def test_nothing_is_known_before_some_runs(self):
        found = RunTimes()
        fill(found, {4: 2.0}, KNOWN - 1)
        assert found.estimate(4) == 0
        fill(found, {4: 2.0}, 1)
        assert found.estimate(4) == 2 * S

    def test_between_two_sizes_lies_a_line(self):
        found = times({1: 1.0, 4: 2.5, 16: 4.0})
        assert [found.estimate(rows) / S for rows in (1, 2, 4, 10, 16)] == pytest.approx([1, 1.5, 2.5, 3.25, 4])

    def test_a_smaller_size_takes_its_share(self):
        assert times({8: 4.0}).estimate(2) == pytest.approx(1 * S)

    def test_a_class_that_was_not_measured_is_taken_to_save_nothing(self):
        """A burst after the first single requests must not become one batch that nobody has measured."""
        found = times({5: 1.0})
        assert [found.estimate(rows) / S for rows in (8, 9, 1000)] == pytest.approx([1.6, 1.8, 200])
        assert [found.knows(rows) for rows in (1, 8, 9)] == [True, True, False]

    def test_a_class_that_was_not_measured_is_tried_after_many_denials(self):
        found = times({1: 1.0})
        for _ in range(cost.REVISIT):
            assert found.estimate(8) == 8 * S
            found.deny(8)
        assert found.estimate(2) == found.estimate(8) == S
        fill(found, {2: 1.5})
        assert [found.estimate(rows) / S for rows in (2, 8)] == pytest.approx([1.5, 6])

    def test_more_rows_never_take_less(self):
        found = times({1: 3.0, 2: 9.0, 8: 6.0})
        assert found.estimate(2) == 6 * S

    def test_the_first_runs_do_not_count(self):
        found = RunTimes()
        fill(found, {1: 100.0}, cost.WARM_UP)
        fill(found, {1: 1.0}, cost.EXPLORE)
        assert found.estimate(1) == S

    def test_one_slow_run_moves_the_estimate_a_little(self):
        found = times({1: 1.0})
        fill(found, {1: 1.0}, cost.MEMORY)
        fill(found, {1: 1000.0}, 1)
        assert found.estimate(1) < 1.5 * S

    def test_a_model_that_turns_fast_is_known_as_fast(self):
        found = times({1: 10.0})
        fill(found, {1: 1.0}, 4 * cost.MEMORY)
        assert found.estimate(1) < 2 * S

    def test_a_size_that_is_denied_is_tried_again(self):
        """It was slow once. Only a run can show that it isn't any more."""
        found = times({1: 1.0, 8: 100.0})
        for _ in range(cost.REVISIT):
            assert found.estimate(8) == 100 * S
            found.deny(8)
        assert found.estimate(8) == found.estimate(1) == S
        found.record(1, S)
        assert found.estimate(8) == S  # it has not run yet
        found.record(8, 2 * S)
        assert found.estimate(8) == 2 * S

    def test_a_size_that_is_still_slow_is_denied_again(self):
        found = times({1: 1.0, 8: 100.0})
        for _ in range(cost.REVISIT):
            found.deny(8)
        found.record(8, 100 * S)
        assert found.estimate(8) == 100 * S

    @given(st.lists(st.tuples(st.integers(1, 64), st.integers(1, 10**12), st.booleans()), max_size=300))
    def test_estimates_never_fall_with_the_rows(self, runs):
        found = RunTimes()
        for rows, wall, denied in runs:
            for _ in range(KNOWN):
                found.record(rows, wall)
            if denied:
                for _ in range(cost.REVISIT):
                    found.deny(rows)
        estimates = [found.estimate(rows) for rows in range(1, 130)]
        assert all(a <= b * (1 + 1e-9) for a, b in itertools.pairwise(estimates))


def line(*requests):
    """Returns requests of so many rows that came at these seconds."""
    made = []
    for rows, received in requests:
        made.append(Request({}, rows, (), ()))
        made[-1].received_ns = int(received * S)
    return made


class TestBatches:
    """The limit is 10 s. A run takes a second and one more for each row."""

    def curve(self, costs=None):
        curve = CostCurve(HandOver(0), timed=True)
        for rows, seconds in (costs or {rows: 1.0 + rows for rows in (1, 2, 4, 8, 16)}).items():
            for _ in range(KNOWN):
                curve.record(rows, int(seconds * S), 0, False)
        return curve

    def pick(self, waiting, now, costs=None, limit=10 * S, **block):
        return choose(waiting, Batching(max_latency_ns=limit, **block), 16, self.curve(costs), int(now * S))

    def test_a_batch_is_as_large_as_the_oldest_request_allows(self):
        waiting = line(*[(1, 0)] * 16)
        assert self.pick(waiting, 0).rows == 9
        assert self.pick(waiting, 5).rows == 4
        assert self.pick(waiting, 8).rows == 1
        assert self.pick(waiting, 0, limit=0).rows == 16

    def test_requests_of_several_rows_count_as_such(self):
        waiting = line(*[(4, 0)] * 4)
        assert self.pick(waiting, 0) == Choice(2, 8, 0)
        assert self.pick(waiting, 4) == Choice(1, 4, 0)

    def test_if_even_the_first_one_is_late_the_costs_alone_decide(self):
        assert self.pick(line(*[(1, 0)] * 16), 9).rows == 16
        assert self.pick(line((8, 0), (8, 0)), 2) == Choice(2, 16, 0)

    def test_the_oldest_one_may_be_of_a_lower_level(self):
        waiting = line((1, 7), (1, 7), (1, 0), (1, 7))
        assert self.pick(waiting, 7) == Choice(2, 2, 0)

    def test_a_preferred_size_that_is_too_slow_does_not_run(self):
        waiting = line(*[(1, 0)] * 16)
        assert self.pick(waiting, 0, adaptive=False, preferred=(4, 16)) == Choice(4, 4, 0)
        assert self.pick(waiting, 7, adaptive=False, preferred=(4, 16)) == Choice(2, 2, 0)

    def test_a_delay_ends_in_time(self):
        """It may use half of what the limit leaves: the run of two takes three seconds."""
        waiting = line((1, 0), (1, 1))
        found = self.pick(waiting, 1, adaptive=False, max_delay_ns=60 * S)
        assert found == Choice(0, 0, int(3.5 * S))
        assert self.pick(waiting, 3.5, adaptive=False, max_delay_ns=60 * S) == Choice(2, 2, 0)
        assert self.pick(waiting, 1, adaptive=False, max_delay_ns=2 * S) == Choice(0, 0, 2 * S)

    def test_unknown_costs_limit_nothing(self):
        curve = CostCurve(HandOver(0), timed=True)
        waiting = line(*[(1, 0)] * 16)
        assert choose(waiting, Batching(max_latency_ns=10 * S), 16, curve, 1000 * S).rows == 16

    @given(
        st.lists(st.tuples(st.integers(1, 16), st.integers(0, 20)), min_size=1, max_size=20),
        st.integers(0, 30),
        st.dictionaries(st.sampled_from([1, 2, 4, 8, 16]), st.integers(1, 20), min_size=1),
        st.booleans(),
    )
    def test_no_batch_is_late_if_a_smaller_one_is_in_time(self, waiting, now, costs, adaptive):
        made, curve = line(*waiting), self.curve(costs)
        block = Batching(adaptive, () if adaptive else (3, 8), 0 if adaptive else 5 * S, max_latency_ns=10 * S)
        found = choose(made, block, 16, curve, now * S)

        def late(count):
            oldest = min(asked.received_ns for asked in made[:count])
            return now * S + curve.times.estimate(sum(asked.rows for asked in made[:count])) > oldest + 10 * S

        if found.requests:
            assert found.rows == sum(asked.rows for asked in made[: found.requests]) <= 16
            assert late(1) or not late(found.requests)
        else:
            assert now * S < found.wake_ns


class TestEstimates:
    def work(self, rows, costs=None):
        return Work(rows, times(costs or {1: 1.0, 4: 4.0}))

    def test_an_own_run(self):
        assert answered_in(self.work(3), [], [0.0], 4) == 3 * S

    def test_what_runs_now_is_waited_for(self):
        assert answered_in(self.work(1), [], [5 * S], 4) == 6 * S
        assert answered_in(self.work(1), [], [5 * S, 2 * S], 4) == 3 * S

    def test_full_batches_come_before(self):
        assert answered_in(self.work(9), [], [0.0], 4) == 9 * S
        assert answered_in(self.work(8), [], [0.0], 4) == 8 * S
        assert answered_in(self.work(9), [], [0.0, 0.0], 4) == 5 * S
        assert answered_in(self.work(8), [], [0.0, 0.0], 4) == 4 * S
        assert answered_in(self.work(4001), [], [0.0, 0.0], 4) == pytest.approx(2001 * S, rel=0.02)

    def test_other_shapes_have_their_own_costs(self):
        ahead = [self.work(5, {1: 3.0, 4: 3.0}), self.work(0), self.work(1, {1: 0.5})]
        assert answered_in(self.work(1), ahead, [0.0], 4) == 7.5 * S

    def test_instances_share_the_work_as_they_become_free(self):
        ahead = [self.work(4)]
        assert answered_in(self.work(1), ahead, [0.0, 100 * S], 4) == 5 * S
        assert answered_in(self.work(1), ahead, [0.0, 2 * S], 4) == 3 * S
        assert answered_in(self.work(1), ahead * 4, [1 * S, 1 * S, 1 * S, 1 * S], 4) == 6 * S

    def test_unknown_costs_are_no_estimate(self):
        assert answered_in(Work(1, RunTimes()), [self.work(100)], [S], 4) == 0

    def test_a_run_that_hangs_goes_on(self):
        assert [still_busy(10.0, passed) for passed in (0, 4, 10, 15, 100)] == [10, 6, 0, 5, 90]


IDLE = [SimpleNamespace(batch=None)]  # an instance


def test_warm_up_runs_of_padded_models_are_known(repository, load):
    warm_up = """model_warmup { name: "w" batch_size: 2 count: 6
      inputs { key: "x" value { data_type: TYPE_FP32 dims: [ 3 ] zero_data: true } } }"""
    text = config(f"dynamic_batching {{}} {warm_up}", pad_inputs="x", max_latency_ms="1000")
    double(repository, "m", config=text, shape=("batch", "n"))
    curves = load().find("m").model.executor._profile.curves.values()
    assert curves and all(curve.times.estimate(2) > 0 for curve in curves)


class TestRefusals:
    """Refusals of requests that come keep a size from running that has never run."""

    def limit(self, curve_times, waiting=3):
        class Line:
            def ahead_of(self, _):
                return waiting, []

        profile = cost.Profile(0, timed=True)
        asked = request()
        fill(profile.curve(asked.key).times, curve_times)
        spec = ModelSpec("m", "1", {}, {}, max_batch_size=8)
        return LatencyLimit(spec, int(1.5 * S), profile, Line()), asked, profile.curve(asked.key).times

    def test_a_size_that_never_ran_is_tried_after_many(self):
        limit, asked, found = self.limit({1: 1.0})
        asked.received_ns = perf_counter_ns()
        refused = [limit.refusal(asked, IDLE) is not None for _ in range(cost.REVISIT + 1)]
        assert refused == [True] * cost.REVISIT + [False]
        assert found.estimate(4) == S

    def test_one_that_ran_is_not(self):
        limit, asked, found = self.limit({1: 1.0, 8: 8.0})
        asked.received_ns = perf_counter_ns()
        assert all(limit.refusal(asked, IDLE) is not None for _ in range(2 * cost.REVISIT))
        assert found.estimate(8) == 8 * S


def test_warm_up_runs_are_known(repository, load):
    config = """parameters { key: "max_latency_ms" value { string_value: "1000" } } dynamic_batching {}
    model_warmup { name: "w" batch_size: 4 count: 6 inputs { key: "x" value { data_type: TYPE_FP32 dims: [ 4 ] zero_data: true } } }"""
    double(repository, "m", config=batching(config))
    (curve,) = load().find("m").model.executor._profile.curves.values()
    assert 0 < curve.times.estimate(1) <= curve.times.estimate(4) < S


def run_all(main):
    return asyncio.run(asyncio.wait_for(main(), 60))


def limited(seconds, **more):
    return Batching(max_latency_ns=int(seconds * S), **more)


def learn(scheduler, seconds, width=1):
    """Lets a scheduler believe that it has measured runs of requests of this width."""
    curve = scheduler._profile.curve(request(width=width).key)
    for rows, each in seconds.items():
        for _ in range(KNOWN):
            curve.record(rows, int(each * S), 0, False)


def test_what_would_be_answered_too_late_is_refused(tmp_path):
    """A run is known to take ten seconds, and the limit is 55."""

    async def main():
        async with started(tmp_path, limited(55)) as clients:
            learn(clients.scheduler, {1: 10.0})
            async with blocked(clients):
                tasks = clients.send(*(request(value) for value in range(8)))
                await until(lambda: len(clients.ended) == 3)
                assert clients.ended == ["OVERLOADED"] * 3 and clients.scheduler.statistics.pending == 5
                text = (await tasks[5]).message
                expected = (
                    r"the answer of model 'm' would take about 60\d{3}\.\d ms, the limit is 55000 ms \(max_latency_ms\)"
                )
                assert re.fullmatch(expected, text)
            assert (await clients.all())[3:] == [0, 1, 2, 3, 4]
            assert clients.scheduler.statistics.failures["OVERLOADED"] == 3

    run_all(main)


def test_the_run_that_is_under_way_counts(tmp_path):
    async def main():
        async with started(tmp_path, limited(55)) as clients:
            learn(clients.scheduler, {1: 10.0})
            learn(clients.scheduler, {1: 30.0}, width=1000)
            async with blocked(clients):
                clients.send(*(request(value) for value in range(4)))
                await until(lambda: clients.ended == ["OVERLOADED"] * 2)
            return await clients.all()

    assert run_all(main) == ["OVERLOADED", "OVERLOADED", 0, 1]


def test_instances_share_the_queue(tmp_path):
    async def main():
        async with started(tmp_path, limited(25), instances=2) as clients:
            learn(clients.scheduler, {1: 10.0})
            async with blocked(clients, 2):
                clients.send(*(request(value) for value in range(8)))
                await until(lambda: clients.ended)
                # Two are answered after 10 seconds and two after 20.
                return clients.ended, clients.scheduler.statistics.pending

    ended, pending = run_all(main)
    assert ended[:4] == ["OVERLOADED"] * 4 and pending == 4


def test_nothing_is_refused_until_costs_are_known(tmp_path):
    async def main():
        async with started(tmp_path, limited(0.001)) as clients:
            async with blocked(clients):
                clients.send(*(request(value) for value in range(8)))
                await until(lambda: clients.scheduler.statistics.pending == 8)
            return await clients.all()

    assert run_all(main) == list(range(8))


def test_a_higher_level_waits_for_less(tmp_path):
    async def main():
        async with started(tmp_path, limited(25, priority_levels=2, default_level=2)) as clients:
            learn(clients.scheduler, {1: 10.0})
            learn(clients.scheduler, {1: 10.0}, width=2)
            async with blocked(clients):
                clients.send(request(1), request(2, width=2), request(3))
                await until(lambda: clients.ended == ["OVERLOADED"])
                clients.send(request(4, priority=1), request(5, priority=1, width=2), request(6, priority=1))
                await until(lambda: clients.ended == ["OVERLOADED"] * 2)
            return await clients.all()

    assert run_all(main) == ["OVERLOADED", "OVERLOADED", 4, 5, 1, 2]


def test_an_idle_model_always_accepts_and_learns(tmp_path):
    """It is taken for far slower than it is. One request after the other shows that it isn't."""

    async def main():
        async with started(tmp_path, limited(10)) as clients:
            learn(clients.scheduler, {1: 1000.0})
            async with blocked(clients):
                clients.send(request(0))
                await until(lambda: clients.ended == ["OVERLOADED"])
            await until(lambda: clients.scheduler._idle)
            for value in range(200):
                await asyncio.gather(*clients.send(request(value)))
            assert clients.ended[1:] == list(range(200))
            async with blocked(clients):
                clients.send(request(7))
                await until(lambda: clients.scheduler.statistics.pending == 1)
            return await clients.all()

    assert run_all(main)[-1] == 7


def test_many_that_come_at_once_are_not_all_lost_when_the_estimate_is_wrong(tmp_path):
    async def main():
        async with started(tmp_path, limited(10)) as clients:
            learn(clients.scheduler, {1: 1000.0})
            for _ in range(200):
                await asyncio.gather(*clients.send(*(request(value) for value in range(3))))
            return clients.ended

    ended = run_all(main)
    assert len(ended) == 600 and ended[-3:] == [0, 1, 2]
    assert all(isinstance(each, float) or each == "OVERLOADED" for each in ended)


def test_requests_that_can_not_be_in_time_any_more_are_dropped_before_they_run(tmp_path):
    """They came in time, but the run before them took longer than was known. The last one runs all the same."""

    async def main():
        async with started(tmp_path, limited(55)) as clients:
            learn(clients.scheduler, {1: 10.0})
            async with blocked(clients):
                waiting = [request(value) for value in range(4)]
                clients.send(*waiting)
                await until(lambda: clients.scheduler.statistics.pending == 4)
                for asked in waiting:
                    asked.received_ns -= 50 * S
            await clients.all()
            return clients.ended, clients.scheduler.statistics

    ended, statistics = run_all(main)
    assert ended == ["OVERLOADED"] * 3 + [3]
    assert statistics.failures["OVERLOADED"] == 3 and statistics.pending == 0


def test_a_run_that_hangs_does_not_fill_the_queue(tmp_path):
    """It is known to take a millisecond. While it takes for ever, the queue would hold thousands."""

    async def main():
        async with started(tmp_path, limited(0.05)) as clients:
            learn(clients.scheduler, {1: 0.001})
            learn(clients.scheduler, {1: 0.001}, width=2)
            hangs = request(0, turns=ENDLESS, width=2)
            clients.send(hangs)
            await asyncio.sleep(0.2)
            clients.send(request(1))
            await until(lambda: clients.ended == ["OVERLOADED"])
            hangs.cancel()
            await until(lambda: clients.scheduler._idle)
            clients.send(request(2))
            return await clients.all()

    assert run_all(main) == ["OVERLOADED", "CANCELED", 2]


def test_a_run_on_the_event_loop_does_not_wait_for_an_instance(tmp_path):
    """The only one hangs, in a run that was expected to take a minute."""

    async def main():
        async with started(tmp_path, limited(10), inline_limit_us=100_000.0) as clients:
            for _ in range(60):
                await asyncio.gather(*clients.send(request(0)))
            learn(clients.scheduler, {1: 60.0}, width=1000)
            learn(clients.scheduler, {1: 1.0}, width=2)
            clients.ended.clear()
            async with blocked(clients):
                clients.send(request(1), request(2, width=2))
                await until(lambda: len(clients.ended) == 2)
            return sorted(map(str, await clients.all()))

    assert run_all(main) == ["1.0", "OVERLOADED"]


def test_order_and_limit_together(tmp_path):
    async def main():
        async with started(
            tmp_path, limited(55, preserve_ordering=True, policy=QueuePolicy(0, 0, False, True))
        ) as clients:
            learn(clients.scheduler, {1: 30.0})
            async with blocked(clients):
                clients.send(*(request(value) for value in range(4)))
                await until(lambda: len(clients.ended) == 3)
            return await clients.all()

    assert run_all(main) == ["OVERLOADED"] * 3 + [0]


@pytest.mark.parametrize(
    ("block", "value", "text"),
    [
        ("dynamic_batching { }", "soon", "parameter 'max_latency_ms': expected milliseconds, above 0 and below"),
        ("dynamic_batching { }", "0", "got '0'"),
        ("dynamic_batching { }", "-5", "got '-5'"),
        ("dynamic_batching { }", "nan", "got 'nan'"),
        ("dynamic_batching { }", "inf", "got 'inf'"),
        ("", "50", "parameter 'max_latency_ms' without dynamic_batching"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(repository, reason, block, value, text):
    extra = f'parameters {{ key: "max_latency_ms" value {{ string_value: "{value}" }} }}'
    double(repository, "m", config=batching(block, extra=extra))
    assert text in reason("m")


def test_the_parameter_is_read(repository, load):
    extra = 'parameters { key: "max_latency_ms" value { string_value: "2.5" } }'
    double(repository, "m", config=batching(extra=extra))
    assert load().find("m").model.spec.batching.max_latency_ns == 2_500_000
