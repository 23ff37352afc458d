"""Requests that leave the queue or a run early: clients that left, timeouts, runs that take too long."""

from __future__ import annotations

import asyncio
import threading
import time

import numpy as np
import pytest

from opgate.service.core.checks import Limits
from opgate.service.core.datatypes import DATATYPES
from opgate.service.core.errors import Kind, ServingError
from opgate.service.core.request import Options, Request, run
from opgate.service.core.spec import Batching, ModelSpec, TensorSpec
from opgate.service.core.statistics import ModelStatistics
from opgate.service.execution.alarm import Alarm
from opgate.service.execution.pipeline import Pipeline, Step
from opgate.service.execution.scheduler import Scheduler
from opgate.service.execution.session import Session, SessionOptions
from tests.service.onnx_models import endless

X, Y = (TensorSpec(name, DATATYPES["FP32"], (-1,)) for name in "xy")
SPEC = ModelSpec("m", "1", {"x": X}, {"y": Y})


class Engine:
    """An engine whose runs take until `go` is set."""

    gpu = None
    takes_requests = False
    isolated = False
    down = ""

    def __init__(self):
        self.go = threading.Event()
        self.runs = 0

    def close(self):
        return None

    def run_options(self):
        return None

    def run(self, names, feeds, options=None):
        self.runs += 1
        assert self.go.wait(20)
        return [feeds["x"] for _ in names]


def request(timeout_us=0, elements=4):
    return Request({"x": np.ones((1, elements), np.float32)}, 1, "k", ("y",), options=Options(timeout_us))


def scheduler(engine, spec=SPEC, **more):
    return Scheduler(spec, [engine], ModelStatistics(), inline_limit_us=0, **more)


async def outcome(awaitable):
    try:
        await awaitable
    except ServingError as error:
        return error.kind
    return None


async def until(condition):
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise TimeoutError


@pytest.mark.parametrize("batching", [None, Batching()])
def test_a_timeout_fires_while_the_model_is_busy(batching):
    async def main():
        engine = Engine()
        model = scheduler(engine, ModelSpec("m", "1", {"x": X}, {"y": Y}, 4 if batching else 0, batching))
        first = asyncio.ensure_future(run(model.submit, request()))
        await until(lambda: engine.runs)
        began = time.perf_counter()
        assert await outcome(run(model.submit, request(timeout_us=30_000))) is Kind.EXPIRED
        assert 0.03 <= time.perf_counter() - began < 5
        assert not engine.go.is_set()
        assert model.statistics.pending == 0
        engine.go.set()
        await first
        assert engine.runs == 1
        await model.close()

    asyncio.run(main())


def test_a_place_in_the_queue_is_free_when_a_client_leaves():
    async def main():
        engine = Engine()
        model = scheduler(engine, max_queue_size=1)
        tasks = [asyncio.ensure_future(run(model.submit, request()))]
        await until(lambda: engine.runs)
        leaving = asyncio.ensure_future(run(model.submit, request()))
        await asyncio.sleep(0)
        assert await outcome(run(model.submit, request())) is Kind.OVERLOADED
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        tasks.append(asyncio.ensure_future(run(model.submit, request())))
        engine.go.set()
        assert [await outcome(task) for task in tasks] == [None, None]
        assert engine.runs == 2
        assert model.statistics.failures == {"OVERLOADED": 1, "CANCELED": 1}
        await model.close()

    asyncio.run(main())


def test_the_others_of_a_batch_are_answered_when_one_leaves():
    async def main():
        engine = Engine()
        spec = ModelSpec("m", "1", {"x": X}, {"y": Y}, max_batch_size=4, batching=Batching(False, (3,), 10**9))
        model = scheduler(engine, spec)
        parts = [Request({"x": np.full((1, 2), i, np.float32)}, 1, "k", ("y",)) for i in range(3)]
        tasks = [asyncio.ensure_future(run(model.submit, part)) for part in parts]
        await until(lambda: engine.runs)
        parts[1].cancel()
        assert await outcome(tasks[1]) is Kind.CANCELED
        engine.go.set()
        assert (await tasks[0])["y"].tolist() == [[0, 0]] and (await tasks[2])["y"].tolist() == [[2, 2]]
        assert model.statistics.success_count == 2 and model.statistics.failures == {"CANCELED": 1}
        await model.close()

    asyncio.run(main())


@pytest.mark.parametrize("how", ["timeout", "left", "overdue"])
def test_the_engine_stops_a_run_that_nobody_waits_for(tmp_path, how):
    async def main():
        engine = Session(endless(tmp_path, "m") / "1" / "model.onnx", SessionOptions())
        model = scheduler(engine, run_timeout=0.2 if how == "overdue" else 60)
        asked = request(timeout_us=200_000 if how == "timeout" else 0)
        waiting = asyncio.ensure_future(run(model.submit, asked))
        await asyncio.sleep(0.2)
        if how == "left":
            asked.cancel()
        kinds = {"timeout": Kind.DEADLINE, "left": Kind.CANCELED, "overdue": Kind.INTERNAL}
        assert await outcome(waiting) is kinds[how]
        await asyncio.wait_for(model.close(), 20)  # it waits for the run
        assert model.statistics.fail_count == 1 and model.statistics.success_count == 0
        assert not model.overdue

    asyncio.run(main())


@pytest.mark.parametrize("how", ["timeout", "left"])
def test_a_run_that_fails_after_its_request_has_ended_changes_nothing(how):
    class Stopped(Engine):
        def run(self, names, feeds, options=None):
            super().run(names, feeds, options)
            raise RuntimeError("the run was stopped")

    async def main():
        engine = Stopped()
        model = scheduler(engine)
        asked = request(timeout_us=50_000 if how == "timeout" else 0)
        model.submit(asked)
        await until(lambda: engine.runs)
        if how == "left":
            asked.cancel()
        await until(lambda: asked.ended)
        error = asked.error
        assert error.kind is {"timeout": Kind.DEADLINE, "left": Kind.CANCELED}[how]
        engine.go.set()
        await model.close()
        assert asked.error is error

    asyncio.run(main())


def test_a_model_whose_run_takes_too_long_is_not_ready(caplog):
    async def main():
        engine = Engine()
        model = scheduler(engine, run_timeout=0.1)
        step = Step(SPEC, model, {"x": "x"}, {"y": "o"})
        pipeline = Pipeline(SPEC, [step], ModelStatistics(), Limits())
        running, waits = (asyncio.ensure_future(run(model.submit, request())) for _ in range(2))
        assert await outcome(running) is Kind.INTERNAL
        assert await outcome(waits) is Kind.UNAVAILABLE
        assert "takes longer than 0.1 s" in model.overdue and pipeline.overdue == model.overdue
        assert model.statistics.overdue == 1
        assert await outcome(run(model.submit, request())) is Kind.UNAVAILABLE
        engine.go.set()
        await until(lambda: not model.overdue)
        assert await outcome(run(model.submit, request())) is None
        await model.close()

    asyncio.run(main())
    messages = [record.getMessage() for record in caplog.records]
    assert any("takes longer than 0.1 s" in text for text in messages)
    assert any("is ready again" in text for text in messages)


def test_a_pipeline_gives_up_its_steps():
    async def main():
        engine = Engine()
        model = scheduler(engine, max_queue_size=1)
        steps = [Step(SPEC, model, {"x": "x"}, {"y": "o"})]
        spec = ModelSpec("p", "1", {"x": X}, {"o": TensorSpec("o", DATATYPES["FP32"], (-1,))})
        pipeline = Pipeline(spec, steps, ModelStatistics(), Limits())
        first = asyncio.ensure_future(run(model.submit, request()))
        await until(lambda: engine.runs)

        def through(timeout_us=0):
            asked = Request({"x": np.ones(4, np.float32)}, 1, "k", ("o",), options=Options(timeout_us))
            return asyncio.ensure_future(run(pipeline.submit, asked))

        leaving = through()
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        assert await outcome(through(timeout_us=20_000)) is Kind.DEADLINE
        last = through()
        engine.go.set()
        assert await outcome(first) is None and await outcome(last) is None
        assert engine.runs == 2
        assert pipeline.statistics.failures == {"CANCELED": 1, "DEADLINE": 1}
        await model.close()

    asyncio.run(main())


def test_parallel_steps_that_end_at_once(caplog):
    """Each step ends before its `submit` returns, as runs on the event loop do."""

    async def main():
        class AtOnce:
            overdue = ""

            def submit(self, asked):
                asked.result = {"y": asked.inputs["x"] * 2}
                asked.end()

        tensors = {name: TensorSpec(name, DATATYPES["FP32"], (-1,)) for name in "abc"}
        steps = [Step(SPEC, AtOnce(), {"x": source}, {"y": to}) for source, to in (("x", "a"), ("x", "b"), ("b", "c"))]
        pipeline = Pipeline(ModelSpec("p", "1", {"x": X}, tensors), steps, ModelStatistics(), Limits())
        for wanted in (("a", "b"), ("a", "c"), ("a", "b", "c")):
            asked = Request({"x": np.ones(4, np.float32)}, 1, "k", wanted)
            result = await run(pipeline.submit, asked)
            assert [result[name][0] for name in wanted] == [{"a": 2, "b": 2, "c": 4}[name] for name in wanted]

    asyncio.run(main())


def test_an_alarm_counts_microseconds():
    async def main():
        rung = asyncio.Event()
        alarm = Alarm(rung.set)
        early = []
        for ns in (1, 100_000, 400_000, 1_500_000) * 5:
            rung.clear()
            began = time.perf_counter_ns()
            alarm.set(10**12)
            alarm.set(ns)
            await rung.wait()
            early.append(time.perf_counter_ns() - began < ns)
        assert not any(early)
        alarm.set(1000)
        alarm.cancel()
        rung.clear()
        await asyncio.sleep(0.02)
        assert not rung.is_set()
        alarm.close()

    import uvloop

    for factory in (asyncio.new_event_loop, uvloop.new_event_loop):
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main())


@pytest.mark.parametrize("delay_us", [300, 600, 5000])
def test_a_delay_does_not_spin(delay_us):
    import uvloop

    async def main():
        engine = Engine()
        engine.go.set()
        spec = ModelSpec("m", "1", {"x": X}, {"y": Y}, 4, Batching(False, (), delay_us * 1000))
        model = scheduler(engine, spec)
        flushes, flush = 0, model._flush

        def counted():
            nonlocal flushes
            flushes += 1
            flush()

        model._flush = counted
        for _ in range(50):
            asked = Request({"x": np.ones((1, 2), np.float32)}, 1, "k", ("y",))
            await run(model.submit, asked)
            assert asked.started_ns - asked.received_ns >= delay_us * 1000
        assert flushes <= 50 * 3
        await model.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
