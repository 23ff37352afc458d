"""config.pbtxt: how the gateway reads it, completes it, and refuses by name the fields that it doesn't support."""

from __future__ import annotations

import asyncio
import re
import time

import numpy as np
import onnx
import pytest
from onnx import helper

from opgate.service.core.errors import ServingError
from opgate.service.core.triton_messages import ModelConfig
from opgate.service.repository.catalog import Catalog
from opgate.service.repository.config import ConfigError, read_config, states_max_batch_size
from opgate.service.repository.loader import load_config
from opgate.service.repository.overrides import Override
from opgate.service.repository.python_models import _interpreter
from opgate.service.repository.repositories import Source
from opgate.service.repository.spec_from_config import stated_datatype
from tests.service.onnx_models import (
    PIPELINE_CONFIG,
    batching,
    double,
    identity,
    ragged_sum,
    save,
    value,
    write_config,
)
from tests.service.test_execution import infer

REFUSED = [
    ("response_cache { enable: true } sequence_batching { }", "response_cache with sequence_batching"),
    ("model_warmup [ { name: 'w' batch_size: 1 } ]", "model_warmup"),
    ("instance_group [ { kind: KIND_GPU } ]", "say KIND_CPU, or KIND_AUTO"),
    ("instance_group [ { gpus: [ 0 ] } ]", "instance_group[0].kind"),
    ("instance_group [ { gpus: [ 0 ] kind: KIND_MODEL } ]", "instance_group[0].gpus of KIND_MODEL"),
    ("instance_group [ { profile: [ 'a' ] } ]", "instance_group[0].profile: only TensorRT models have profiles"),
    ("instance_group [ { passive: true } ]", "instance_group[0].passive: its instances would get no requests: remove"),
    ("dynamic_batching { preferred_batch_size: [ 99 ] }", "preferred_batch_size 99"),
    (
        "optimization { execution_accelerators { cpu_execution_accelerator { name: 'x' } } }",
        "expected openvino or none",
    ),
    ("parameters { key: 'pad_input' value { string_value: '1' } }", "parameter 'pad_input' (is pad_inputs meant?)"),
    (
        "model_repository_agents { agents [ { name: 'a' } ] }",
        "model_repository_agents: remove it, or do its work before",
    ),
    ("runtime: 'libmine.so'", "runtime 'libmine.so': remove it: the gateway has its own backends"),
    ("runtime: 'model.py'", "runtime 'model.py': remove it"),
    (
        "sequence_batching { iterative_sequence: true }",
        "only a model in Python can ask for a request once more: remove it",
    ),
    ("parameters { key: 'enable_mem_arena' value { string_value: 'yes' } }", "expected true, false, 1 or 0, got 'yes'"),
    ("input [ { name: 'x' is_shape_tensor: true } ]", "is_shape_tensor: only TensorRT models have it: remove it"),
    ("output [ { name: 'y' is_non_linear_format_io: true } ]", "is_non_linear_format_io: only TensorRT models have it"),
]

IGNORED = [
    ("input [ { name: 'x' data_type: TYPE_FP32 dims: [ 4 ] format: FORMAT_NCHW } ]", "input 'x' format"),
    ("metric_tags { key: 'a' value: 'b' }", "metric_tags"),
    ("model_metrics { }", "model_metrics"),
    ("cc_model_filenames { key: '7.5' value: 'other.onnx' }", "cc_model_filenames"),
    ("runtime: 'libtriton_onnxruntime.so'", "runtime"),
    ("instance_group [ { host_policy: 'a' } ]", "instance_group[0].host_policy"),
    ("instance_group [ { secondary_devices { kind: KIND_NVDLA } } ]", "instance_group[0].secondary_devices"),
    ("optimization { cuda { graphs: true } }", "optimization.cuda"),
    ("optimization { priority: PRIORITY_MAX }", "optimization.priority"),
    ("optimization { eager_batching: true gather_kernel_buffer_threshold: 3 }", "optimization.eager_batching"),
    ("optimization { graph { level: 3 } }", "optimization.graph.level 3, which is taken as 0"),
    ("optimization { input_pinned_memory { enable: false } }", "optimization.input_pinned_memory"),
    (
        "optimization { execution_accelerators { gpu_execution_accelerator : [ { name : 'tensorrt' } ] } }",
        "optimization.execution_accelerators.gpu_execution_accelerator 'tensorrt'",
    ),
    (
        "optimization { execution_accelerators { cpu_execution_accelerator : [ { name : 'openvino' } ] } }",
        "optimization.execution_accelerators.cpu_execution_accelerator 'openvino'",
    ),
    ("parameters { key: 'no_such' value { string_value: '1' } }", "parameter 'no_such'"),
    ("parameters { key: 'cudnn_conv_algo_search' value { string_value: '1' } }", "parameter 'cudnn_conv_algo_search'"),
    ("dynamic_batching { default_priority_level: 2 }", "dynamic_batching.default_priority_level"),
    (
        "dynamic_batching { priority_queue_policy { key: 2 value { max_queue_size: 3 } } }",
        "dynamic_batching.priority_queue_policy",
    ),
]


@pytest.mark.parametrize(("block", "named"), IGNORED, ids=[named for _, named in IGNORED])
def test_a_field_that_can_not_change_a_result_is_ignored_and_said(repository, load, caplog, block, named):
    caplog.set_level("INFO")
    double(repository, "m", config=f'backend: "onnxruntime"\nmax_batch_size: 8\n{block}')
    assert load().find("m").model.spec.max_batch_size == 8
    assert named in said(caplog)


def said(caplog):
    """Returns which fields the log says are ignored, in the one line about it."""
    (line,) = [record.getMessage() for record in caplog.records if "ignored, because" in record.getMessage()]
    return line.removeprefix("config: ignored, because nothing here reads it: ").split("; ")


def test_all_ignored_fields_are_in_one_line_of_a_new_model(repository, settings, caplog):
    caplog.set_level("INFO")
    more = 'metric_tags { key: "a" value: "b" } parameters { key: "note" value { string_value: "x" } }'
    for version in (1, 2):
        double(repository, "m", config=f"version_policy {{ all {{ }} }} {batching(extra=more)}", version=version)
    double(repository, "plain", config=batching())
    catalog = Catalog(settings)
    catalog.load_all()
    assert said(caplog) == ["metric_tags", "parameter 'note'"]
    caplog.clear()
    catalog.load_all()  # nothing has changed
    assert "ignored" not in caplog.text


@pytest.mark.parametrize(("block", "named"), REFUSED, ids=[named for _, named in REFUSED])
def test_a_field_that_is_not_honoured_is_refused_by_name(repository, reason, block, named):
    double(repository, "m", config=f'backend: "onnxruntime"\nmax_batch_size: 8\n{block}')
    assert named in reason("m")


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ('backend: "python"', "backend 'python'"),
        ("max_batch_size: ", "can't be parsed"),
        ("no_such_field: 1", "no_such_field"),
        ('name: "other"', "names the model 'other'"),
        ("max_batch_size: -1", "max_batch_size -1"),
        (
            'input { name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ] } input { name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ] }',
            "input name 'x' is empty or given twice",
        ),
        ('input [ { name: "x" data_type: 99 dims: [ 4 ] } ]', "input 'x': data_type 99 can't be served"),
        ('max_batch_size: 8 input [ { name: "z" data_type: TYPE_FP32 dims: [ 4 ] } ]', "'z' is not in the model file"),
        ('max_batch_size: 8 input [ { name: "x" data_type: TYPE_INT8 dims: [ 4 ] } ]', "the config says TYPE_INT8"),
        ('max_batch_size: 8 input [ { name: "x" data_type: TYPE_FP32 dims: [ 5 ] } ]', "[-1, 5] doesn't fit"),
        ('max_batch_size: 8 input [ { name: "x" data_type: TYPE_FP32 dims: [ 4, 4 ] } ]', "doesn't fit"),
        ('max_batch_size: 8 input [ { name: "x" data_type: TYPE_FP32 dims: [ -2 ] } ]', "must be -1, 0 or positive"),
        (
            'max_batch_size: 8 input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] optional: true } ]',
            "no default value",
        ),
        (
            'max_batch_size: 8 input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] reshape { shape: [ 3 ] } } ]',
            "can't hold",
        ),
        ('max_batch_size: 8 output [ { name: "y" data_type: TYPE_FP32 dims: [ 7 ] } ]', "output 'y'"),
        ('default_model_filename: "../x.onnx"', "bare file name"),
        ('default_model_filename: "none.onnx"', "there is no model file"),
        (f'default_model_filename: "{"x" * 256}"', "no file can have this name"),
        ('default_model_filename: "a\\000b"', "no file can have this name"),
        (f'model_operations {{ op_library_filename: "{"é" * 128}" }}', "no file can have this name"),
        (
            f'max_batch_size: 8 output [ {{ name: "y" data_type: TYPE_FP32 dims: [ 4 ] label_filename: "{"x" * 256}" }} ]',
            "no file can have this name",
        ),
        (
            "version_policy { specific { versions: [ 7 ] } }",
            "version_policy.specific wants version 7, present are [1]: add a folder, or name only these",
        ),
        ('backend: "tensorrt"', "export it to ONNX, or let a Triton server run it: --backend triton"),
        ("dynamic_batching { preferred_batch_size: [ 4 ] }", "preferred_batch_size 4: max_batch_size is 0: remove it"),
        ("version_policy { specific { } }", "version_policy.specific names no version"),
        ('parameters { key: "intra_op_thread_count" value { string_value: "many" } }', "expected an integer"),
        ('parameters { key: "predict_text_output" value { string_value: "nope" } }', "'nope' is not an output"),
        ('parameters { key: "predict_text_output" value { string_value: "y" } }', "'y' has no label_filename"),
        ('parameters { key: "predict_count_output" value { string_value: "y" } }', "without 'predict_fields'"),
        ('parameters { key: "predict_fields" value { string_value: "a=nope" } }', "'nope' is not an output"),
        (
            'parameters { key: "predict_fields" value { string_value: "a=x[y:y]" } }',
            "'x' in 'x[y:y]' is no input of one text",
        ),
        (
            'parameters { key: "predict_media_types" value { string_value: "audio/wav, sound" } }',
            "expected types such as audio/wav, got 'sound'",
        ),
        ('parameters { key: "row_status_output" value { string_value: "y" } }', "not an integer output"),
        ('model_operations { op_library_filename: "/tmp/a.so" }', "bare file name"),
    ],
)
def test_a_config_that_does_not_fit_says_where(repository, reason, config, text):
    double(repository, "m", config=config)
    assert text in reason("m")


def test_a_fixed_first_dimension_cannot_batch(repository, reason):
    double(repository, "m", config="max_batch_size: 8", shape=(1, 4))
    assert "fixed first dimension" in reason("m")


def test_a_missing_config_is_derived_from_the_model_file(repository, load):
    double(repository, "batches")
    double(repository, "points", shape=("n", 3))
    identity(repository, "scalar", "INT64", shape=())
    gateway = load()
    config = gateway.find("batches").model.config
    assert (config.max_batch_size, config.HasField("dynamic_batching")) == (4, True)
    assert [(i.name, list(i.dims)) for i in config.input] == [("x", [4])]
    # A first dimension that is not named like a batch may count rows that belong together.
    points = gateway.find("points").model
    assert points.config.max_batch_size == 0
    assert list(points.config.input[0].dims) == [-1, 3]
    assert gateway.find("scalar").model.spec.inputs["x"].reshape == ()


def test_a_config_without_tensors_is_completed(repository, load):
    double(repository, "m", config=batching())
    spec = load().find("m").model.spec
    assert spec.inputs["x"].dims == (4,)
    assert spec.batching is not None
    assert spec.batching.adaptive


@pytest.mark.parametrize(
    ("policy", "served"),
    [
        ("", [3]),
        ("version_policy { latest { num_versions: 2 } }", [2, 3]),
        ("version_policy { all { } }", [1, 2, 3]),
        ("version_policy { specific { versions: [ 1, 3 ] } }", [1, 3]),
    ],
)
def test_version_policy(repository, load, policy, served):
    for version in (1, 2, 3):
        double(repository, "m", config=f'backend: "onnxruntime"\n{policy}', version=version)
    gateway = load()
    assert gateway.catalog.versions("m") == served
    assert gateway.find("m").model.spec.version == "3"


def test_a_version_that_is_missing_takes_no_other_down(repository, load, caplog):
    double(repository, "m", config="version_policy { specific { versions: [ 1, 3, 5 ] } }")
    gateway = load()
    assert gateway.catalog.versions("m") == [1]
    assert gateway.is_ready()
    assert (
        "version_policy.specific wants versions 3, 5, present are [1]: add a folder, or name only these" in caplog.text
    )
    with pytest.raises(ServingError, match="version 3 is not found, loaded versions: 1"):
        gateway.find("m", "3")


def test_one_broken_model_does_not_stop_the_others(repository, load):
    double(repository, "good")
    folder = double(repository, "bad")
    (folder / "1" / "model.onnx").write_bytes(b"no model")
    (repository / "empty").mkdir()
    gateway = load()
    assert gateway.find("good")
    assert not gateway.is_ready()
    assert sorted(gateway.catalog.unavailable()) == ["bad", "empty"]


def test_a_model_may_not_point_out_of_the_repository(repository, reason, tmp_path):
    outside = tmp_path / "outside"
    double(outside, "m")
    (repository / "linked").symlink_to(outside / "m")
    folder = double(repository, "file")
    (folder / "1" / "model.onnx").unlink()
    (folder / "1" / "model.onnx").symlink_to(outside / "m" / "1" / "model.onnx")
    assert "out of the model repository" in reason("linked")
    assert "out of the model repository" in reason("file")


def test_ragged_inputs_must_be_flat_in_the_file(repository, reason):
    config = 'max_batch_size: 8 input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] allow_ragged_batch: true } ]'
    double(repository, "m", config=config)
    assert "flat tensor of rank 1" in reason("m")


def test_batch_input_needs_its_source(repository, reason):
    ragged_sum(repository, "m", config=_ragged_with('source_input: "nope"'))
    assert "'nope' is not an input" in reason("m")


def _ragged_with(source):
    from tests.service.onnx_models import RAGGED_CONFIG

    return RAGGED_CONFIG.replace('source_input: "data"', source)


def test_a_repository_without_models_is_told(load, caplog):
    assert list(load().catalog.models()) == []
    assert "is empty: expected <model>/<version>/model.onnx" in caplog.text


@pytest.mark.parametrize("config", ["max_batch_size: 8", None])
def test_the_folder_of_a_model_is_no_repository(repository, settings, config):
    double(repository, "m", config=config)
    catalog = Catalog(settings.model_copy(update={"model_repository": repository / "m"}))
    with pytest.raises(ConfigError, match="is the folder of a model: expected a folder with <model>/<version>"):
        catalog.load_all()


def test_the_name_of_a_model_may_be_a_number(repository, load):
    double(repository, "7", config="max_batch_size: 8")
    assert load().find("7").model.spec.name == "7"


class TestEnsembles:
    @pytest.fixture
    def models(self, repository):
        double(repository, "double", config=batching())
        double(repository, "again", config=batching())
        identity(repository, "bytes", "INT8", config=batching())
        double(repository, "wide", config=batching(), shape=("batch", 5))
        return repository

    def test_a_good_ensemble_loads(self, models, load):
        write_config(models, "p", PIPELINE_CONFIG)
        assert load().find("p").model.spec.platform == "ensemble"

    @pytest.mark.parametrize(
        ("old", "new", "text"),
        [
            ('"again"', '"none"', "unknown model: 'none'"),
            ('key: "x" value: "mid"', 'key: "q" value: "mid"', "input_map names 'q'"),
            ('key: "y" value: "mid"', 'key: "q" value: "mid"', "output_map names 'q'"),
            ('key: "x" value: "mid"', 'key: "x" value: "lost"', "nothing makes tensor 'lost'"),
            ('key: "y" value: "out"', 'key: "y" value: "mid"', "already made by"),
            ('"again"', '"bytes"', "expected TYPE_INT8"),
            ('"again"', '"wide"', "expected dims [5]"),
            ('name: "out"', 'name: "gone"', "no step makes the ensemble's output 'gone'"),
            ('key: "x" value: "in"', 'key: "x" value: "out"', "no step uses the ensemble's input 'in'"),
            ('input_map { key: "x" value: "mid" }', "", "lacks the model's input 'x'"),
            ("max_batch_size: 8", "max_batch_size: 8 dynamic_batching { }", "another member of oneof"),
            ('model_name: "again"', "", "ensemble_scheduling: step 2 names no model"),
            (
                'output_map { key: "y" value: "out" }',
                "",
                "step 'again': output_map is empty: remove the step, or name an output of the model",
            ),
            ('model_name: "again"', 'model_name: "again" model_namespace: "a"', "model_namespace 'a': remove it"),
            (
                "ensemble_scheduling {",
                "instance_group { } ensemble_scheduling {",
                "instance_group of an ensemble: put it into the config of a step's model",
            ),
            (
                'name: "in" data_type: TYPE_FP32 dims: [ 4 ]',
                'name: "in" data_type: TYPE_FP32 dims: [ 4 ] reshape { shape: [ 2, 2 ] }',
                "reshape of an ensemble's input 'in': put it into the config of the step's model",
            ),
            (
                "ensemble_scheduling {",
                'parameters { key: "pad_inputs" value { string_value: "in" } } ensemble_scheduling {',
                "parameter 'pad_inputs' of an ensemble: put it into the config of the step's model",
            ),
            (
                'name: "in" data_type: TYPE_FP32 dims: [ 4 ] } ]',
                'name: "in" data_type: TYPE_FP32 dims: [ 4 ] }, { name: "o" data_type: TYPE_FP32 dims: [ 4 ] '
                'optional: true } ] output [ { name: "o" data_type: TYPE_FP32 dims: [ 4 ] } ]',
                "the ensemble's output 'o' is its optional input: remove `optional: true`",
            ),
        ],
    )
    def test_a_bad_ensemble_says_what_is_wrong(self, models, reason, old, new, text):
        assert old in PIPELINE_CONFIG
        write_config(models, "p", PIPELINE_CONFIG.replace(old, new))
        assert text in reason("p")

    def test_what_it_can_not_use_is_ignored(self, models, load, caplog):
        caplog.set_level("INFO")
        more = """backend: "onnxruntime" default_model_filename: "x" model_operations { }
            model_transaction_policy { decoupled: true } optimization { graph { level: 1 } }
            parameters { key: "note" value { string_value: "of the team" } }
            parameters { key: "intra_op_thread_count" value { string_value: "2" } }
            parameters { key: "session.x" value { string_value: "2" } }
            ensemble_scheduling { max_inflight_requests: 3"""
        write_config(models, "p", PIPELINE_CONFIG.replace("ensemble_scheduling {", more))
        assert load().find("p").model.spec.platform == "ensemble"
        assert said(caplog) == [
            "backend", "default_model_filename", "model_operations", "ensemble_scheduling.max_inflight_requests", "optimization", "parameter 'intra_op_thread_count'",
            "parameter 'note'", "parameter 'session.x'",
        ]  # fmt: skip

    def test_a_step_that_states_no_version_uses_the_latest(self, models, settings, load):
        double(models, "again", config="version_policy { all { } } max_batch_size: 8", version=2)
        write_config(models, "p", PIPELINE_CONFIG.replace("model_version: -1", ""))
        gateway = load()
        assert gateway.find("p").model.steps[1].spec.version == "2"
        found = gateway.catalog._step("again", 0)
        assert found.spec.version == "2"

    def test_steps_that_wait_for_each_other(self, models, reason):
        third = """step [
            { model_name: "double" model_version: -1
              input_map { key: "x" value: "in" } output_map { key: "y" value: "unused" } },"""
        config = PIPELINE_CONFIG.replace("step [", third).replace(
            '{ key: "x" value: "in" } output_map { key: "y" value: "mid" }',
            '{ key: "x" value: "out" } output_map { key: "y" value: "mid" }',
        )
        write_config(models, "p", config)
        assert "wait for each other in a cycle" in reason("p")

    def test_ensembles_that_use_each_other(self, models, reason):
        write_config(models, "p", PIPELINE_CONFIG.replace('"again"', '"q"'))
        write_config(models, "q", PIPELINE_CONFIG.replace('"again"', '"p"'))
        assert "cycle" in reason("p")
        assert "cycle" in reason("q")

    def test_an_ensemble_may_use_another(self, models, load):
        write_config(models, "q", PIPELINE_CONFIG)
        inner = PIPELINE_CONFIG.replace('"again"', '"q"').replace(
            '{ key: "x" value: "mid" } output_map { key: "y"', '{ key: "in" value: "mid" } output_map { key: "out"'
        )
        write_config(models, "p", inner)
        assert load().find("p")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (None, 4),
        ("", 4),
        ("# max_batch_size: 0", 4),
        ('metric_tags { key: "max_batch_size: 0" value: "" }', 4),
        ("max_batch_size: 0", 0),
        ("dynamic_batching { } max_batch_size: 2", 2),
    ],
)
def test_a_stated_batch_size_stays(repository, load, config, expected):
    double(repository, "m", config=config)
    assert load().find("m").model.config.max_batch_size == expected


def test_a_batch_dim_without_max_batch_size_is_hinted_at(repository, reason):
    tensors = 'input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]'
    double(repository, "m", config=tensors)
    assert "if its first dim is the batch, add max_batch_size" in reason("m")


def test_a_pointer_of_git_lfs(repository, reason):
    folder = double(repository, "m")
    (folder / "1" / "model.onnx").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    assert "run `git lfs pull`" in reason("m")


def test_an_ensemble_without_steps(repository, reason):
    double(repository, "m", config='platform: "ensemble" max_batch_size: 1')
    assert "without ensemble_scheduling" in reason("m")


def test_each_cycle_of_ensembles_is_said_by_itself(repository, load):
    def uses(name, step):
        tensors = 'input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ] output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]'
        maps = 'input_map { key: "x" value: "x" } output_map { key: "y" value: "y" }'
        text = f'max_batch_size: 4 {tensors} ensemble_scheduling {{ step [ {{ model_name: "{step}" {maps} }} ] }}'
        write_config(repository, name, text)

    for name, step in (("a", "b"), ("b", "a"), ("c", "d"), ("d", "e"), ("e", "c"), ("f", "a"), ("self", "self")):
        uses(name, step)
    reasons = {row[0]: row[3] for row in load().catalog.index()}
    assert reasons["a"].endswith("in a cycle: a -> b -> a")
    assert reasons["d"].endswith("in a cycle: d -> e -> c -> d")
    assert reasons["self"].endswith("in a cycle: self -> self")
    assert "step 'a'" in reasons["f"]


@pytest.mark.parametrize("given", ["x" * 300, "a\0b"])
def test_an_environment_that_no_file_system_has_is_refused(tmp_path, given):
    with pytest.raises(ConfigError, match="parameter 'EXECUTION_ENV_PATH'"):
        _interpreter(given, tmp_path)


def test_a_type_that_is_missing_is_refused():
    with pytest.raises(ConfigError, match="input 'x': data_type is missing"):
        stated_datatype(0, "input 'x'")


def test_an_environment_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"got /none/env[.]tar[.]gz, which isn't there"):
        _interpreter("/none/env.tar.gz", tmp_path)
    with pytest.raises(ConfigError, match=f"got {re.escape(str(tmp_path))}$"):
        _interpreter(".", tmp_path)


SCALAR = 'input [ { name: "x" data_type: TYPE_FP32 %s } ] output [ { name: "y" data_type: TYPE_FP32 %s } ]'


@pytest.mark.parametrize(
    ("shape", "batch", "dims", "wire"),
    [
        ((), 0, "dims: [ 1 ] reshape { shape: [ ] }", (1,)),
        ((), 0, "dims: [ 1 ] reshape { }", (1,)),
        ((), 0, "dims: [ 1 ]", (1,)),
        ((), 0, "dims: [ 1, 1 ]", (1, 1)),
        ((), 0, "dims: [ ]", (1,)),
        ((), 0, "", (1,)),
        (("batch",), 4, "dims: [ 1 ] reshape { shape: [ ] }", (3, 1)),
        (("batch",), 4, "dims: [ 1 ]", (3, 1)),
        (("batch",), 4, "dims: [ ]", (3, 1)),
        (("batch",), 4, "", (3, 1)),
        (("batch", 2), 4, "", (3, 2)),
        ((1,), 0, "dims: [ 1 ]", (1,)),
        (("n", 2), 0, "", (3, 2)),
    ],
)
def test_scalars_in_each_of_the_ways_people_write_them(repository, load, shape, batch, dims, wire):
    double(repository, "m", config=f"max_batch_size: {batch} {SCALAR % (dims, dims)}", shape=shape)
    gateway = load()
    model = gateway.find("m").model
    assert len(model.spec.wire_shape(model.spec.inputs["x"])) == len(wire)
    x = np.arange(np.prod(wire), dtype=np.float32).reshape(wire)
    found = asyncio.run(infer(gateway, "m", x=x))["y"]
    assert found.shape == wire and (found == 2 * x).all()


@pytest.mark.parametrize("dims", ["dims: [ 1 ]", "", "dims: [ 1 ] reshape { }"])
def test_a_scalar_has_no_batch(repository, reason, dims):
    double(repository, "m", config=f"max_batch_size: 4 {SCALAR % (dims, dims)}", shape=())
    assert "a scalar has no batch: set max_batch_size 0" in reason("m")
    double(repository, "bare", config="max_batch_size: 4", shape=())
    assert "a scalar has no batch: set max_batch_size 0" in reason("bare")


def test_dims_that_the_file_states_are_said(repository, load, caplog):
    caplog.set_level("INFO")
    double(repository, "m", config=f"max_batch_size: 4 {SCALAR % ('', 'dims: [ 1 ]')}", shape=("batch",))
    load()
    assert "config completed: dims of input x, reshape of output y" in caplog.text


WARM = 'model_warmup [ {{ name: "w" {} inputs {{ key: "x" value {{ data_type: TYPE_FP32 dims: [ {} ] zero_data: true }} }} }} ]'


@pytest.mark.parametrize(
    ("batch", "size", "dims", "runs"),
    [
        (0, "", "4", 1),
        (0, "batch_size: 0", "4", 1),
        (0, "batch_size: 1", "4", 1),
        (8, "", "4", 1),
        (8, "batch_size: 3", "4", 3),
    ],
)
def test_a_warm_up_has_as_many_rows_as_it_says(repository, load, monkeypatch, batch, size, dims, runs):
    double(
        repository,
        "m",
        config=f"max_batch_size: {batch} {WARM.format(size, dims)}",
        shape=("batch", 4) if batch else (4,),
    )
    seen = []
    from opgate.service.repository import proving

    run = proving._run
    monkeypatch.setattr(proving, "_run", lambda *given: seen.append(run(*given)) or seen[-1])
    assert load().find("m")
    assert [request.inputs["x"].shape for request in seen] == [(runs, 4) if batch else (4,)]


@pytest.mark.parametrize(
    ("batch", "size", "says"),
    [
        (0, "batch_size: 3", "batch_size 3: expected 1, the model doesn't batch"),
        (8, "batch_size: 9", "batch_size 9: expected a batch size of 1 to 8"),
    ],
)
def test_a_warm_up_that_is_too_large_is_refused(repository, reason, batch, size, says):
    double(
        repository,
        "m",
        config=f"max_batch_size: {batch} {WARM.format(size, '4')}",
        shape=("batch", 4) if batch else (4,),
    )
    assert says in reason("m")


def test_a_warm_up_of_a_scalar(repository, load):
    double(
        repository,
        "m",
        config=f"max_batch_size: 0 {SCALAR % ('dims: [ 1 ]', 'dims: [ 1 ]')} {WARM.format('', '')}",
        shape=(),
    )
    assert load().find("m")


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ([], "no files"),
        (["model.plan"], "model.plan"),
        (["a.onnx", "b", "c", "d", "e", "f"], "a.onnx, b, c, d, e, ..."),
    ],
)
def test_a_missing_model_file_is_said_with_those_that_are_there(repository, reason, files, named):
    folder = double(repository, "m") / "1"
    (folder / "model.onnx").unlink()
    for file in files:
        (folder / file).write_bytes(b"")
    assert reason("m") == f"there is no model file m/1/model.onnx, its folder has {named}"


def test_a_folder_may_stand_for_the_model_file(repository, load, reason):
    folder = double(repository, "m", config="max_batch_size: 8") / "1"
    (folder / "model.onnx").rename(folder / "inner.onnx")
    (folder / "model.onnx").mkdir()
    assert "there is no model file m/1/model.onnx/model.onnx" in reason("m")
    model = onnx.load(folder / "inner.onnx")
    table = helper.make_tensor("t", onnx.TensorProto.FLOAT, [1, 1024], np.ones(1024, np.float32).tobytes(), raw=True)
    model.graph.initializer.append(table)
    onnx.save(model, folder / "model.onnx" / "model.onnx", save_as_external_data=True, location="weights.bin")
    assert (folder / "model.onnx" / "weights.bin").is_file()
    assert load().find("m")


def test_a_model_file_in_python_needs_no_backend(repository, reason):
    for name, config in (
        ("bare", None),
        ("named", 'default_model_filename: "model.py"'),
        ("sized", "max_batch_size: 4"),
    ):
        write_config(repository, name, config or "")
        (repository / name / "1" / "model.py").write_text("")
        if config is None:
            (repository / name / "config.pbtxt").unlink()
        assert "backend 'python': models in Python run whatever their model.py says" in reason(name)
    double(repository, "both", config="")
    (repository / "both" / "1" / "model.py").write_text("")
    with pytest.raises(AssertionError, match="both was loaded"):
        reason("both")


def test_an_override_turns_no_model_into_python(repository):
    onnx_model = double(repository, "onnx", config='backend: "onnxruntime" max_batch_size: 8') / "1"
    (onnx_model / "model.onnx").rename(onnx_model / "own.onnx")
    write_config(repository, "python", "")
    for name in ("onnx", "python"):
        (repository / name / "1" / "model.py").write_text("")

    def made(name, config):
        beside = Override(config).beside(Source(name, repository))
        return load_config(repository, name, override=beside).backend

    assert made("onnx", ModelConfig(max_batch_size=4)) == ""
    assert made("python", ModelConfig(max_batch_size=4)) == "python"
    config = ModelConfig()
    config.parameters["EXECUTION_ENV_PATH"].string_value = "/tmp"
    with pytest.raises(ServingError, match="EXECUTION_ENV_PATH: a load request can't set it"):
        made("python", config)
    config = ModelConfig()
    config.parameters["gpu_mem_limit"].string_value = "1"
    with pytest.raises(ServingError, match="gpu_mem_limit: a load request can't set it"):
        made("onnx", config)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("# größte Menge\nmax_batch_size: 0 # hé\n".encode("latin-1"), 0),
        ("\ufeffmax_batch_size: 8\n".encode(), 8),
        (b'max_batch_size: 2 metric_tags { key: "#" value: "a # b" } # "\n', 2),
        ("max_batch_size: 2 metric_tags { key: '\"#\\'' value: \"é\" } # it's ä".encode(), 2),
    ],
)
def test_comments_in_other_encodings(repository, load, text, size):
    folder = double(repository, "m")
    (folder / "config.pbtxt").write_bytes(text)
    assert states_max_batch_size(folder)
    assert load().find("m").model.config.max_batch_size == size


def test_a_text_that_is_not_utf8_has_a_line(repository, reason):
    folder = double(repository, "m")
    (folder / "config.pbtxt").write_bytes(b'max_batch_size: 2\n# \xff\nmetric_tags { key: "\xe9" value: "" }')
    assert reason("m") == "config.pbtxt line 3: a text that is not UTF-8"
    (folder / "config.pbtxt").write_bytes(b"max_batch_size: 2\n# \xff\nno_such: 1")
    assert "can't be parsed: 3:1" in reason("m")


@pytest.mark.parametrize(
    ("config", "advice"),
    [
        (
            "max_batch_size: ${triton_max_batch_size}",
            "a template: it wants a value in place of ${triton_max_batch_size}",
        ),
        ("{% for input in inputs %}", "a template: it wants a value in place of {%"),
        ('input [ { name: "x" dims: [ 4, ] } ]', "remove the comma before the ]"),
        ('input [\n  { name: "x" },\n]', "remove the comma before the ]"),
        ("input { data_type: TYPE_BYTES }", "TYPE_FP64, TYPE_STRING, TYPE_BF16"),
        ("instance_group { kind: KIND_CUDA }", "expected one of KIND_AUTO, KIND_GPU, KIND_CPU, KIND_MODEL"),
        ('parameters { key: "a" string_value: "b" }', "expected one of key, value"),
        ("dynamic_batching { prefered_batch_size: 4 }", "expected one of preferred_batch_size, "),
    ],
)
def test_a_syntax_error_says_what_to_do(repository, reason, config, advice):
    double(repository, "m", config=config)
    assert advice in reason("m")


def test_quotes_without_an_end_take_no_time(repository):
    (repository / "config.pbtxt").write_text('"' + '\\"' * 20_000)
    began = time.perf_counter()
    assert not states_max_batch_size(repository)
    with pytest.raises(ConfigError, match="can't be parsed"):
        read_config(repository / "config.pbtxt")
    assert time.perf_counter() - began < 1


@pytest.mark.parametrize(
    ("text", "arena"), [("true", True), ("TRUE", True), ("1", True), ("False", False), ("0", False)]
)
def test_booleans_as_triton_reads_them(repository, load, monkeypatch, text, arena):
    from opgate.service.repository import loader

    more = "".join(
        f'parameters {{ key: "enable_mem_{part}" value {{ string_value: "{text}" }} }}' for part in ("arena", "pattern")
    )
    double(repository, "m", config=f"max_batch_size: 8 {more}")
    seen = []
    options = loader.SessionOptions
    monkeypatch.setattr(loader, "SessionOptions", lambda **given: seen.append(given) or options(**given))
    assert load().find("m")
    assert (seen[0]["memory_arena"], seen[0]["memory_pattern"]) == (arena, arena)


def test_several_outputs_of_one_batch_output(repository, load):
    nodes = [helper.make_node("Add", ["x", "x"], ["y"]), helper.make_node("Neg", ["x"], ["z"])]
    config = """max_batch_size: 8
        input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true } ]
        output [ { name: "y" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "z" data_type: TYPE_FP32 dims: [ -1 ] } ]
        batch_output { target_name: [ "y", "z" ] kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "x" }"""
    outputs = [value(name, "FP32", ["n"]) for name in "yz"]
    save(repository, "m", nodes, [value("x", "FP32", ["n"])], outputs, config=config)
    found = asyncio.run(infer(load(), "m", x=np.array([[1, 2, 3]], np.float32)))
    assert {name: array.tolist() for name, array in found.items()} == {"y": [[2, 4, 6]], "z": [[-1, -2, -3]]}


def test_ragged_inputs_without_batches_are_as_others(repository, load, caplog):
    caplog.set_level("INFO")
    config = 'input [ { name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ] allow_ragged_batch: true } ]'
    double(repository, "m", config=f"max_batch_size: 0 {config}", shape=("n", 4))
    assert asyncio.run(infer(load(), "m", x=np.ones((2, 4), np.float32)))["y"].shape == (2, 4)
    assert said(caplog) == ["input 'x' allow_ragged_batch"]


@pytest.mark.parametrize("config", ['platform: "onnxruntime_onnx"', 'backend: "onnxruntime"', ""])
def test_the_config_says_the_backend_and_the_file(repository, load, config):
    double(repository, "m", config=f"{config} max_batch_size: 8")
    found = load().find("m").model.config
    assert (found.backend, found.platform, found.default_model_filename) == (
        "onnxruntime",
        "onnxruntime_onnx",
        "model.onnx",
    )


def test_a_group_that_nobody_wrote_has_the_name_of_the_model(repository, load):
    double(repository, "m", config="max_batch_size: 8")
    double(repository, "n", config="max_batch_size: 8 instance_group [ { }, { name: 'own' }, { kind: KIND_MODEL } ]")
    gateway = load()
    assert [group.name for group in gateway.find("m").model.config.instance_group] == ["m"]
    groups = gateway.find("n").model.config.instance_group
    assert [(group.name, group.kind) for group in groups] == [("n_0", 2), ("own", 2), ("n_2", 3)]
