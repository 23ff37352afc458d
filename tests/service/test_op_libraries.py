"""The gateway loads an op library only if a manifest in a trusted folder lists its hash."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import onnx
import pytest
from onnx import helper

from opgate.service.repository import op_libraries
from opgate.service.repository.config import ConfigError
from tests.service.onnx_models import double, save, value


@pytest.fixture
def library(tmp_path):
    path = tmp_path / "libs" / "libmine.so"
    path.parent.mkdir()
    path.write_bytes(b"not really native code")
    return path


def test_a_library_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="opgate build"):
        op_libraries.trusted_library("libmine.so", [], [tmp_path])


def test_a_library_that_no_manifest_lists(tmp_path, library):
    with pytest.raises(ConfigError, match=r"not trusted.*opgate trust"):
        op_libraries.trusted_library("libmine.so", [library.parent], [tmp_path])


def test_a_manifest_beside_the_library_is_not_enough(tmp_path, library):
    op_libraries.trust(library, library.parent)
    with pytest.raises(ConfigError, match="not trusted"):
        op_libraries.trusted_library("libmine.so", [library.parent], [tmp_path])


def test_trust_lists_the_hash_once_and_a_changed_file_is_refused(tmp_path, library):
    folder = tmp_path / "ops"
    assert op_libraries.trust(library, folder) == folder / "manifest.json"
    op_libraries.trust(library, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert [entry["sha256"] for entry in manifest["libraries"]] == [op_libraries.sha256(library)]
    assert op_libraries.trusted_library("libmine.so", [library.parent], [folder]).path == library
    library.write_bytes(b"something else")
    with pytest.raises(ConfigError, match="not trusted"):
        op_libraries.trusted_library("libmine.so", [library.parent], [folder])


def test_models_that_load_side_by_side_share_one_image(tmp_path, library):
    """Each image would be a library of its own in the process."""
    for round_ in range(20):
        library.write_bytes(b"%d" % round_ * (1 << 20))
        op_libraries.trust(library, tmp_path / "ops")
        with ThreadPoolExecutor(8) as pool:
            load = lambda _: op_libraries.trusted_library("libmine.so", [library.parent], [tmp_path / "ops"])  # noqa: E731
            assert len({found.image for found in pool.map(load, range(8))}) == 1


def test_the_version_folder_comes_before_the_model_folder(tmp_path, library):
    version = tmp_path / "m" / "1"
    version.mkdir(parents=True)
    (version / "libmine.so").write_bytes(b"of this version")
    path = op_libraries.find_library("libmine.so", [version, library.parent])
    assert path == version / "libmine.so"


@pytest.mark.parametrize("name", ["../libmine.so", "/tmp/libmine.so", "a/b.so", "", ".."])
def test_only_bare_names(tmp_path, name):
    with pytest.raises(ConfigError, match="bare file name"):
        op_libraries.find_library(name, [tmp_path])


def test_a_broken_manifest_is_said_to_be_broken(tmp_path, library):
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(ConfigError, match=r"manifest\.json"):
        op_libraries.trusted_library("libmine.so", [library.parent], [tmp_path])


def test_a_missing_op_is_named_with_the_remedy(repository, reason, settings):
    node = helper.make_node("Sparkle", ["x"], ["y"], domain="mine")
    folder = save(repository, "m", [node], [value("x", "FP32", [4])], [value("y", "FP32", [4])])
    model = onnx.load(folder / "1" / "model.onnx")
    model.opset_import.append(helper.make_opsetid("mine", 1))
    onnx.save(model, folder / "1" / "model.onnx")
    assert "op 'mine::Sparkle'" in reason("m")
    assert "opgate build" in reason("m")
    settings.build_ops.mkdir()
    entry = {"file": "libmine.so", "engine": "onnxruntime", "sha256": "0", "ops": [{"name": "Sparkle"}]}
    (settings.build_ops / "manifest.json").write_text(json.dumps({"format": 1, "libraries": [entry]}))
    assert "libmine.so has an op of that name in another domain" in reason("m")
    entry["ops"] = [{"name": "Sparkles"}]
    (settings.build_ops / "manifest.json").write_text(json.dumps({"format": 1, "libraries": [entry]}))
    assert "Did you mean 'Sparkles' of libmine.so?" in reason("m")
    del entry["ops"]  # as `opgate trust` writes it for a library of others
    (settings.build_ops / "manifest.json").write_text(json.dumps({"format": 1, "libraries": [entry]}))
    assert 'libmine.so has: if it has this one, write model_operations { op_library_filename: "libmine.so" }' in reason(
        "m"
    )


def test_an_untrusted_library_keeps_only_its_model_from_being_served(repository, load, library):
    double(repository, "good")
    folder = double(
        repository, "bad", config='max_batch_size: 4 model_operations { op_library_filename: "libmine.so" }'
    )
    (folder / "libmine.so").write_bytes(library.read_bytes())
    gateway = load()
    assert gateway.find("good")
    assert gateway.catalog.unavailable() == ["bad"]


def test_what_is_loaded_is_what_was_hashed(tmp_path, library):
    """Somebody who may write beside the library changes it all the time."""
    good = library.read_bytes() * 1000
    library.write_bytes(good)
    op_libraries.trust(library, tmp_path)
    stop = threading.Event()

    def race():
        bad = library.with_name("bad.so")
        while not stop.is_set():
            for data in (b"evil" * 10000, good):
                bad.write_bytes(data)
                bad.replace(library)

    writer = threading.Thread(target=race)
    writer.start()
    loaded = refused = 0
    try:
        for _ in range(500):
            try:
                found = op_libraries.trusted_library("libmine.so", [library.parent], [tmp_path])
            except ConfigError:
                refused += 1
                continue
            assert found.image.read_bytes() == good
            loaded += 1
    finally:
        stop.set()
        writer.join()
    assert loaded and refused
    with pytest.raises(OSError, match="not permitted"), found.image.open("r+b") as image:
        image.write(b"evil")


@pytest.mark.parametrize("which", ["folder", "manifest", "parent"])
def test_a_trusted_folder_that_everybody_may_write_is_refused(tmp_path, library, which):
    folder = tmp_path / "outer" / "ops"
    folder.mkdir(parents=True)
    op_libraries.trust(library, folder)
    loose = {"folder": folder, "manifest": folder / "manifest.json", "parent": folder.parent}[which]
    before = loose.stat().st_mode
    loose.chmod(before | 0o002)
    with pytest.raises(ConfigError, match=f"everybody may write {loose}.*chmod o-w {loose}"):
        op_libraries.trusted_library("libmine.so", [library.parent], [folder])
    loose.chmod(before)
    assert op_libraries.trusted_library("libmine.so", [library.parent], [folder])


def test_a_library_for_a_later_processor_is_refused_by_name(tmp_path, library, monkeypatch):
    entry = {"file": library.name, "sha256": op_libraries.sha256(library), "flags": "-O3 -march=x86-64-v3"}
    (tmp_path / "manifest.json").write_text(json.dumps({"format": 1, "libraries": [entry]}))
    read_text = Path.read_text

    def with_flags(flags):
        def read(path, *args, **kwargs):
            return (
                f"processor: 0\nflags\t\t: {flags}\n"
                if str(path) == "/proc/cpuinfo"
                else read_text(path, *args, **kwargs)
            )

        monkeypatch.setattr(Path, "read_text", read)

    all_of_them = "fpu abm avx avx2 bmi1 bmi2 f16c fma movbe xsave"
    with_flags(all_of_them)
    assert op_libraries.trusted_library("libmine.so", [library.parent], [tmp_path]).path == library
    with_flags(all_of_them.replace("avx2 ", "").replace("fma ", ""))
    with pytest.raises(ConfigError, match=r"-march=x86-64-v3, and this processor lacks avx2, fma: build it without"):
        op_libraries.trusted_library("libmine.so", [library.parent], [tmp_path])
