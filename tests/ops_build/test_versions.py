"""The libraries in other versions of engines. `make versions` tries many more, with every case of every op."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from opgate.ops_build.building.build import Build
from opgate.ops_build.building.options import BuildOptions
from tests import versions
from tests.conftest import OPTIONS, thorough

#: One op whose node may lack an input in the middle: ONNX Runtime before 1.24 crashed when it loaded one. One with integers.
OPS = ("LayerNorm", "BallQuery")
OLDEST = [(name, engine.versions[0]) for name, engine in versions.ENGINES.items() if name != "torch"]


@thorough("other versions of engines are installed")
@pytest.mark.parametrize(("engine", "version"), [*OLDEST, ("onnxruntime", "1.23")])
def test_a_version_of_an_engine(built: Build, engine: str, version: str) -> None:
    """PyTorch is left out: its older packages bring several GB of CUDA."""
    of, environment = versions.ENGINES[engine], versions.environment_of(engine, version)
    if of.library not in built.libraries:
        pytest.skip(f"{of.library} was left out: {built.left_out.get(of.library)}")
    python = versions.interpreter(environment)
    if isinstance(python, str):
        pytest.skip(f"{of.package} {version} can't be had here: {python}")
    found = versions.try_out(environment, python, OPTIONS, OPS)
    if of.fits_one:
        assert "fits TensorFlow" in found["refused"]
    else:
        assert found["failed"] == []
        assert found["passed"] > (10 if engine == "tensorrt" else 50), found


def test_a_row_is_of_one_file_and_one_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known of another file doesn't count. JAX calls the library of ONNX Runtime."""
    options = BuildOptions(output=tmp_path)
    options.target("onnxruntime").write_text("the library")
    environment = versions.environment_of("jax", "0.6")
    key = f"{environment.name} {hashlib.sha256(b'the library').hexdigest()}"
    known = {
        key: {
            "versions": "0.6.2 2.4.6 3.11.7",
            "passed": 1234,
            "failed": [],
            "skipped": {"strings": 1, "sizes": 2},
        }
    }

    def row(engine: str = "jax") -> tuple[str, ...]:
        return versions.row_of(versions.environment_of(engine, "0.6"), options, known, runs=False)

    file = hashlib.sha256(b"the library").hexdigest()[:8]
    assert row() == ("jax 0.6.2", "2.4.6", "3.11.7", file, "1,234 passed; 3 of op and dtype not run, most often: sizes")
    assert row("torch")[-1] == "not tried"
    torch = versions.environment_of("torch", "2.13")
    assert versions.row_of(torch, options, known)[-1] == "libopgate_torch.so is not built"
    known[key]["failed"].append("Mish f32: it differs")
    assert "1,234 passed, 1 failed: Mish f32: it differs" in row()[-1]
    known[key] = {"versions": "0.6.2 2.4.6 3.11.7", "refused": "it fits another"}
    assert row()[-1] == "refused: it fits another"
    options.target("onnxruntime").write_text("another library")
    assert row()[-2:] == (file, "refused: it fits another")  # of the last file that was tried
    assert versions.row_of(versions.environment_of("jax", "0.7"), options, known, runs=False)[-1] == "not tried"
    monkeypatch.setattr(versions, "interpreter", lambda environment: "no wheel can be had")
    assert versions.row_of(environment, options, known)[-1] == "no wheel can be had"


@pytest.mark.parametrize(
    ("result", "everywhere", "where_one_version_fits"),
    [("10 passed", False, False), ("0 passed; 3 of op and dtype not run: no wheel", True, True),
     ("9 passed, 1 failed: Mish", True, True), ("refused: it fits another, and has failed", True, False),
     ("10 passed; 2 of op and dtype not run, most often: it has failed elsewhere", False, False),
     ("libopgate_jax.so is not built", True, True), ("not tried", False, False)],
)  # fmt: skip
def test_a_refusal_is_right_where_a_library_fits_one_version(
    result: str, everywhere: bool, where_one_version_fits: bool
) -> None:
    assert versions.is_bad(versions.ENGINES["jax"], result) == everywhere
    assert versions.is_bad(versions.ENGINES["tensorflow"], result) == where_one_version_fits
