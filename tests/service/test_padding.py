"""Requests whose shapes differ share a batch, and each gets the answer that it would get alone."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import onnx
import pytest
from google.protobuf import text_format
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from onnx import helper
from tritonclient.grpc.model_config_pb2 import ModelConfig

from opgate.service.core.errors import Kind, ServingError
from opgate.service.execution.batch import assemble, padding, try_out
from opgate.service.repository.config import refuse_unsupported
from opgate.service.telemetry.metrics import Metrics
from tests.service.onnx_models import (
    PIPELINE_CONFIG,
    RAGGED_CONFIG,
    identity,
    pick,
    ragged_sum,
    save,
    value,
    write_config,
)
from tests.service.padded_models import SCATTERED, WAITS, config, parameters, pictures, scattered, scores, tokens
from tests.service.test_execution import errors_of, infer, make_request

SLOWLY = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def together(gateway, name, requests):
    """Sends requests at once. Returns their answers, or their errors."""

    async def main():
        sent = [infer(gateway, name, **inputs) for inputs in requests]
        return await asyncio.gather(*sent, return_exceptions=True)

    return asyncio.run(main())


def alone(gateway, name, inputs):
    """Runs a request in a batch of its own."""
    model = gateway.find(name).model
    request = make_request(model, inputs, gateway)
    try_out(model.executor.session, model.spec, request)
    return request.result


def executions(gateway, name):
    return gateway.find(name).model.statistics.executions


def row(*values):
    return {"tokens": np.array([values], np.int64)}


class TestPadding:
    def test_requests_of_different_lengths_share_a_batch(self, repository, load):
        tokens(repository)
        gateway = load()
        short, long, rows = row(1, 2), row(1, 2, 3, 4, 5), {"tokens": np.arange(6, dtype=np.int64).reshape(2, 3)}
        answers = together(gateway, "tokens", [short, long, rows, *[short] * 4])
        assert executions(gateway, "tokens") == 1
        assert answers[0]["longest"].tolist() == [[5]]
        assert [answer["total"].tolist() for answer in answers[:3]] == [[[3]], [[15]], [[3], [12]]]
        assert [answer["double"].tolist() for answer in answers[:3]] == [
            [[2, 4]], [[2, 4, 6, 8, 10]], [[0, 2, 4], [6, 8, 10]],
        ]  # fmt: skip
        assert answers[0]["double"].flags.c_contiguous

    def test_a_request_alone_is_not_padded_or_copied(self, repository, load):
        tokens(repository)
        gateway = load()
        model = gateway.find("tokens").model
        request = make_request(model, row(4, 5), gateway)
        feeds = assemble(model.spec, [request])
        assert feeds["tokens"] is request.inputs["tokens"]
        assert feeds["mask"].tolist() == [[1, 1]]
        assert alone(gateway, "tokens", row(4, 5))["longest"].tolist() == [[2]]

    def test_the_value_and_the_mask(self, repository, load):
        tokens(repository)
        gateway = load()
        model = gateway.find("tokens").model
        feeds = assemble(model.spec, [make_request(model, row(*values), gateway) for values in ((1,), (2, 3, 4))])
        assert feeds["tokens"].tolist() == [[1, 7, 7], [2, 3, 4]]
        assert feeds["mask"].tolist() == [[1, 0, 0], [1, 1, 1]]

    def test_an_empty_row_shares_a_batch(self, repository, load):
        tokens(repository)
        gateway = load()
        empty, other = together(gateway, "tokens", [{"tokens": np.zeros((1, 0), np.int64)}, row(5)])
        assert (empty["total"].tolist(), empty["double"].shape, other["double"].tolist()) == ([[0]], (1, 0), [[10]])

    def test_clients_see_no_mask(self, repository, load):
        tokens(repository)
        assert list(load().find("tokens").model.spec.inputs) == ["tokens"]

    @pytest.mark.parametrize(
        ("datatype", "value_text", "expected"),
        [("BYTES", "", ""), ("BYTES", "<pad>", "<pad>"), ("BOOL", "1", True), ("FP16", "-inf", -np.inf),
         ("UINT8", "255", 255), ("INT8", "-128", -128), ("FP64", "nan", np.nan), ("BF16", "-1.5", 0xBFC0),
         ("BF16", "", 0)],
    )  # fmt: skip
    def test_types(self, repository, load, datatype, value_text, expected):
        identity(repository, "m", datatype, ("batch", "n"), config(pad_inputs=f"x={value_text}"))
        gateway = load()
        model = gateway.find("m").model
        dtype = model.spec.inputs["x"].datatype.dtype
        first = np.array([["a", "é"]], object) if datatype == "BYTES" else np.ones((1, 2), dtype)
        second = first[:, :1]
        feeds = assemble(model.spec, [make_request(model, {"x": x}, gateway) for x in (first, second)])
        assert feeds["x"].dtype == dtype
        np.testing.assert_equal(feeds["x"][1, 1], np.array(expected, dtype).item())
        answers = together(gateway, "m", [{"x": first}, {"x": second}])
        assert [answer["y"].tolist() for answer in answers] == [first.tolist(), second.tolist()]
        assert executions(gateway, "m") == 1

    def test_outputs_that_follow_several_inputs(self, repository, load):
        scores(repository)
        gateway = load()
        asked = [
            {"a": np.ones((1, m), np.float32), "b": np.arange(n, dtype=np.float32)[None]} for m, n in ((2, 3), (4, 1))
        ]
        first, second = together(gateway, "scores", asked)
        assert first["scores"].tolist() == [[[0, 1, 2]] * 2]
        assert second["scores"].tolist() == [[[0]] * 4]
        assert executions(gateway, "scores") == 1

    def test_an_output_that_does_not_follow_is_an_error(self, repository, load):
        """The requests run alone, where nothing is padded, so they get their answers."""
        nodes = [helper.make_node("Concat", ["x", "x"], ["y"], axis=1)]
        text = config(pad_inputs="x", pad_outputs="y=x", pad_buckets="4")
        save(
            repository,
            "m",
            nodes,
            [value("x", "FP32", ["batch", "n"])],
            [value("y", "FP32", ["batch", "o"])],
            config=text,
        )
        gateway = load()
        (error,) = together(gateway, "m", [{"x": np.ones((1, 2), np.float32)}])
        assert error.kind is Kind.INTERNAL
        assert "output 'y' has shape [1, 8], expected 4 in dim 1, to which input 'x' was padded" in error.message

    def test_one_guilty_request_fails_alone(self, repository, load):
        text = config(pad_inputs="i=1")
        pick(repository, "m", text)
        table = repository / "m" / "1" / "model.onnx"
        model = onnx.load(table)
        for tensor in (*model.graph.input, *model.graph.output):
            tensor.type.tensor_type.shape.dim[1].dim_param = "n"
        onnx.save(model, table)
        gateway = load()

        async def main():
            sent = [np.array([[99 if n == 3 else 2] * n], np.int64) for n in (1, 2, 3, 4)]
            return await errors_of([infer(gateway, "m", i=i) for i in sent])

        assert [error and error.kind for error in asyncio.run(main())] == [None, None, Kind.INTERNAL, None]

    def test_a_bad_row_fails_only_its_request(self, repository, load):
        text = config(pad_inputs="tokens=5", pad_masks="mask=tokens", row_status_output="total")
        tokens(repository, text=text)
        gateway = load()
        asked = [row(1, -1), row(4), {"tokens": np.array([[2, -1, -1], [3, -2, -1]])}, row(0, 0, 0, 0)]
        good, bad, rows, zeros = together(gateway, "tokens", asked)
        assert "status 4" in bad.message
        assert [answer["double"].shape for answer in (good, rows, zeros)] == [(1, 2), (2, 3), (1, 4)]
        assert executions(gateway, "tokens") == 1

    def test_costs_are_known_by_the_padded_size(self, repository, load):
        """A batch of short requests may run on the event loop, and one with a long request among them may not."""
        tokens(repository)
        gateway = load()
        model = gateway.find("tokens").model

        def curve(*lengths):
            return model.executor._curve([make_request(model, row(*range(n)), gateway) for n in lengths])

        assert curve(22, 22, 22) is curve(23, 22, 21) is not curve(1, 1, 64)

    def test_a_batch_that_padding_makes_too_large_runs_one_by_one(self, repository, load):
        pictures(repository)
        gateway = load(max_elements=2000)
        wide, high = ({"picture": np.ones((1, 2, *size), np.float32)} for size in ((1, 500), (500, 1)))
        answers = together(gateway, "pictures", [wide, high])
        assert [answer["mean"].tolist() for answer in answers] == [[[1, 1]]] * 2
        assert executions(gateway, "pictures") == 2
        gateway = load()
        assert [answer["mean"].tolist() for answer in together(gateway, "pictures", [wide, high])] == [[[1, 1]]] * 2
        assert executions(gateway, "pictures") == 1

    def test_a_row_of_a_wrong_request_is_refused_before_padding_could_hide_it(self, repository, load):
        nodes = [helper.make_node("Add", ["a", "b"], ["y"])]
        inputs = [value(name, "FP32", ["batch", "n"]) for name in ("a", "b")]
        save(repository, "m", nodes, inputs, [value("y", "FP32", ["batch", "n"])], config=config(pad_inputs="a,b"))
        (error,) = together(load(), "m", [{"a": np.ones((1, 3), np.float32), "b": np.ones((1, 5), np.float32)}])
        assert error.kind is Kind.INVALID
        assert "inputs of model 'm' must agree: dim 1 of 'a' has 3, dim 1 of 'b' has 5" in error.message

    def test_a_pipeline_pads(self, repository, load):
        text = PIPELINE_CONFIG.replace("dims: [ 4 ]", "dims: [ -1 ]")
        write_config(repository, "p", text)
        for name in ("double", "again"):
            identity(repository, name, "FP32", ("batch", "n"), config(pad_inputs="x"))
        gateway = load()
        answers = together(gateway, "p", [{"in": np.full((1, n), n, np.float32)} for n in (1, 2, 3)])
        assert [answer["out"].tolist() for answer in answers] == [[[1]], [[2, 2]], [[3, 3, 3]]]
        assert executions(gateway, "again") == 1

    def test_padding_is_counted(self, repository, load):
        tokens(repository)
        gateway = load()
        together(gateway, "tokens", [row(1, 2), row(1, 2, 3, 4, 5), {"tokens": np.ones((2, 3), np.int64)}])
        text = Metrics(gateway.catalog.models).text().decode()
        labels = '{model="tokens",version="1"}'
        assert f"opgate_padded_elements_total{labels} 13.0\n" in text
        assert f"opgate_padding_elements_total{labels} 7.0\n" in text

    @given(
        arrays.arrays(np.int64, st.tuples(st.just(6), st.integers(1, 3), st.just(9)), elements=st.integers(-99, 99)),
        st.lists(st.integers(0, 9), min_size=1, max_size=6),
        st.sampled_from(["", "2,4", "3"]),
    )
    @SLOWLY
    def test_every_answer_is_that_of_the_request_alone(self, load_from, data, lengths, buckets):
        more = {"pad_buckets": buckets} if buckets else {}
        gateway = load_from(("tokens", buckets), lambda folder: tokens(
            folder, text=config("dynamic_batching { }", 32, pad_inputs="tokens=3", pad_masks="mask=tokens", **more)
        ))  # fmt: skip
        asked = [{"tokens": np.ascontiguousarray(data[i, :, :n])} for i, n in enumerate(lengths)]
        for answer, inputs in zip(together(gateway, "tokens", asked), asked, strict=True):
            for name, array in alone(gateway, "tokens", inputs).items():
                if name != "longest":
                    np.testing.assert_array_equal(answer[name], array)

    @given(
        st.lists(st.tuples(st.integers(1, 2), st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=6),
        st.sampled_from(["", "2,4"]),
    )
    @SLOWLY
    def test_every_picture_is_answered_as_alone(self, load_from, shapes, buckets):
        more = {"pad_buckets": buckets} if buckets else {}
        gateway = load_from(("pictures", buckets), lambda folder: pictures(
            folder, text=config("dynamic_batching { }", 32, pad_inputs="picture=9", pad_masks="mask=picture", **more)
        ))  # fmt: skip
        asked = [{"picture": np.arange(n * 2 * h * w, dtype=np.float32).reshape(n, 2, h, w)} for n, h, w in shapes]
        for answer, inputs in zip(together(gateway, "pictures", asked), asked, strict=True):
            expected = alone(gateway, "pictures", inputs)
            np.testing.assert_array_equal(answer["negated"], -inputs["picture"])
            np.testing.assert_allclose(answer["mean"], expected["mean"], rtol=1e-5)
            np.testing.assert_allclose(answer["mean"], inputs["picture"].mean(axis=(2, 3)), rtol=1e-5)


@pytest.fixture
def load_from(tmp_path_factory, repository, load):
    """A function that returns a gateway of a model, the same for the same key."""
    known = {}

    def make(key, write):
        if key not in known:
            folder = tmp_path_factory.mktemp("models")
            write(folder)
            known[key] = load(model_repository=folder)
        return known[key]

    return make


class TestBuckets:
    def test_sizes_are_rounded_up_and_only_equal_ones_share(self, repository, load):
        tokens(repository, text=config(pad_inputs="tokens", pad_masks="mask=tokens", pad_buckets="4,8"))
        gateway = load()
        answers = together(gateway, "tokens", [row(*range(n)) for n in (1, 4, 5, 8, 9, 9, 10)])
        assert [answer["longest"].item() for answer in answers] == [4, 4, 8, 8, 9, 9, 10]
        assert [answer["double"].shape[1] for answer in answers] == [1, 4, 5, 8, 9, 9, 10]
        assert executions(gateway, "tokens") == 4

    def test_a_request_alone_is_padded_and_counted(self, repository, load):
        tokens(repository, text=config("", pad_inputs="tokens", pad_masks="mask=tokens", pad_buckets="4,8"))
        gateway = load()
        (answer,) = together(gateway, "tokens", [row(1, 2, 3)])
        assert (answer["longest"].tolist(), answer["total"].tolist()) == ([[4]], [[6]])
        statistics = gateway.find("tokens").model.statistics
        assert (statistics.padded_elements, statistics.padding_elements) == (3, 1)

    def test_a_request_that_rounding_makes_too_large_is_refused(self, repository, load):
        text = config(pad_inputs="picture", pad_masks="mask=picture", pad_buckets="1000")
        pictures(repository, text=text)
        gateway = load(max_elements=100_000)
        (error,) = together(gateway, "pictures", [{"picture": np.ones((1, 2, 1, 1), np.float32)}])
        assert error.kind is Kind.TOO_LARGE
        assert "2000000 elements are over the limit of 100000 in shape [1, 2, 1000, 1000]" in error.message


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"pad_masks": "mask=tokens"}, "parameter 'pad_masks' without 'pad_inputs'"),
        ({"pad_inputs": "nope"}, "parameter 'pad_inputs': 'nope' is not an input"),
        ({"pad_inputs": ""}, "a name is empty"),
        ({"pad_inputs": "tokens,tokens"}, "given twice"),
        ({"pad_inputs": "tokens=x"}, "expected a value of TYPE_INT64, got 'x'"),
        ({"pad_inputs": "tokens=99999999999999999999"}, "expected a value of TYPE_INT64"),
        ({"pad_inputs": "tokens"}, "input 'mask' must be padded too"),
        ({"pad_inputs": "tokens", "pad_masks": "mask=tokens,nope=tokens"}, "'nope' is not in the model file"),
        ({"pad_inputs": "tokens", "pad_masks": "mask=nope"}, "expected one of tokens of pad_inputs, got 'nope'"),
        ({"pad_inputs": "tokens", "pad_masks": "mask=tokens", "pad_outputs": "no=tokens"}, "'no' is not an output"),
        ({"pad_inputs": "tokens", "pad_masks": "mask=tokens", "pad_outputs": "double=x"}, "expected inputs of pad_inputs"),
        ({"pad_inputs": "tokens", "pad_masks": "mask=tokens", "pad_outputs": "total=tokens"}, "has 0 variable dims"),
        ({"pad_inputs": "tokens", "pad_masks": "mask=tokens", "pad_buckets": "8,4"}, "expected ascending sizes"),
        ({"pad_inputs": "tokens", "pad_masks": "mask=tokens", "pad_buckets": "0"}, "expected ascending sizes"),
        ({"pad_inputs": "tokens", "pad_masks": "mask=tokens", "pad_buckets": "a"}, "expected ascending sizes"),
    ],
)  # fmt: skip
def test_configs_that_are_refused(repository, reason, values, expected):
    tokens(repository, "m", config(**values))
    assert expected in reason("m")


def test_a_mask_that_the_config_has_as_an_input_is_refused(repository, reason):
    stated = " ".join(
        f'input [ {{ name: "{name}" data_type: TYPE_INT64 dims: [ -1 ] }} ]' for name in ("tokens", "mask")
    )
    tokens(repository, "m", config(f"{WAITS} {stated}", pad_inputs="tokens", pad_masks="mask=tokens"))
    assert "'mask' is an input of the config as well: remove it there" in reason("m")


def test_an_output_with_a_variable_dim_of_its_own_must_be_named(repository, reason, load):
    """Clients would get the padding of others. An output that is named alone has its size from elsewhere."""
    padded = {"pad_inputs": "tokens=7", "pad_masks": "mask=tokens"}
    tokens(repository, "m", config(**padded), out_dim="other")
    assert "lacks output 'double': no padded input has its variable dim 'other'" in reason("m")
    tokens(repository, "m", config(**padded, pad_outputs="double=tokens"), out_dim="other")
    short, _ = together(load(), "m", [row(1), row(1, 2, 3)])
    assert short["double"].tolist() == [[2]]
    tokens(repository, "m", config(**padded, pad_outputs="double"), out_dim="other")
    short, _ = together(load(), "m", [row(1), row(1, 2, 3)])
    assert short["double"].tolist() == [[2, 14, 14]]


@pytest.mark.parametrize(
    ("datatype", "value_text"),
    [
        ("FP16", "1e6"),
        ("FP32", "1e39"),
        ("BF16", "1.001"),
        ("BF16", "1e39"),
        ("BOOL", "2"),
        ("UINT8", "-1"),
        ("INT8", "1.5"),
    ],
)
def test_values_that_a_type_does_not_have(repository, reason, datatype, value_text):
    identity(repository, "m", datatype, ("batch", "n"), config(pad_inputs=f"x={value_text}"))
    assert f"'x': expected a value of TYPE_{datatype}, got '{value_text}'" in reason("m")


@pytest.mark.parametrize(
    ("datatype", "shape", "expected"),
    [
        ("FP32", ["batch"], "expected 2 dims, the batch and the variable dims of 'x', the model file has 1"),
        ("BYTES", ["batch", "n"], "the model file has tensor(string), and a mask has numbers"),
    ],
)
def test_masks_that_do_not_fit(repository, reason, datatype, shape, expected):
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    inputs = [value("x", "FP32", ["batch", "n"]), value("m", datatype, shape)]
    outputs = [value("y", "FP32", ["batch", "n"])]
    save(repository, "m", nodes, inputs, outputs, config=config(pad_inputs="x", pad_masks="m=x"))
    assert expected in reason("m")


def test_a_ragged_input_is_not_padded_too(repository, reason):
    ragged_sum(repository, "m", RAGGED_CONFIG + parameters(pad_inputs="data"))
    assert "'data' is allow_ragged_batch, which can't be padded" in reason("m")


def test_a_model_that_triton_runs_takes_none_of_the_parameters():
    text = config(pad_inputs="x", pad_masks="m=x", pad_outputs="y=x", pad_buckets="4", batch_by="x")
    with pytest.raises(ServingError) as caught:
        refuse_unsupported(text_format.Parse(text, ModelConfig()), remote=True)
    for key in ("pad_inputs", "pad_masks", "pad_outputs", "pad_buckets", "batch_by"):
        assert f"parameter '{key}' of a model that Triton runs" in caught.value.message


def test_padding_needs_a_batch_and_a_variable_dim(repository, reason):
    identity(repository, "a", "FP32", ("batch", 4), config(pad_inputs="x"))
    identity(repository, "b", "FP32", ("n",), config("", 0, pad_inputs="x"))
    pictures(repository, "c", config(pad_inputs="picture,mask", pad_masks="mask=picture"))
    assert "'x' has no variable dim: its dims are [4]" in reason("a")
    assert "max_batch_size is 0, there is no batch" in reason("b")
    assert "'mask' is not an input, the inputs are picture" in reason("c")


class TestScatter:
    def test_each_request_gets_the_part_in_the_shape_of_its_input(self, repository, load):
        scattered(repository)
        gateway = load()
        asked = [np.arange(r * n * 2, dtype=np.float32).reshape(r, n, 2) for r, n in ((1, 3), (2, 1), (1, 0), (4, 2))]
        answers = together(gateway, "scattered", [{"x": x} for x in asked])
        for x, answer in zip(asked, answers, strict=True):
            np.testing.assert_array_equal(answer["y"], 2 * x)
            assert answer["sizes"].tolist() == [[x.shape[1], 2]] * len(x)
            assert list(answer) == ["y", "sizes"]
        assert executions(gateway, "scattered") == 1

    def test_an_output_of_another_size_is_an_error(self, repository, load):
        nodes = [
            helper.make_node("Concat", ["x", "x"], ["y"], axis=0),
            helper.make_node("Identity", ["shape"], ["sizes"]),
        ]
        folder = scattered(repository)
        inputs = [value("x", "FP32", ["total"]), value("shape", "INT32", ["batch", 2])]
        outputs = [value("y", "FP32", ["other"]), value("sizes", "INT32", ["batch", 2])]
        save(repository, folder.name, nodes, inputs, outputs)
        (error,) = together(load(), "scattered", [{"x": np.ones((1, 3, 2), np.float32)}])
        assert "output 'y' has shape [12], expected 6 elements for input 'x'" in error.message

    @pytest.mark.parametrize(
        ("old", "new", "expected"),
        [
            ('target_name: "y"', 'target_name: "z"', "batch_output 'z' is not an output"),
            ('target_name: "y" source_input: "x"', 'target_name: "y" source_input: "z"', "'z' is not an input"),
            ('target_name: "y" source_input: "x"', 'target_name: "y"', "expected a target_name and one source_input"),
            ('"y" data_type: TYPE_FP32 dims: [ -1, 2 ]', '"y" data_type: TYPE_FP32 dims: [ 1, 1, -1 ]', "has only [-1, 2]"),
            ('batch_output [', 'batch_output [ { target_name: "sizes" source_input: "x" },', "expected a flat tensor of rank 1"),
        ],
    )  # fmt: skip
    def test_configs_that_are_refused(self, repository, reason, old, new, expected):
        assert SCATTERED.count(old) == 1
        scattered(repository, "m", SCATTERED.replace(old, new))
        assert expected in reason("m")


def test_the_functions_agree_on_what_padding_adds(repository, load):
    tokens(repository)
    gateway = load()
    model = gateway.find("tokens").model
    requests = [make_request(model, row(*range(n)), gateway) for n in (1, 2, 6)]
    assert padding(model.spec, requests) == (9, 9)
    assert padding(replace(model.spec, padding=None), requests) == (0, 0)
    assert {request.key for request in requests} == {("tokens",)}
    with pytest.raises(ServingError, match="is missing"):
        make_request(model, {}, gateway)
