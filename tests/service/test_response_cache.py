"""The response cache: what is taken for the same request, what it holds, and what it counts."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from opgate.service.core.request import Options, Request, Sequence, run
from opgate.service.execution.response_cache import ResponseCache, _copied, digest
from tests.service.onnx_models import batching, double, identity, write_config
from tests.service.scheduling import until
from tests.system.conftest import PIPELINE

CACHE = "response_cache { enable: true }"


def ask(model, array, outputs=("y",)):
    return asyncio.ensure_future(run(model.submit, Request({"x": array}, len(array), "k", outputs)))


def serve(load, main, **settings):
    async def whole():
        gateway = load(**settings)
        await main(gateway)
        await gateway.catalog.close()
        assert gateway.catalog.cache.bytes == len(gateway.catalog.cache) == 0

    asyncio.run(whole())


@pytest.mark.parametrize("elements", [4, 300_000])  # the inputs of the latter are read on a thread
def test_the_same_request_runs_once(repository, load, elements):
    double(repository, "m", config=f"max_batch_size: 4 {CACHE}", shape=("batch", "n"))

    async def main(gateway):
        model = gateway.find("m").model
        x = np.arange(elements, dtype=np.float32)[None]
        first = await ask(model, x)
        await until(lambda: len(gateway.catalog.cache) == 1)  # a large result is copied on a thread
        again = await ask(model, x.copy())
        np.testing.assert_array_equal(first["y"], 2 * x)
        np.testing.assert_array_equal(again["y"], 2 * x)
        other = await ask(model, x + 1)
        np.testing.assert_array_equal(other["y"], 2 * (x + 1))
        statistics = model.statistics
        assert (statistics.executions, statistics.cache_hits, statistics.cache_misses) == (2, 1, 2)
        assert statistics.success_count == 3 and statistics.inferences == 2

    serve(load, main)


def test_strings(repository, load):
    identity(repository, "m", "BYTES", config=batching() + CACHE)

    async def main(gateway):
        model = gateway.find("m").model
        # The lengths of the strings count, not only the characters one after the other.
        for texts in (["a", "bc", "", "d"], ["ab", "c", "", "d"], ["a", "bc", "", "d"]):
            result = await ask(model, np.array([texts], np.object_))
            assert result["y"].tolist() == [texts]
        assert (model.statistics.cache_hits, model.statistics.cache_misses) == (1, 2)

    serve(load, main)


def test_ensembles(repository, load):
    double(repository, "double", config=batching(max_batch_size=8))
    write_config(repository, "pipeline", PIPELINE.replace("max_batch_size", f"{CACHE} max_batch_size", 1))

    async def main(gateway):
        model = gateway.find("pipeline").model
        for _ in range(3):
            assert (await ask(model, np.ones((1, 4), np.float32)))["y"].tolist() == [[4] * 4]
        assert gateway.find("double").model.statistics.success_count == 2

    serve(load, main)


def test_errors_are_not_kept(repository, load):
    from tests.service.onnx_models import pick

    pick(repository, "m", batching() + CACHE)

    async def main(gateway):
        model = gateway.find("m").model
        for _ in range(2):
            with pytest.raises(Exception, match="out of data bounds"):
                await asyncio.ensure_future(run(model.submit, Request({"i": np.array([[99]])}, 1, "k", ("y",))))
        assert (model.statistics.cache_hits, len(gateway.catalog.cache)) == (0, 0)

    serve(load, main)


def test_a_cache_of_no_bytes(repository, load):
    double(repository, "m", config=batching() + CACHE)

    async def main(gateway):
        model = gateway.find("m").model
        for _ in range(2):
            await ask(model, np.ones((1, 4), np.float32))
        assert model.statistics.cache_hits == 0

    serve(load, main, response_cache_byte_size=0)


def test_the_least_used_makes_room():
    cache = ResponseCache(4 * 1512)
    owner, other = object(), object()
    results = {bytes([i]): {"y": np.full(250, i, np.float32)} for i in range(6)}
    for key in list(results)[:4]:
        cache.put(owner, key, results[key])
    assert cache.get(owner, b"\x00") is not None
    cache.put(other, b"\x04", results[b"\x04"])
    assert cache.evictions == 1
    assert cache.get(owner, b"\x01") is None and cache.get(owner, b"\x00") is not None
    assert cache.get(owner, b"\x04") is None and cache.get(other, b"\x04")["y"][0] == 4
    cache.put(owner, b"\x05", {"y": np.zeros(10_000, np.float32)})
    assert cache.get(owner, b"\x05") is None and cache.bytes <= cache.max_bytes
    cache.forget(owner)
    assert len(cache) == 1
    cache.forget(other)
    assert cache.bytes == 0


def test_a_result_is_a_copy_that_nobody_changes():
    array = np.zeros(4)
    kept = _copied({"y": array})["y"]
    array[0] = 1
    assert kept[0] == 0
    with pytest.raises(ValueError, match="read-only"):
        kept[0] = 1


def test_what_makes_two_requests_differ():
    def of(array, name="x", outputs=("y",)):
        return digest(Request({name: array}, 1, "k", outputs))

    base = np.arange(4, dtype=np.float32).reshape(1, 4)
    different = [
        of(base),
        of(base.reshape(2, 2)),
        of(base.view(np.int32)),
        of(base, name="z"),
        of(base, outputs=("z",)),
        of(base, outputs=("y", "z")),
        of(base + 1),
        of(np.empty((0, 4), np.float32)),
        of(np.array([["a"]], np.object_)),
        of(np.array([["a", ""]], np.object_)),
    ]
    assert len(set(different)) == len(different)
    assert of(base) == of(np.asfortranarray(base.copy()))


def test_what_a_model_in_python_sees_makes_two_requests_differ():
    """Its requests have an id, parameters and a place in a sequence. For other models these make no difference."""

    def of(id="", whole=True, **options):
        request = Request({"x": np.zeros((1, 4), np.float32)}, 1, "k", ("y",))
        request.id, request.options = id, Options(**options)
        return digest(request, whole)

    different = [
        of(),
        of("1"),
        of("2"),
        of(priority=1),
        of(timeout_us=5),
        of(parameters={"a": 1}),
        of(parameters={"a": "1"}),
        of(parameters={"a": True}),
        of(parameters={"a": 1.0}),
        of(parameters={"a": 1, "b": 1}),
        of(parameters={"a', 1), ('b": 1}),
        of(sequence=Sequence(1, False, False)),
        of(sequence=Sequence("1", False, False)),
        of(sequence=Sequence(1, True, False)),
        of(sequence=Sequence(1, False, True)),
    ]
    assert len(set(different)) == len(different)
    assert of(parameters={"a": 1, "b": 2}) == of(parameters={"b": 2, "a": 1})
    assert of("1", whole=False, priority=1) == of(whole=False)
