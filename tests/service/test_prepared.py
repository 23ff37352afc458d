"""Prepared models give the same bits, are never trusted blindly, and are shared and bounded."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from opgate.service.execution import prepared
from opgate.service.execution.prepared import ABOUT, MODEL, WEIGHTS, PreparedModels
from opgate.service.execution.session import Session, SessionOptions, open_prepared
from tests.service.onnx_models import save, value

OPTIONS = SessionOptions(intra_op_threads=1)
MUCH = 1 << 40


def matrices(folder, name="m", count=2, side=640, seed=0):
    """Saves a model with large weights. Returns the path of its file."""
    generator = np.random.default_rng(seed)
    weights = [generator.standard_normal((side, side), dtype=np.float32) for _ in range(count)]
    nodes = [helper.make_node("MatMul", [f"t{i}", f"w{i}"], [f"t{i + 1}"]) for i in range(count)]
    initializers = [numpy_helper.from_array(weight, f"w{i}") for i, weight in enumerate(weights)]
    inputs, outputs = [value("t0", "FP32", ("n", side))], [value(f"t{count}", "FP32", ("n", side))]
    return save(folder, name, nodes, inputs, outputs, initializers=initializers) / "1" / "model.onnx"


def convolutions(folder):
    """Saves a model whose graph ONNX Runtime changes: convolutions with batch norms and activations."""
    generator = np.random.default_rng(0)
    nodes, initializers, x, channels = [], [], "x", 3
    for i, out in enumerate((64, 160, 320)):
        arrays = {f"w{i}": (out, channels, 3, 3), f"s{i}": (out,), f"b{i}": (out,), f"m{i}": (out,)}
        initializers += [
            numpy_helper.from_array(generator.standard_normal(s, dtype=np.float32), n) for n, s in arrays.items()
        ]
        initializers.append(numpy_helper.from_array(generator.random(out, dtype=np.float32) + 1, f"v{i}"))
        nodes.append(helper.make_node("Conv", [x, f"w{i}"], [f"c{i}"], pads=[1, 1, 1, 1]))
        names = [f"c{i}", f"s{i}", f"b{i}", f"m{i}", f"v{i}"]
        nodes.append(helper.make_node("BatchNormalization", names, [f"n{i}"]))
        nodes.append(helper.make_node("Relu", [f"n{i}"], [f"r{i}"]))
        x, channels = f"r{i}", out
    inputs, outputs = [value("x", "FP32", ("n", 3, "h", "w"))], [value(x, "FP32", ("n", 320, "h", "w"))]
    return save(folder, "cnn", nodes, inputs, outputs, initializers=initializers) / "1" / "model.onnx"


@pytest.fixture
def cache(tmp_path):
    return PreparedModels(tmp_path / "cache", MUCH)


def entries(folder):
    return sorted(path.parent for path in Path(folder).glob("*/about.json"))


@pytest.mark.parametrize("make", [matrices, convolutions])
def test_the_same_bits_come_out(tmp_path, cache, make):
    path = make(tmp_path)
    plain = Session(path, OPTIONS)
    assert cache.find(path, OPTIONS, ()) is None
    found = cache.find(path, OPTIONS, (), wait=True)
    assert found is not None and found[0].parent.parent == tmp_path / "cache"
    other = Session(*found)
    assert (other.inputs, other.outputs) == (plain.inputs, plain.outputs)
    shape = [4 if isinstance(size, str) else size for size in plain.inputs[0].shape]
    shape[2:] = [24] * len(shape[2:])
    feeds = {plain.inputs[0].name: np.random.default_rng(1).standard_normal(shape).astype(np.float32)}
    names = [tensor.name for tensor in plain.outputs]
    for one, two in zip(plain.run(names, dict(feeds)), other.run(names, dict(feeds)), strict=True):
        assert one.tobytes() == two.tobytes()


def test_its_weights_are_mapped(tmp_path, cache):
    path = matrices(tmp_path)
    found = cache.find(path, OPTIONS, (), wait=True)
    session = Session(*found)
    mapped = Path("/proc/self/maps").read_text()
    assert str(found[0].parent / WEIGHTS) in mapped
    session.close()


def test_weights_beside_the_file_count(tmp_path, cache):
    path = matrices(tmp_path)
    model = onnx.load(path)
    onnx.save(model, path, save_as_external_data=True, location="weights.data", size_threshold=0)
    first = cache.find(path, OPTIONS, (), wait=True)
    data = bytearray((path.parent / "weights.data").read_bytes())
    data[40:44] = np.float32(7).tobytes()
    (path.parent / "weights.data").write_bytes(data)
    assert cache.find(path, OPTIONS, ()) is None
    second = cache.find(path, OPTIONS, (), wait=True)
    assert second is not None and second[0] != first[0]


def test_what_else_decides_makes_another_one(tmp_path, cache, monkeypatch):
    path = matrices(tmp_path)
    assert cache.find(path, OPTIONS, (), wait=True)
    assert cache.find(path, replace(OPTIONS, graph_level="basic"), ()) is None
    assert cache.find(path, replace(OPTIONS, entries={"session.disable_prepacking": "1"}), ()) is None
    assert cache.find(path, OPTIONS, ("digest of a library",)) is None
    monkeypatch.setattr(prepared.ort, "__version__", "1.0")
    assert cache.find(path, OPTIONS, ()) is None


@pytest.mark.parametrize("options", [replace(OPTIONS, gpu=0), replace(OPTIONS, profile=Path("/tmp"))])
def test_some_sessions_have_none(tmp_path, cache, options):
    assert cache.find(matrices(tmp_path), options, (), wait=True) is None


def test_a_small_file_and_a_cache_without_room_have_none(tmp_path, cache):
    small = matrices(tmp_path, side=8)
    assert cache.find(small, OPTIONS, (), wait=True) is None
    assert PreparedModels(tmp_path / "other", 0).find(matrices(tmp_path, "n"), OPTIONS, (), wait=True) is None
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("name", [MODEL, WEIGHTS])
@pytest.mark.parametrize("how", ["a byte", "cut", "gone", "about"])
def test_a_damaged_file_is_found_and_made_again(tmp_path, cache, name, how, caplog):
    path = matrices(tmp_path)
    found = cache.find(path, OPTIONS, (), wait=True)
    file = found[0].parent / name
    data = bytearray(file.read_bytes())
    if how == "a byte":
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    elif how == "cut":
        file.write_bytes(data[:-1])
    elif how == "gone":
        file.unlink()
    else:
        (found[0].parent / ABOUT).write_text("{}")
    other = PreparedModels(tmp_path / "cache", MUCH)  # as after a restart
    assert other.find(path, OPTIONS, ()) is None
    again = other.find(path, OPTIONS, (), wait=True)
    assert again is not None
    Session(*again)


def test_a_process_sees_that_a_file_it_has_used_was_changed(tmp_path, cache):
    path = matrices(tmp_path)
    file = cache.find(path, OPTIONS, (), wait=True)[0].parent / WEIGHTS
    assert cache.find(path, OPTIONS, ())
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)
    assert cache.find(path, OPTIONS, ()) is None


def test_a_file_that_can_not_be_compared_stays_as_it_is(tmp_path, cache):
    """It takes three rows, and nobody knows that."""
    arrays = {"w": np.ones((600, 600), np.float32), "three": np.array([3, 600])}
    initializers = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["z"]), helper.make_node("Reshape", ["z", "three"], ["y"])]
    tensors = [value("x", "FP32", ("n", 600))], [value("y", "FP32", (3, 600))]
    path = save(tmp_path, "m", nodes, *tensors, initializers=initializers) / "1" / "model.onnx"
    assert cache.find(path, OPTIONS, (), wait=True) is None
    (entry,) = entries(tmp_path / "cache")
    assert "made-up inputs don't fit it" in json.loads((entry / ABOUT).read_text())["unusable"]
    began = time.monotonic()
    assert cache.find(path, OPTIONS, (), wait=True) is None
    assert time.monotonic() - began < 0.5  # nobody tries again
    old = time.time() - prepared._TRY_AGAIN - 1
    os.utime(entry / ABOUT, (old, old))
    assert cache.find(path, OPTIONS, ()) is None and not entries(tmp_path / "cache")  # until a day has passed


def test_a_cache_that_was_too_small_prepares_it_when_it_is_larger(tmp_path):
    path = matrices(tmp_path)
    small = PreparedModels(tmp_path / "cache", 1 << 20)
    assert small.find(path, OPTIONS, (), wait=True) is None
    assert small.find(path, OPTIONS, (), wait=True) is None
    larger = PreparedModels(tmp_path / "cache", MUCH)
    larger.find(path, OPTIONS, (), wait=True)
    assert larger.find(path, OPTIONS, (), wait=True) is not None


@pytest.mark.parametrize("left", [0, 4 << 20], ids=["none", "less than it takes"])
def test_a_full_disk_is_said_and_forgotten(tmp_path, cache, monkeypatch, caplog, left):
    """4 MiB are more than the file has, and fewer than its prepared form."""
    path = matrices(tmp_path)
    disk_usage, prepare = prepared.shutil.disk_usage, prepared._prepare

    def fail(path, options, folder):
        return "Failed to write external initializers to file"

    with monkeypatch.context() as context:
        context.setattr(prepared.shutil, "disk_usage", lambda place: disk_usage(place)._replace(free=left))
        context.setattr(prepared, "_prepare", fail)
        assert cache.find(path, OPTIONS, (), wait=True) is None
    assert "bytes left for it, got" in caplog.text
    assert prepared._prepare is prepare and cache.find(path, OPTIONS, (), wait=True) is not None


def test_a_file_that_is_no_model_stays_as_it_is(tmp_path, cache):
    (tmp_path / "m" / "1").mkdir(parents=True)
    path = tmp_path / "m" / "1" / "model.onnx"
    path.write_bytes(os.urandom(2 << 20))
    assert cache.find(path, OPTIONS, (), wait=True) is None


def test_strings_and_other_types(tmp_path, cache):
    weight = numpy_helper.from_array(np.ones((600, 600), np.float32), "w")
    names = ["text", "flag", "id", "half", "x"]
    types = ["BYTES", "BOOL", "INT64", "FP16", "FP32"]
    inputs = [value(name, kind, ("n", 600)) for name, kind in zip(names, types, strict=True)]
    nodes = [helper.make_node("Identity", [name], [f"{name}_out"]) for name in names[:-1]]
    nodes.append(helper.make_node("MatMul", ["x", "w"], ["x_out"]))
    outputs = [value(f"{name}_out", kind, ("n", 600)) for name, kind in zip(names, types, strict=True)]
    path = save(tmp_path, "types", nodes, inputs, outputs, initializers=[weight]) / "1" / "model.onnx"
    assert cache.find(path, OPTIONS, (), wait=True) is not None


def test_the_cache_is_bounded_and_what_was_used_last_stays(tmp_path):
    folder = tmp_path / "cache"
    paths = [matrices(tmp_path, f"m{i}", seed=i) for i in range(4)]
    first = PreparedModels(folder, MUCH)
    sizes = []
    for path in paths[:2]:
        entry = first.find(path, OPTIONS, (), wait=True)[0].parent
        sizes.append(sum(file.stat().st_size for file in entry.iterdir()))
        time.sleep(0.02)
    bounded = PreparedModels(folder, int(2.5 * max(sizes)))
    assert bounded.find(paths[0], OPTIONS, ())  # now the other one is older
    time.sleep(0.02)
    assert bounded.find(paths[2], OPTIONS, (), wait=True)
    assert len(entries(folder)) == 2
    assert bounded.find(paths[0], OPTIONS, ()) and bounded.find(paths[1], OPTIONS, ()) is None
    assert len(list((folder / "names").iterdir())) == 2
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_a_form_that_is_larger_than_the_cache_takes_the_place_of_none(tmp_path):
    folder = tmp_path / "cache"
    small, other = matrices(tmp_path, "small"), matrices(tmp_path, "other", count=8)
    size = sum(
        file.stat().st_size
        for file in PreparedModels(folder, MUCH).find(small, OPTIONS, (), wait=True)[0].parent.iterdir()
    )
    bounded = PreparedModels(folder, 2 * size)
    assert bounded.find(other, OPTIONS, (), wait=True) is None
    assert bounded.find(small, OPTIONS, ()) is not None
    began = time.monotonic()
    assert bounded.find(other, OPTIONS, (), wait=True) is None
    assert time.monotonic() - began < 0.5  # nobody prepares it again


def test_a_file_that_changes_meanwhile_leaves_no_form(tmp_path, cache, monkeypatch):
    path = matrices(tmp_path)
    first, second = path.read_bytes(), matrices(tmp_path, "n", seed=1).read_bytes()
    prepare = prepared._prepare

    def late(path, options, folder):
        path.write_bytes(second)
        reason = prepare(path, options, folder)
        path.write_bytes(first)
        return reason

    monkeypatch.setattr(prepared, "_prepare", late)
    assert cache.find(path, OPTIONS, (), wait=True) is None
    assert not entries(tmp_path / "cache")


def test_what_a_process_left_that_was_ended_goes(tmp_path, cache):
    path = matrices(tmp_path)
    found = cache.find(path, OPTIONS, (), wait=True)
    key = found[0].parent.name
    cache._remove(found[0].parent)
    left = tmp_path / "cache" / f".{key}.1.1"
    left.mkdir()
    (left / WEIGHTS).write_bytes(b"0" * 100)
    old = tmp_path / "cache" / ".other.1.1"
    old.mkdir()
    os.utime(old, (1, 1))
    assert cache.find(path, OPTIONS, (), wait=True)
    assert not left.exists() and not old.exists()


def test_one_that_is_open_goes_on_when_it_is_removed(tmp_path, cache):
    path = matrices(tmp_path)
    session = Session(*cache.find(path, OPTIONS, (), wait=True))
    x = {"t0": np.ones((2, 640), np.float32)}
    before = session.run(["t2"], dict(x))[0]
    cache._remove(entries(tmp_path / "cache")[0])
    assert not entries(tmp_path / "cache")
    assert session.run(["t2"], dict(x))[0].tobytes() == before.tobytes()


def test_one_that_is_gone_is_opened_as_it_is(tmp_path, cache):
    path = matrices(tmp_path)
    found = cache.find(path, OPTIONS, (), wait=True)
    cache._remove(found[0].parent)
    assert open_prepared(path, OPTIONS, found).inputs[0].name == "t0"


def test_a_folder_that_others_may_write_is_not_used(tmp_path, caplog):
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(0o777)
    assert PreparedModels(folder, MUCH).find(matrices(tmp_path), OPTIONS, (), wait=True) is None
    assert "nobody else may write there" in caplog.text
    assert not list(folder.iterdir())


def test_a_folder_that_can_not_be_made_is_said_once(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    cache = PreparedModels(tmp_path / "file" / "cache", MUCH)
    path = matrices(tmp_path)
    for _ in range(3):
        assert cache.find(path, OPTIONS, ()) is None
    assert caplog.text.count("can't be used") == 1


def find(arguments):
    folder, path = arguments
    return PreparedModels(folder, MUCH).find(path, OPTIONS, (), wait=True)[0]


def test_many_processes_make_one(tmp_path):
    path = matrices(tmp_path)
    with multiprocessing.get_context("forkserver").Pool(4) as pool:
        found = pool.map(find, [(tmp_path / "cache", path)] * 4)
    assert len(set(found)) == 1 and len(entries(tmp_path / "cache")) == 1


def test_a_thread_prepares_what_was_asked_for(tmp_path, cache):
    path = matrices(tmp_path)
    assert cache.find(path, OPTIONS, ()) is None
    cache.start()
    end = time.monotonic() + 60
    while cache.find(path, OPTIONS, ()) is None:
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_copy_of_the_file_has_the_same_form(tmp_path, cache):
    path = matrices(tmp_path)
    found = cache.find(path, OPTIONS, (), wait=True)
    other = tmp_path / "copy" / "1" / "model.onnx"
    other.parent.mkdir(parents=True)
    other.write_bytes(path.read_bytes())
    assert cache.find(other, OPTIONS, ()) == found


def test_defaults_of_inputs_stay(tmp_path, cache):
    """An initializer that is an input too may be given by a client."""
    default = numpy_helper.from_array(np.full((640, 640), 2, np.float32), "w")
    fixed = numpy_helper.from_array(np.ones((640, 640), np.float32), "f")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["z"]), helper.make_node("MatMul", ["z", "f"], ["y"])]
    inputs = [value("x", "FP32", ("n", 640)), value("w", "FP32", (640, 640))]
    graph = helper.make_graph(nodes, "m", inputs, [value("y", "FP32", ("n", 640))], [default, fixed])
    path = tmp_path / "m" / "1" / "model.onnx"
    path.parent.mkdir(parents=True)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    plain = Session(path, OPTIONS)
    found = cache.find(path, OPTIONS, (), wait=True)
    assert plain.defaulted
    other = plain if found is None else Session(*found)
    assert other.defaulted == plain.defaulted
    x = np.ones((1, 640), np.float32)
    for feeds in ({"x": x}, {"x": x, "w": np.zeros((640, 640), np.float32)}):
        assert other.run(["y"], dict(feeds))[0].tobytes() == plain.run(["y"], dict(feeds))[0].tobytes()


def test_a_look_at_a_large_one_takes_no_memory(tmp_path):
    code = f"""
import resource
from pathlib import Path
from opgate.service.execution.prepared import _sums
size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + {1 << 26}, -1))
print(_sums(Path({str(tmp_path)!r}))[{WEIGHTS!r}][0])
"""
    (tmp_path / MODEL).touch()
    with (tmp_path / WEIGHTS).open("wb") as file:
        file.truncate(1 << 28)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"{1 << 28}\n"), done.stderr
