"""Sequence batching: the order of requests, the tensors that the model file gets, and the places of sequences."""

from __future__ import annotations

import asyncio
import itertools
import re

import numpy as np
import pytest
from onnx import helper

from opgate.service.core.checks import Limits, TensorInfo, check_inputs
from opgate.service.core.errors import Kind, ServingError
from opgate.service.core.request import Options, Request, Sequence, run
from tests.service.onnx_models import batching, double, save, value
from tests.service.stateful_models import accumulator

OLDEST = "oldest { max_candidate_sequences: 2 }"
DIRECT = "direct { }"
START, END = 1, 2


def request(spec, x, id, flags=0, timeout_us=0, outputs=("sum", "seen")):
    shape = (1, 1) if spec.batched else (1,)
    fit = check_inputs(spec, [TensorInfo("x", "FP32", shape)], Limits())
    place = Sequence(id, bool(flags & START), bool(flags & END)) if id else None
    options = Options(timeout_us, sequence=place)
    return Request({"x": np.full(shape, x, np.float32)}, fit.rows, fit.key, outputs, options=options)


class Model:
    def __init__(self, gateway, name="m"):
        self.model = gateway.find(name).model
        self.spec = self.model.spec

    def ask(self, *arguments, **options):
        return asyncio.ensure_future(run(self.model.submit, request(self.spec, *arguments, **options)))

    async def sum(self, *arguments):
        return float((await self.ask(*arguments))["sum"].reshape(-1)[0])


def serve(load, main):
    async def whole():
        gateway = load()
        await main(Model(gateway))
        await gateway.catalog.close()

    asyncio.run(whole())


async def kind_of(waiting):
    try:
        await waiting
    except ServingError as error:
        return error.kind, error.message
    return None, ""


@pytest.fixture(params=[OLDEST, DIRECT, ""])
def strategy(request):
    return request.param


@pytest.mark.parametrize("max_batch_size", [0, 4])
def test_a_sequence_keeps_its_state(repository, load, strategy, max_batch_size):
    accumulator(repository, "m", strategy, max_batch_size=max_batch_size)

    async def main(model):
        assert await model.sum(1, 7, START) == 1
        assert await model.sum(2, 7) == 3
        assert await model.sum(3, 7, END) == 6
        kind, text = await kind_of(model.ask(4, 7))
        assert kind is Kind.INVALID and "sequence 7 to model 'm' must specify the START flag" in text
        assert await model.sum(5, 7, START | END) == 5  # another sequence of the same id

    serve(load, main)


def test_the_controls(repository, load, strategy):
    accumulator(repository, "m", strategy)

    async def main(model):
        seen = [(await model.ask(x, 9, flags))["seen"].tolist() for x, flags in ((1, START), (2, 0), (3, END))]
        assert seen == [[[1, 1, -1, 1, 9]], [[2, 0, -1, 1, 9]], [[3, 0, 2, 1, 9]]]

    serve(load, main)


def test_requests_of_a_sequence_run_in_order(repository, load, strategy):
    """They come all at once, from several sequences."""
    accumulator(repository, "m", strategy, instances=2)

    async def main(model):
        asked = []
        for step, id in itertools.product(range(20), (5, 6, 7)):
            flags = (START if step == 0 else 0) | (END if step == 19 else 0)
            asked.append((id, step, model.ask(step * id, id, flags)))
        for id, step, waiting in asked:
            assert float((await waiting)["sum"][0, 0]) == id * step * (step + 1) / 2
        statistics = model.model.statistics
        assert statistics.success_count == statistics.inferences == 60
        assert statistics.held == statistics.pending == 0
        assert statistics.executions <= 60

    serve(load, main)


def test_sequences_wait_for_a_place(repository, load):
    accumulator(repository, "m", OLDEST)

    async def main(model):
        assert await model.sum(1, 1, START) == 1
        assert await model.sum(1, 2, START) == 1
        third = model.ask(1, 3, START)
        await asyncio.sleep(0.05)
        assert not third.done() and model.model.statistics.held == 1
        assert await model.sum(1, 1, END) == 2
        assert float((await third)["sum"][0, 0]) == 1

    serve(load, main)


def test_each_sequence_has_a_row(repository, load):
    """With `direct`, rows without a request are there but not ready."""
    accumulator(repository, "m", "direct { max_queue_delay_microseconds: 20000 minimum_slot_utilization: 1 }")

    async def main(model):
        for id in (11, 12, 13):
            assert await model.sum(1, id, START) == 1
        rows = []
        engine = model.model.executor.instances[0]
        submit = engine.submit

        def watch(part):
            rows.append({name: array.reshape(-1).tolist() for name, array in part.inputs.items()})
            submit(part)

        engine.submit = watch
        asked = [model.ask(5, 11), model.ask(7, 13)]
        sums = [float((await waiting)["sum"][0, 0]) for waiting in asked]
        assert sums == [6, 8]
        assert rows == [
            {
                "x": [5, 0, 7],
                "total": [1, 0, 1],
                "start": [0, 0, 0],
                "end": [-1, -1, -1],
                "ready": [True, False, True],
                "id": [11, 0, 13],
            }
        ]
        asked = [model.ask(1, id) for id in (11, 12, 13)]
        assert [float((await waiting)["sum"][0, 0]) for waiting in asked] == [7, 2, 9]
        assert len(rows) == 2  # all rows had a request, so nobody waited

    serve(load, main)


def test_an_idle_sequence_ends(repository, load, strategy, caplog):
    accumulator(repository, "m", strategy, idle_us=30_000)

    async def main(model):
        assert await model.sum(1, 7, START) == 1
        with caplog.at_level("INFO"):
            await asyncio.sleep(0.1)
        kind, text = await kind_of(model.ask(1, 7))
        assert kind is Kind.INVALID and "START flag" in text
        assert await model.sum(3, 7, START) == 3

    serve(load, main)
    assert "sequence 7 of model 'm' was idle and has ended" in caplog.text


def test_start_begins_anew(repository, load, strategy):
    accumulator(repository, "m", strategy)

    async def main(model):
        assert await model.sum(1, 5, START) == 1
        assert await model.sum(2, 5, START) == 2
        assert await model.sum(2, 5, END) == 4

    serve(load, main)


def test_an_id_that_the_model_does_not_take(repository, load, strategy):
    accumulator(repository, "m", strategy)

    async def main(model):
        kind, message = await kind_of(model.ask(1, "a", START))
        assert kind is Kind.INVALID and "'a': model 'm' takes UINT64" in message
        assert await model.sum(1, 5, START) == 1

    serve(load, main)


def test_mistakes(repository, load, strategy):
    accumulator(repository, "m", strategy)

    async def main(model):
        kind, text = await kind_of(model.ask(1, 0))
        assert kind is Kind.INVALID and "non-zero or non-empty correlation ID" in text
        kind, text = await kind_of(model.ask(1, 7))
        assert kind is Kind.INVALID and "START flag" in text
        two = request(model.spec, 1, 7, START)
        two.rows = 2
        kind, text = await kind_of(run(model.model.submit, two))
        assert kind is Kind.INVALID and "expected a batch size of 1, got 2" in text
        assert model.model.statistics.failures["INVALID"] == 3

    serve(load, main)


def test_a_client_that_leaves_lets_its_sequence_go_on(repository, load):
    accumulator(repository, "m", OLDEST)

    async def main(model):
        asked = [model.ask(x, 7, START if x == 1 else 0) for x in (1, 2, 3)]
        await asyncio.sleep(0)
        asked[1].cancel()  # it still waits
        assert float((await asked[2])["sum"][0, 0]) == 4
        assert float((await asked[0])["sum"][0, 0]) == 1
        # The first request leaves before it runs: the sequence has not begun.
        asked = [model.ask(1, 8, START), model.ask(2, 9, START), model.ask(3, 8, END)]
        asked[0].cancel()
        kind, text = await kind_of(asked[2])
        assert kind in (Kind.INVALID, None) and ("START flag" in text or kind is None)
        await asked[1]

    serve(load, main)


def test_the_initial_state(repository, load, strategy):
    initial = 'initial_state [ { name: "i" data_type: TYPE_FP32 dims: [ 1 ] data_file: "hundred" } ]'
    folder = accumulator(repository, "m", strategy, initial=initial)
    (folder / "initial_state").mkdir()
    (folder / "initial_state" / "hundred").write_bytes(np.array([100], np.float32).tobytes())

    async def main(model):
        assert await model.sum(1, 7, START) == 101
        assert await model.sum(1, 7) == 102
        assert await model.sum(1, 7, START) == 101

    serve(load, main)


@pytest.mark.parametrize("max_batch_size", [0, 4])
def test_a_state_without_dims_is_a_scalar(repository, load, strategy, max_batch_size):
    """With batches there is one for each row."""
    shape = ["batch"] if max_batch_size else []
    nodes = [
        helper.make_node("Add", ["total", "x"], ["new_total"]),
        helper.make_node("Identity", ["new_total"], ["sum"]),
    ]
    inputs, outputs = (
        [value(name, "FP32", shape) for name in names] for names in (("x", "total"), ("sum", "new_total"))
    )
    tensor = '{ name: "%s" data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ ] } }'
    state = 'state { input_name: "total" output_name: "new_total" data_type: TYPE_FP32 }'
    config = f"""max_batch_size: {max_batch_size} input [ {tensor % "x"} ] output [ {tensor % "sum"} ]
        sequence_batching {{ {strategy} {state} }}"""
    save(repository, "m", nodes, inputs, outputs, config=config)

    async def main(model):
        for flags, x, expected in ((START, 1, 1), (0, 2, 3), (END, 3, 6)):
            assert float((await model.ask(x, 7, flags, outputs=("sum",)))["sum"].reshape(-1)[0]) == expected

    serve(load, main)


@pytest.mark.parametrize(
    "initial",
    ["data_type: TYPE_FP32 dims: [ 1 ] zero_data: true", 'name: "i" data_type: TYPE_FP32 dims: [ 1 ]'],
)
def test_an_initial_state_has_a_name_and_data(repository, load, reason, strategy, initial):
    accumulator(repository, "m", strategy, initial=f"initial_state {{ {initial} }}")
    load()
    assert "expected a name, and zero_data or data_file" in reason("m")


def test_warm_up_and_golden_outputs(repository, load, reason, strategy):
    warm_up = 'model_warmup [ { name: "w" batch_size: 1 inputs { key: "x" value { data_type: TYPE_FP32 dims: [ 1 ] zero_data: true } } } ]'
    folder = accumulator(repository, "m", strategy, extra=warm_up)
    np.savez(folder / "golden.npz", x=np.full((1, 1), 4, np.float32), sum=np.full((1, 1), 4, np.float32))
    assert load().find("m")
    np.savez(folder / "golden.npz", x=np.full((1, 1), 4, np.float32), sum=np.full((1, 1), 5, np.float32))
    assert "output 'sum' differs" in reason("m")


def test_a_warm_up_may_list_controls_and_states(repository, load, reason, strategy):
    given = [("x", "FP32"), ("start", "INT32"), ("ready", "BOOL"), ("id", "UINT64"), ("total", "FP32")]
    inputs = " ".join(
        f'inputs {{ key: "{name}" value {{ data_type: TYPE_{kind} dims: [ 1 ] zero_data: true }} }}'
        for name, kind in given
    )
    accumulator(repository, "m", strategy, extra=f'model_warmup [ {{ name: "w" {inputs} }} ]')
    assert load().find("m")
    accumulator(repository, "n", strategy, extra=f'model_warmup [ {{ name: "w" {inputs.replace("start", "begin")} }} ]')
    assert "the model has no input 'begin'" in reason("n")


def test_clients_see_neither_controls_nor_states(repository, load):
    accumulator(repository, "m", DIRECT)
    spec = load().find("m").model.spec
    assert list(spec.inputs) == ["x"] and list(spec.outputs) == ["sum", "seen"]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('output_name: "new_total"', 'output_name: ""', "expected an input_name and an output_name"),
        ('input_name: "total"', 'input_name: "x"', "it is an input of clients as well"),
        ("dims: [ 1 ]  }", "dims: [ 0 ] }", "dims \\[0\\]"),
        ("int32_false_true: [ 0, 1 ]", "int32_false_true: [ 0 ]", "expected two values"),
        ("TYPE_UINT64", "TYPE_FP32", "expected data_type TYPE_UINT64"),
        ("CONTROL_SEQUENCE_END", "CONTROL_SEQUENCE_START", "the kind is given twice"),
        ("sequence_batching {", "sequence_batching { iterative_sequence: true", "iterative_sequence"),
        ('name: "start"', 'name: "begin"', "'begin' is not in the model file"),
        ('name: "x" data_type: TYPE_FP32', 'name: "x" allow_ragged_batch: true data_type: TYPE_FP32', "allow_ragged"),
        ("direct { }", "direct { minimum_slot_utilization: 2 }", "expected 0 to 1"),
        (
            "sequence_batching {",
            'parameters { key: "batch_by" value { string_value: "x" } } sequence_batching {',
            "batch_by",
        ),
        (
            "sequence_batching {",
            'batch_output { target_name: "sum" source_input: "x" } sequence_batching {',
            "batch_output",
        ),
        ("direct { }", "oldest { preferred_batch_size: 9 }", "expected 1 to max_batch_size 4"),
    ],
)
def test_configs_that_are_refused(repository, reason, old, new, expected):
    folder = accumulator(repository, "m", DIRECT)
    config = folder / "config.pbtxt"
    text = config.read_text()
    assert old in text
    config.write_text(text.replace(old, new, 1))
    assert re.search(expected, reason("m"))


def test_a_model_without_sequences_ignores_them(repository, load):
    double(repository, "m", config=batching())

    async def main():
        gateway = load()
        model = gateway.find("m").model
        asked = Request(
            {"x": np.ones((1, 4), np.float32)}, 1, "k", ("y",), options=Options(sequence=Sequence(5, False, False))
        )
        assert (await run(model.submit, asked))["y"][0, 0] == 2
        await gateway.catalog.close()

    asyncio.run(main())


def grower(repository, name, strategy):
    """Saves a model whose state is all x of its sequence: it grows."""
    from onnx import helper

    from tests.service.onnx_models import save, value

    nodes = [
        helper.make_node("Concat", ["seen", "x"], ["now"], axis=1),
        helper.make_node("ReduceSum", ["now", "axes"], ["y"], keepdims=1),
    ]
    axes = helper.make_tensor("axes", 7, [1], [1])
    inputs = [value("x", "FP32", ["batch", 1]), value("seen", "FP32", ["batch", "n"])]
    outputs = [value("y", "FP32", ["batch", 1]), value("now", "FP32", ["batch", "m"])]
    state = 'state [ { input_name: "seen" output_name: "now" data_type: TYPE_FP32 dims: [ -1 ] } ]'
    tensors = 'input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ] output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] } ]'
    config = f"max_batch_size: 4 {tensors} sequence_batching {{ {strategy} {state} }}"
    save(repository, name, nodes, inputs, outputs, initializers=[axes], config=config)


def test_a_state_may_grow(repository, load, strategy):
    """Sequences whose states have other shapes don't share a batch, and rows without a request fit."""
    grower(repository, "m", strategy)

    async def main(model):
        async def y(x, id, flags=0):
            return float((await model.ask(x, id, flags, outputs=("y",)))["y"][0, 0])

        assert await y(1, 1, START) == 1
        assert await y(2, 2, START) == 2
        assert await y(3, 2) == 5  # row 1 alone: row 0 has no request
        asked = [model.ask(10, id, outputs=("y",)) for id in (1, 2)]
        assert [float((await waiting)["y"][0, 0]) for waiting in asked] == [11, 15]

    serve(load, main)


def test_many_sequences_without_a_batch_dim(repository, load, strategy):
    accumulator(repository, "m", strategy, max_batch_size=0)

    async def main(model):
        asked = [model.ask(i, i, START | END) for i in range(1, 30)]
        assert [float((await waiting)["sum"][0]) for waiting in asked] == list(range(1, 30))

    serve(load, main)


def test_hundreds_of_requests_of_cheap_runs(repository, load, strategy):
    """Parts that end before their `submit` returns must not pile up on the stack."""
    accumulator(repository, "m", strategy, max_batch_size=4)

    async def main(model):
        for i in range(60):  # the runs become cheap enough for the event loop
            await model.sum(1, 7, START if i == 0 else 0)
        asked = [model.ask(1, 7) for _ in range(600)]
        assert [float((await waiting)["sum"][0, 0]) for waiting in asked] == list(range(61, 661))

    serve(load, main)


def test_a_bad_id_among_good_ones(repository, load, strategy):
    accumulator(repository, "m", strategy)

    async def main(model):
        first = model.ask(1, 1, START)
        waiting = [model.ask(1, 2, START), model.ask(1, "bad", START), model.ask(1, 3, START)]
        assert float((await first)["sum"][0, 0]) == 1
        assert (await kind_of(waiting[1]))[0] is Kind.INVALID
        for good in (waiting[0], waiting[2]):
            assert float((await asyncio.wait_for(good, 10))["sum"][0, 0]) == 1

    serve(load, main)


def test_a_start_that_leaves_takes_its_followers_along(repository, load, strategy):
    accumulator(repository, "m", strategy)

    async def main(model):
        assert await model.sum(1, 1, START) == 1
        # All of these are submitted before the first of them runs.
        asked = [model.ask(2, 1), model.ask(5, 1, START), model.ask(6, 1)]
        await asyncio.sleep(0)
        asked[1].cancel()
        assert float((await asked[0])["sum"][0, 0]) == 3
        kind, text = await kind_of(asked[2])
        # If the second START ran before its client left, the third request belongs to its sequence.
        if kind is None:
            assert float(asked[2].result()["sum"][0, 0]) == 11
        else:
            assert kind is Kind.INVALID and "START flag" in text
        assert await asyncio.wait_for(model.ask(1, 2, START | END), 10)

    serve(load, main)


def test_closing_does_not_wait_for_open_sequences(repository, load, strategy):
    accumulator(repository, "m", strategy, idle_us=60_000_000)

    async def main():
        gateway = load()
        model = Model(gateway)
        for id in (1, 2):
            assert await model.sum(1, id, START) == 1
        waiting = [model.ask(1, id, START | END) for id in (3, 4, 5)]  # some wait for a place
        await asyncio.sleep(0.01)
        await asyncio.wait_for(gateway.catalog.close(), 10)
        for asked in waiting:
            assert float((await asked)["sum"][0, 0]) == 1

    asyncio.run(main())


def test_sequences_that_left_before_their_turn_are_forgotten(repository, load):
    accumulator(repository, "m", OLDEST)

    async def main(model):
        for id in (1, 2):
            await model.sum(1, id, START)
        for id in range(10, 60):
            asked = model.ask(1, id, START)
            await asyncio.sleep(0)
            asked.cancel()
        await asyncio.sleep(0.01)
        assert len(model.model.executor._backlog) == 0
        assert model.model.statistics.held == 0

    serve(load, main)
