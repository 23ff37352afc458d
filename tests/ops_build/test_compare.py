"""`opgate diff`: what a new version of op libraries breaks."""

from __future__ import annotations

import json
import zipfile

import pytest
from typer.testing import CliRunner

from opgate.cli import app
from opgate.ops_build.packaging.compare import compare

OLD = "<T: f32|f64> Op(x: T[n,c], mask?: bool[n]; k: int=5, mode: {sum|mean}=sum) -> (y: T[n,k])"


def version(folder, signature, since=1, engines=("onnxruntime",), flags="", name="Op", glibc=""):
    """Writes the manifest of a version whose library has one op, and returns its folder."""
    folder.mkdir()
    op = {"name": name, "since_version": since, "signature": signature, "dtypes": [], "devices": ["cpu"]}
    libraries = [
        {"file": f"libmine_{engine}.so", "engine": engine, "domain": "mine", "flags": flags, "ops": [op]}
        | ({"glibc": glibc} if glibc else {})
        for engine in engines
    ]
    (folder / "manifest.json").write_text(json.dumps({"format": 1, "libraries": libraries}))
    return folder


@pytest.fixture
def compared(tmp_path, library):
    """A function that compares two versions, and returns what breaks and what is added."""

    def of(signature, old=OLD, before=None, **after):
        first, second = version(tmp_path / "old", old, **(before or {})), version(tmp_path / "new", signature, **after)
        changes = compare(first, second, library)
        return [c.text for c in changes if c.breaks], [c.text for c in changes if not c.breaks]

    return of


def changed(*pairs):
    text = OLD
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize(
    ("signature", "breaks"),
    [
        (changed(("T: f32|f64", "T: f32")), "mine.Op: not for the dtypes f64 bool f64 any more"),
        (changed((", mask?: bool[n]", "")), "mine.Op: input 'mask' is gone"),
        (changed(("mask?", "mask")), "mine.Op: input 'mask' is no longer optional"),
        (changed(("mask?: bool[n]", "bias: T[c]")), "mine.Op: input 2 is called 'bias', it was 'mask'"),
        (changed(("x: T", "data: T")), "mine.Op: input 1 is called 'data', it was 'x'"),
        (changed(("mask?: bool[n]", "mask?: bool[c]")), "mine.Op: other sizes: "),
        (changed(("y: T[n,k]", "y: T[n,c]")), "mine.Op: other sizes: "),
        (changed(("y: T[n,k]", "y: T[n,1]")), "mine.Op: other sizes: "),
        (changed(("y: T[n,k]", "y: T[n,n+1]")), "mine.Op: other sizes: "),
        (changed(("k: int=5", "k: int=6")), "mine.Op: attribute 'k' is 6 if it isn't given, it was 5"),
        (changed(("k: int=5", "k: int")), "mine.Op: attribute 'k' must be given"),
        (changed(("k: int=5, mode", "k: int=5, limit: float, mode")), "mine.Op: attribute 'limit' is new"),
        (changed(("k: int=5, mode", "k: int=5, limit: float=1, mode"), ("limit: float=1, ", ""), ("; k: int=5, ", "; "), ("y: T[n,k]", "y: T[n,c]")), "mine.Op: attribute 'k' is gone"),
        (changed(("{sum|mean}", "{sum|max}")), "mine.Op: attribute 'mode' can't be mean any more"),
        (changed(("(y: T[n,k])", "(y: T[n,k], index: i32[n])")), "mine.Op: output 'index' is new"),
        (changed(("(y: T[n,k])", "(y?: T[n,k])")), "mine.Op: output 'y' is optional"),
        (changed(("y: T[n,k]", "y: f32[n,k]")), "mine.Op: not for the dtypes f64 bool f64 any more"),
    ],
)  # fmt: skip
def test_what_breaks(compared, signature, breaks):
    found, _ = compared(signature)
    assert any(text.startswith(breaks) for text in found), found


@pytest.mark.parametrize(
    ("signature", "adds"),
    [
        (changed(("T: f32|f64", "T: f16|f32|f64")), ["mine.Op: for the dtypes f16 bool f16 too"]),
        (changed(("mask?: bool[n]", "mask?: bool[n], bias?: T[c]")), ["mine.Op: input 'bias' is new and optional"]),
        (changed(("k: int=5, mode", "k: int=5, limit: float=1, mode")), ["mine.Op: attribute 'limit' is new, with the default 1.0"]),
        (changed(("{sum|mean}", "{sum|mean|max}")), ["mine.Op: attribute 'mode' may be max"]),
        (changed(("(y: T[n,k])", "(y: T[n,k], index?: i32[n])")), ["mine.Op: output 'index' is new and optional"]),
        (changed(("n,c", "rows,cols"), ("bool[n]", "bool[rows]"), ("T[n,k]", "T[rows,k]")), []),
        (changed(("<T: f32|f64>", "<Any: f32|f64>"), ("x: T", "x: Any"), ("y: T", "y: Any")), []),
    ],
)  # fmt: skip
def test_what_does_not_break(compared, signature, adds):
    assert compared(signature) == ([], adds)


def test_places_versions_and_processors(compared):
    breaks, adds = compared(OLD, before={"engines": ("onnxruntime", "torch")}, since=2, flags="-march=x86-64-v4")
    assert breaks == [
        "mine.Op: version of the domain: models state 1, the op is one of 2",
        "mine.Op: no kernel for torch on cpu any more",
        "libmine_onnxruntime.so: compiled for -march=x86-64-v4, it was for every processor",
    ]
    assert adds == []


@pytest.mark.parametrize(
    ("old", "new"), [("y: T[n,c]", "y: T[n,1]"), ("y: T[n,n+1]", "y: T[n,n+c]"), ("y: T[n,0]", "y: T[n,n]")]
)
def test_a_number_is_no_name(compared, old, new):
    signature = "<T: f32|f64> Op(x: T[n,c]) -> (y: T[n])"
    breaks, _ = compared(signature.replace("y: T[n]", new), old=signature.replace("y: T[n]", old))
    assert len(breaks) == 1 and breaks[0].startswith("mine.Op: other sizes: "), breaks


def test_a_lower_level_of_processors_breaks_nothing(compared):
    found = compared(OLD, before={"flags": "-march=x86-64-v4"}, flags="-march=x86-64-v3")
    assert found == ([], ["libmine_onnxruntime.so: compiled for -march=x86-64-v3, it was for -march=x86-64-v4"])


@pytest.mark.parametrize("becomes_newer", [True, False])
def test_the_c_library_that_a_library_needs(compared, becomes_newer):
    before, after = ({"glibc": "2.28"}, {}) if becomes_newer else ({}, {"glibc": "2.28"})
    breaks, adds = compared(OLD, before=before, **after)
    now, was = ["for the glibc of its build", "for glibc 2.28 and later"][:: 1 if becomes_newer else -1]
    assert (breaks, adds)[not becomes_newer] == [f"libmine_onnxruntime.so: {now}, it was {was}"]
    assert (breaks, adds)[becomes_newer] == []


def test_ops_that_come_and_go(compared):
    assert compared(OLD.replace("Op(", "Other("), name="Other") == (["mine.Op: it is gone"], ["mine.Other: it is new"])


def test_the_command_takes_wheels_and_folders(tmp_path, library, monkeypatch):
    old, new = version(tmp_path / "old", OLD), version(tmp_path / "new", changed(("k: int=5", "k: int=6")))
    wheel = tmp_path / "mine-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(old / "manifest.json", "mine/lib/manifest.json")
    run = CliRunner().invoke
    done = run(app, ["diff", str(wheel), str(new)])
    assert done.exit_code == 1
    assert done.output == (
        "breaks  mine.Op: attribute 'k' is 6 if it isn't given, it was 5\n1 changes break models or callers, 0 don't\n"
    )
    same = run(app, ["diff", str(old), str(wheel)])
    assert (same.exit_code, same.output) == (0, "0 changes break models or callers, 0 don't\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.whl").write_bytes(b"PK")
    (tmp_path / "odd.json").write_text('{"libraries": [{"domain": "mine", "file": "a.so", "ops": [{"name": "Op"}]}]}')
    for place in ("empty", "broken.whl", "odd.json"):
        done = run(app, ["diff", str(tmp_path / place), str(new)])
        assert done.exit_code == 1 and done.output.startswith("opgate: ") and place in done.output, done.output
