"""config.pbtxt: how the gateway reads it, completes it, and refuses by name the fields that it doesn't support."""

from __future__ import annotations

import pytest

from opgate.service.repository.catalog import Catalog
from opgate.service.repository.config import ConfigError
from opgate.service.repository.python_models import _interpreter
from tests.service.onnx_models import (
    PIPELINE_CONFIG,
    batching,
    double,
    identity,
    ragged_sum,
    write_config,
)

REFUSED = [
    ("response_cache { enable: true } sequence_batching { }", "response_cache with sequence_batching"),
    ("model_warmup [ { name: 'w' batch_size: 1 } ]", "model_warmup"),
    ("metric_tags { key: 'a' value: 'b' }", "metric_tags"),
    ("instance_group [ { kind: KIND_GPU } ]", "instance_group[0].kind KIND_GPU"),
    ("instance_group [ { gpus: [ 0 ] } ]", "instance_group[0].kind"),
    ("instance_group [ { host_policy: 'a' } ]", "instance_group[0].host_policy"),
    ("dynamic_batching { preferred_batch_size: [ 99 ] }", "preferred_batch_size 99"),
    (
        "optimization { execution_accelerators { gpu_execution_accelerator : [ { name : 'tensorrt' } ] } }",
        "accelerators",
    ),
    ("optimization { cuda { graphs: true } }", "optimization.cuda"),
    ("optimization { priority: PRIORITY_MAX }", "optimization.priority"),
    ("parameters { key: 'no_such' value { string_value: '1' } }", "parameter 'no_such'"),
    ("model_repository_agents { agents [ { name: 'a' } ] }", "model_repository_agents"),
]


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
        ('max_batch_size: 8 input [ { name: "z" data_type: TYPE_FP32 dims: [ 4 ] } ]', "'z' is not in the model file"),
        ('max_batch_size: 8 input [ { name: "x" data_type: TYPE_INT8 dims: [ 4 ] } ]', "the config says TYPE_INT8"),
        ('max_batch_size: 8 input [ { name: "x" data_type: TYPE_FP32 dims: [ 5 ] } ]', "[-1, 5] doesn't fit"),
        ('max_batch_size: 8 input [ { name: "x" data_type: TYPE_FP32 dims: [ 4, 4 ] } ]', "doesn't fit"),
        ('max_batch_size: 8 input [ { name: "x" data_type: TYPE_FP32 dims: [ 0 ] } ]', "must be -1 or positive"),
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
        ("version_policy { specific { versions: [ 7 ] } }", "version 7"),
        ("version_policy { specific { } }", "version_policy.specific names no version"),
        ('parameters { key: "intra_op_thread_count" value { string_value: "many" } }', "expected an integer"),
        ('parameters { key: "predict_fields" value { string_value: "a=nope" } }', "'nope' is not an output"),
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
        ],
    )
    def test_a_bad_ensemble_says_what_is_wrong(self, models, reason, old, new, text):
        assert old in PIPELINE_CONFIG
        write_config(models, "p", PIPELINE_CONFIG.replace(old, new))
        assert text in reason("p")

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
        ('metric_tags { key: "max_batch_size: 0" value: "" }', None),
        ("max_batch_size: 0", 0),
        ("dynamic_batching { } max_batch_size: 2", 2),
    ],
)
def test_a_stated_batch_size_stays(repository, load, config, expected):
    double(repository, "m", config=config)
    gateway = load()
    if expected is None:
        assert gateway.catalog.index()[0][3].endswith("metric_tags")
    else:
        assert gateway.find("m").model.config.max_batch_size == expected


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
