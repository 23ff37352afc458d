"""Priorities, queue policies, the order of answers, the latency limit and the rate limiter, as tritonclient sees them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.request

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as http_client
import tritonclient.http.aio as http_aio
from tritonclient.utils import InferenceServerException

from tests.service.onnx_models import batching, slow
from tests.system.running import running

ENDLESS = 1 << 40
# Some hundredths of a second, so that answers reach a client in the order in which they were sent.
A_WHILE = 60_000

LEVELS = """dynamic_batching { priority_levels: 3 default_priority_level: 2
  priority_queue_policy { key: 3 value { max_queue_size: 2 } } }"""
PUTS_OFF = "dynamic_batching { default_queue_policy { timeout_action: DELAY allow_timeout_override: true } }"
REJECTS = """dynamic_batching {
  default_queue_policy { default_timeout_microseconds: 1000000 allow_timeout_override: true } }"""
ORDERED = "dynamic_batching { preserve_ordering: true }"
IN_TIME = 'parameters { key: "max_latency_ms" value { string_value: "300" } }'
RESOURCE = (
    """instance_group [ { count: 1 kind: KIND_CPU rate_limiter { resources [ { name: "memory" count: 2 } ] } } ]"""
)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repository")
    slow(folder, "levels", batching(LEVELS, 1))
    slow(folder, "puts_off", batching(PUTS_OFF, 1))
    slow(folder, "rejects", batching(REJECTS, 1))
    slow(folder, "ordered", batching(ORDERED, 1, "instance_group [ { count: 2 kind: KIND_CPU } ]"))
    slow(folder, "in_time", batching("dynamic_batching { }", 1, IN_TIME))
    for name in ("first", "second"):
        slow(folder, name, batching("", 1, RESOURCE))
    env = {"OPGATE_RATE_LIMIT_RESOURCE": "Memory:3", "OPGATE_INLINE_LIMIT_US": "0"}
    with running(folder, "--rate-limit", "execution_count", env=env) as started:
        yield started


class Client:
    """tritonclient's asyncio client of one protocol, which notes the values of the answers as they come."""

    def __init__(self, protocol, server):
        self.server = server
        self.tensors = http_client if protocol == "http" else grpc_client
        module = http_aio if protocol == "http" else grpc_aio
        self.client = module.InferenceServerClient(f"127.0.0.1:{server.http if protocol == 'http' else server.grpc}")
        self.ended = []

    async def infer(self, model, value, turns=A_WHILE, **more):
        arrays = {"x": np.array([[value]], np.float32), "turns": np.array([[turns]], np.int64)}
        inputs = []
        for name, array in arrays.items():
            inputs.append(self.tensors.InferInput(name, list(array.shape), "FP32" if name == "x" else "INT64"))
            inputs[-1].set_data_from_numpy(array)
        try:
            answer = await self.client.infer(model, inputs, **more)
            self.ended.append(float(answer.as_numpy("y")[0, 0]))
        except InferenceServerException as error:
            self.ended.append(error.status().removeprefix("StatusCode."))
            return error.message()
        return None

    async def send(self, model, *asked):
        """Sends requests one after the other: each is there before the next. Returns their tasks."""
        tasks = []
        for value, more in asked:
            before = self.arrived(model)
            tasks.append(asyncio.create_task(self.infer(model, value, **more)))
            await until(lambda before=before: self.arrived(model) > before)
        return tasks

    async def begin(self, model, turns):
        """Sends a request, and returns its task when it is the only one under way."""
        await until(lambda: "opgate_running_requests 0.0" in self.server.get("/metrics"))  # of tests before this one
        task = asyncio.create_task(self.infer(model, 0, turns))
        await until(lambda: "opgate_running_requests 1.0" in self.server.get("/metrics"))
        return task

    def arrived(self, model):
        """Returns how many requests have come that wait, run or have ended."""
        text = self.server.get("/metrics")
        labels = f'{{model="{model}"'
        names = ("nv_inference_pending_request_count", "nv_inference_request_success", "nv_inference_request_failure")
        counts = [
            float(line.rsplit(" ", 1)[1])
            for line in text.splitlines()
            if line.startswith(tuple(n + labels for n in names))
        ]
        return sum(counts)

    @contextlib.asynccontextmanager
    async def blocked(self, model):
        """Keeps the instance of a model busy."""
        blocker = await self.begin(model, ENDLESS)
        try:
            yield
        finally:
            blocker.cancel()
            await asyncio.gather(blocker, return_exceptions=True)


async def until(condition, seconds=10):
    for _ in range(seconds * 100):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise TimeoutError


@pytest.fixture(params=["http", "grpc"])
def run(request, server):
    """A function that runs a coroutine function with a client of the protocol, and returns what that notes."""

    def go(main):
        async def with_client():
            client = Client(request.param, server)
            async with client.client:
                await main(client)
                return client.ended

        return asyncio.run(asyncio.wait_for(with_client(), 60))

    return go


FULL = {"http": "503", "grpc": "UNAVAILABLE"}
LATE = {"http": "503", "grpc": "UNAVAILABLE"}


def test_priorities(run):
    async def main(client):
        async with client.blocked("levels"):
            asked = [(30, 3), (20, 2), (10, 1), (31, 3), (21, 0), (22, 9), (11, 1)]
            tasks = await client.send("levels", *((value, {"priority": level}) for value, level in asked))
            text = await client.infer("levels", 32, priority=3)
            assert text == "the queue of model 'levels' is full: 2 requests wait"
        await asyncio.gather(*tasks)

    ended = run(main)
    assert ended[0] in FULL.values() and ended[1:] == [10, 11, 20, 21, 22, 30, 31]


def test_a_request_whose_time_is_over_is_put_off(run):
    async def main(client):
        async with client.blocked("puts_off"):
            tasks = await client.send("puts_off", (1, {"timeout": 1000}), (2, {}), (3, {"timeout": 10**9}))
            await asyncio.sleep(0.05)
            assert client.ended == []
        await asyncio.gather(*tasks)

    assert run(main) == [2, 3, 1]


@pytest.mark.parametrize("timeout", [None, 50_000, 10**9])
def test_a_request_may_shorten_the_timeout(run, timeout):
    """Without one of its own, or with a longer one, that of the config holds."""

    async def main(client):
        async with client.blocked("rejects"):
            text = await client.infer("rejects", 1, timeout=timeout)
            assert "the request's timeout ran out after" in text
            waited = int(text.split()[-2])
            assert (waited < 900_000) == (timeout == 50_000)

    # At the time of the config the run before it ends, too, and this request may begin.
    in_run = () if timeout == 50_000 else ("504", "DEADLINE_EXCEEDED")
    assert run(main)[0] in (*LATE.values(), *in_run)


def test_answers_come_in_the_order_of_the_requests(run):
    async def main(client):
        tasks = [await client.begin("ordered", 400_000)]
        before = client.server.metric("nv_inference_exec_count", "ordered")
        for value in (1, 2):
            tasks.append(asyncio.create_task(client.infer("ordered", value, 10)))
            await until(lambda done=before + value: client.server.metric("nv_inference_exec_count", "ordered") >= done)
        # The other instance has run them.
        assert client.ended == [] and client.server.metric("nv_inference_pending_request_count", "ordered") == 0
        await asyncio.gather(*tasks)

    ended = run(main)
    assert ended[0] == 0 and sorted(ended) == [0, 1, 2]


def test_what_can_not_be_in_time_is_refused(run, server):
    """The gateway learns that a run takes a while, and then many come at once."""

    async def main(client):
        for value in range(8):
            await client.infer("in_time", value)
        assert client.ended == list(range(8))
        client.ended.clear()
        texts = await asyncio.gather(*(client.infer("in_time", value) for value in range(40)))
        refused = [text for text in texts if text is not None]
        assert refused and all("the limit is 300 ms (max_latency_ms)" in text for text in refused)
        assert 0 < len(refused) < 40
        client.ended.clear()
        await client.infer("in_time", 7)  # the model is idle again

    assert run(main) == [7]
    lines = [line for line in server.get("/metrics").splitlines() if 'model="in_time"' in line and "failure" in line]
    assert any('reason="OVERLOADED"' in line for line in lines)


def test_a_refused_request_says_when_to_try_again(server):
    """Over HTTP, while a run that was estimated to be short takes very long."""

    async def main():
        client = Client("http", server)
        async with client.client:
            for value in range(8):
                await client.infer("in_time", value, 1)
            async with client.blocked("in_time"):
                await asyncio.sleep(0.6)
                return await asyncio.to_thread(post)

    def post():
        tensors = [("x", "FP32", [1.0]), ("turns", "INT64", [1])]
        body = {"inputs": [{"name": n, "datatype": t, "shape": [1, 1], "data": d} for n, t, d in tensors]}
        request = urllib.request.Request(f"{server.url}/v2/models/in_time/infer", json.dumps(body).encode())
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request, timeout=10)
        return caught.value.code, caught.value.headers["Retry-After"], json.loads(caught.value.read())["error"]

    code, retry_after, text = asyncio.run(asyncio.wait_for(main(), 60))
    assert (code, retry_after) == (503, "1") and "the answer of model 'in_time' would take about" in text


def test_models_wait_for_resources_of_others(run, server):
    """Two copies each, and there are three."""

    async def main(client):
        async with client.blocked("first"):
            tasks = await client.send("second", (1, {}))
            await asyncio.sleep(0.1)
            assert client.ended == [] and server.metric("nv_inference_pending_request_count", "second") == 1
        await asyncio.gather(*tasks)

    assert run(main) == [1]


def test_the_config_is_shown_as_it_is(server):
    config = json.loads(server.get("/v2/models/levels/config"))
    assert config["dynamic_batching"]["priority_levels"] == 3
    assert config["dynamic_batching"]["priority_queue_policy"]["3"]["max_queue_size"] == 2
    group = json.loads(server.get("/v2/models/first/config"))["instance_group"][0]
    assert group["rate_limiter"]["resources"] == [{"name": "memory", "global": False, "count": 2}]
