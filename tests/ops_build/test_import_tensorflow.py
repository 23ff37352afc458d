"""`opgate import` with models of TensorFlow and LiteRT: their ops become nodes, and what it says of models that it can't
convert."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import onnx
import pytest
from google.protobuf import text_format
from onnx import helper
from tritonclient.grpc.model_config_pb2 import ModelConfig

if find_spec("tf2onnx") is None:
    pytest.skip("the Python package tf2onnx is not installed", allow_module_level=True)

from opgate.onnx_tools.conversion import ConversionError
from opgate.ops_build.adapters.tensorflow.names import type_of
from opgate.ops_build.building.build import Build
from opgate.ops_build.op_table import read_table
from tests.ops_build.test_import_command import in_process
from tests.skips import need


def needs(built: Build, *engines: str) -> None:
    for engine in engines:
        if engine not in built.libraries:
            pytest.skip(f"the build has left out {engine}: {built.left_out.get(engine, 'it was not asked for')}")


@pytest.fixture(scope="module")
def ops(fixture_built: Build, built: Build) -> Any:
    """The functions of the fixture ops."""
    needs(fixture_built, "tensorflow")
    needs(built, "tensorflow")
    import opgate.tensorflow

    return opgate.tensorflow.load(fixture_built.libraries["tensorflow"])


@pytest.fixture(scope="module")
def models(ops: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with SavedModels."""
    import tensorflow as tf

    folder = tmp_path_factory.mktemp("models")

    def save(name: str, *functions: Any, **specs: Any) -> None:
        module = tf.Module()
        named = [tf.TensorSpec(*spec, name=key) for key, spec in specs.items()]
        module.traced = [tf.function(function, input_signature=named) for function in functions]
        signatures = {f"signature_{i}": traced.get_concrete_function() for i, traced in enumerate(module.traced)}
        tf.saved_model.save(module, str(folder / name), signatures)

    def tensors(points: Any, query: Any) -> Any:
        sums, counts = ops.nearest_sum(points, query=query, scale=2.5)
        weighted = ops.nearest_sum_required(points, weight=points[:, 0])
        return {"sums": sums, "counts": counts, "all": ops.sum_all([weighted, weighted * 2.0, weighted])}

    def texts(text: Any) -> Any:
        return {"text": ops.shout(text, words=["two", "words"], twice=True, letters="lower")}

    def loop(x: Any) -> Any:
        for _ in tf.range(3):
            x = ops.sum_all([x, x])
        return {"y": x}

    save("tensors", tensors, points=([None, 3],), query=([None, 3],))
    save("texts", texts, text=([None], tf.string))
    save("loop", loop, x=([None, 2],))
    save("unknown", lambda x: {"y": tf.math.bessel_i0e(x)}, x=([3],))
    save("random", lambda x: {"y": x + tf.random.normal([3])}, x=([3],))
    save("several", lambda x: {"y": x + 1.0}, lambda x: {"x": x}, x=([3],))
    save("indices", lambda x, i: {"y": tf.gather(x, i - 5)}, x=([3],), i=([2], tf.int32))
    (folder / "empty").mkdir()
    (folder / "net.keras").touch()
    (folder / "broken.tflite").write_text("no model")
    return folder


def imported(model: Path, target: Path, *arguments: object) -> tuple[list[str], list[onnx.NodeProto]]:
    """Imports a model. Returns the lines of the report and the nodes of the result."""
    result = in_process(model, "--to", target, *arguments)
    assert result.exit_code == 0, result.output
    return result.output.splitlines(), list(onnx.load(target / "1" / "model.onnx").graph.node)


def nearest_and_sums(nodes: list[onnx.NodeProto]) -> list[tuple[str, list[bool], int, dict[str, Any]]]:
    """Returns what nodes of the fixture ops have: which inputs, how many outputs, and which attributes."""
    return [
        (n.op_type, [bool(name) for name in n.input], len(n.output),
         {a.name: helper.get_attribute_value(a) for a in n.attribute})
        for n in nodes if n.domain == "fixture_ops"
    ]  # fmt: skip


NODES = [
    ("NearestSum", [True, False, True], 2, {"scale": 2.5}),
    ("NearestSum", [True, False, False, True], 1, {"scale": 1.0}),
    ("SumAll", [True, True, True], 1, {}),
]


def test_ops_become_nodes(models: Path, fixture_library: Path, tmp_path: Path) -> None:
    """Absent inputs between others, absent outputs, a variadic input; the config names the library."""
    arguments = ("--custom-library", fixture_library, "--max-batch-size", 0)
    lines, nodes = imported(models / "tensors", tmp_path / "tensors", *arguments)
    assert sorted(map(str, nearest_and_sums(nodes))) == sorted(map(str, NODES))
    assert lines[0].startswith("converted by tf2onnx ") and " from TensorFlow " in lines[0]
    assert {"fixture_ops::NearestSum: 2 nodes", "fixture_ops::SumAll: 1 node"} < set(lines)
    assert sum(line.startswith("compared ") for line in lines) == 2
    config = text_format.Parse((tmp_path / "tensors" / "config.pbtxt").read_text(), ModelConfig())
    assert list(config.model_operations.op_library_filename) == ["libfixture_ops_onnxruntime.so"]
    assert [(t.name, list(t.dims)) for t in config.input] == [("points", [-1, 3]), ("query", [-1, 3])]
    assert [t.name for t in config.output] == ["all", "counts", "sums"]


def test_ops_of_litert_become_nodes(models: Path, fixture_built: Build, tmp_path: Path) -> None:
    need("ai_edge_litert")
    needs(fixture_built, "litert")
    import tensorflow as tf

    converter = tf.lite.TFLiteConverter.from_saved_model(str(models / "tensors"), ["signature_0"])
    converter.allow_custom_ops = True
    (tmp_path / "tensors.tflite").write_bytes(converter.convert())
    lines, nodes = imported(
        tmp_path / "tensors.tflite", tmp_path / "m", "--custom-library", fixture_built.libraries["onnxruntime"]
    )
    assert sorted(map(str, nearest_and_sums(nodes))) == sorted(map(str, NODES))
    assert " from LiteRT " in lines[0] and sum(line.startswith("compared ") for line in lines) == 2
    graph = onnx.load(tmp_path / "m" / "1" / "model.onnx").graph
    assert {value.name for value in graph.input} == {"points", "query"}
    assert {value.name for value in graph.output} == {"sums", "counts", "all"}


def test_texts_and_an_output_with_the_name_of_an_input(models: Path, fixture_library: Path, tmp_path: Path) -> None:
    _, nodes = imported(models / "texts", tmp_path / "texts", "--custom-library", fixture_library)
    expected = {"mark": b"!", "words": b"two\nwords", "twice": 1, "letters": b"lower"}
    assert nearest_and_sums(nodes) == [("Shout", [True], 1, expected)]
    assert [value.name for value in onnx.load(tmp_path / "texts" / "1" / "model.onnx").graph.output] == ["text_out"]


def test_an_op_in_a_loop(models: Path, fixture_library: Path, tmp_path: Path) -> None:
    lines, _ = imported(models / "loop", tmp_path / "loop", "--custom-library", fixture_library)
    assert "fixture_ops::SumAll: 1 node" in lines


def test_options(models: Path, tmp_path: Path) -> None:
    _, nodes = imported(models / "several", tmp_path / "one", "--signature", "signature_0")
    assert [node.op_type for node in nodes] == ["Add"]
    imported(models / "random", tmp_path / "random", "--tolerance", 100)
    lines, _ = imported(models / "indices", tmp_path / "indices", "--input", "i=[5,7]")
    assert sum(line.startswith("compared ") for line in lines) == 1


REFUSED = [
    (["unknown"], "nobody knows the op BesselI0e: neither tf2onnx nor a library has it"),
    (["random"], "output 'y' of the ONNX model differs from TensorFlow "),
    (["several"], "expected a signature 'serving_default', the model has signature_0, signature_1"),
    (["several", "--signature", "other"], "expected a signature 'other', the model has signature_0, signature_1"),
    (["indices"], "doesn't run the model on these inputs: "),
    (["empty"], "empty is no SavedModel: expected a folder with saved_model.pb"),
    (["net.keras"], "net.keras is a file of Keras: write a SavedModel with model.export('folder'), and import that"),
    (["random", "--output", "m.onnx"], "expected --output or --to, got both"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED, ids=[row[1][:40] for row in REFUSED])
def test_what_is_refused(models: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    result = in_process(models / arguments[0], "--to", tmp_path / "m", *arguments[1:])
    assert result.exit_code == 1 and message in result.output, result.output
    assert not (tmp_path / "m").exists()


def test_a_file_that_is_no_model_of_litert(models: Path, tmp_path: Path) -> None:
    need("ai_edge_litert")
    result = in_process(models / "broken.tflite", "--to", tmp_path / "m")
    assert result.exit_code == 1 and "LiteRT doesn't load " in result.output, result.output


def test_an_output_of_litert_that_is_an_input(models: Path, tmp_path: Path) -> None:
    need("ai_edge_litert")
    import tensorflow as tf

    same = tf.function(lambda x: x, input_signature=[tf.TensorSpec([3])]).get_concrete_function()
    (tmp_path / "same.tflite").write_bytes(tf.lite.TFLiteConverter.from_concrete_functions([same]).convert())
    result = in_process(tmp_path / "same.tflite", "--to", tmp_path / "m")
    assert result.exit_code == 1 and "expected outputs that nodes compute, got an input" in result.output, result.output


def test_a_version_that_is_there_stays(models: Path, tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    result = in_process(models / "random", "--to", tmp_path / "m")
    assert (
        result.exit_code == 1 and "is there: choose another --version, or replace it with --overwrite" in result.output
    )


def test_a_missing_package_is_named(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "opgate.onnx_tools.from_tensorflow", raising=False)
    monkeypatch.setitem(sys.modules, "tf2onnx", None)
    result = in_process(models / "random", "--to", tmp_path / "m")
    assert result.exit_code == 1
    assert "needs TensorFlow and tf2onnx (pip install 'opgate[tensorflow]'): import of tf2onnx" in result.output


def test_an_op_whose_library_for_tensorflow_is_not_there(library: Path, ops: Any, tmp_path: Path) -> None:
    """The node is in the model, and neither TensorFlow nor tf2onnx knows it."""
    from opgate.onnx_tools.from_tensorflow import with_ops

    node = helper.make_node("TFL_Mine>Thing", ["x"], ["y"])
    model = helper.make_model(helper.make_graph([node], "g", [], []))
    with pytest.raises(ConversionError, match="nobody knows the op Mine>Thing: "):
        with_ops(model, read_table(library), complete=False)


def test_an_attribute_that_tf2onnx_has_lost(fixture_library: Path, ops: Any) -> None:
    from opgate.onnx_tools.from_tensorflow import with_ops

    (op,) = [op for op in read_table(fixture_library) if op.name == "NearestSum"]
    node = helper.make_node(type_of(op), ["points"], ["sum"], domain=op.domain)
    model = helper.make_model(helper.make_graph([node], "g", [], []))
    with pytest.raises(ConversionError, match="tf2onnx has lost the attribute 'scale'"):
        with_ops(model, [op], complete=True)
