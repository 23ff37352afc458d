"""How the packages of the tests are installed."""

from __future__ import annotations

import importlib.util
import os
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
from packaging.tags import sys_tags

from tests import PROJECT


@pytest.fixture
def script() -> ModuleType:
    """deploy/test_packages.py."""
    spec = importlib.util.spec_from_file_location("packages_of_tests", PROJECT / "deploy" / "test_packages.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_uv_takes_the_settings_of_pip(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "pip.conf"
    file.write_text(
        "[global]\nindex-url = https://a/simple\nextra-index-url =\n  https://b/simple\n  https://c/simple\n"
        "trusted-host = a\nfind-links = /not/this\ntimeout = 9\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(file))
    monkeypatch.setenv("PIP_FIND_LINKS", "/d /e")
    found = script.settings_of_pip()
    assert found["UV_INDEX"] == "https://a/simple https://b/simple"  # uv asks these in this order,
    assert found["UV_DEFAULT_INDEX"] == "https://c/simple"  # and then this one
    assert found["UV_INSECURE_HOST"] == "a"
    assert found["UV_FIND_LINKS"] == "/d,/e"  # the environment goes before the file


def test_the_wheel_for_this_machine_is_taken_from_whichever_index_has_it(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index of a few packages may hold a wheel for any machine where the main one has a better wheel too."""
    tool = (*(script.uv() or script.INSTALL), "--target", str(tmp_path / "to"))
    tag = next(tag for tag in sys_tags() if tag.platform != "any")
    main, mirror = [tmp_path / name for name in ("main", "mirror")]
    for index, tags in ((main, ["py3-none-any", f"py3-none-{tag.platform}"]), (mirror, ["py3-none-any"])):
        (index / "sounds").mkdir(parents=True)
        wheels = [wheel(index / "sounds", one) for one in tags]
        (index / "sounds" / "index.html").write_text("".join(f'<a href="{name}">{name}</a>\n' for name in wheels))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", main.as_uri())
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", mirror.as_uri())
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    for variable in ("PIP_CONSTRAINT", "PIP_FIND_LINKS"):
        monkeypatch.delenv(variable, raising=False)
    assert script.install(tool, "sounds", quiet=False)
    assert f"Tag: py3-none-{tag.platform}" in (tmp_path / "to" / "sounds-1.0.dist-info" / "WHEEL").read_text()


def wheel(folder: Path, tag: str) -> str:
    """Writes a wheel of the package sounds for a tag into a folder. Returns the name of its file."""
    name = f"sounds-1.0-{tag}.whl"
    info = {
        "METADATA": "Metadata-Version: 2.1\nName: sounds\nVersion: 1.0\n",
        "WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n",
        "RECORD": "".join(f"sounds-1.0.dist-info/{file},,\n" for file in ("METADATA", "WHEEL", "RECORD")),
    }
    with zipfile.ZipFile(folder / name, "w") as archive:
        for file, text in info.items():
            archive.writestr(f"sounds-1.0.dist-info/{file}", text)
    return name


def test_an_engine_that_can_not_be_had_is_left_out(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tool.py").write_text("import sys; sys.exit('rare' in sys.argv[-1] and 'no wheel of rare')\n")
    monkeypatch.setattr(script, "uv", lambda: ())
    monkeypatch.setattr(script, "INSTALL", (sys.executable, str(tmp_path / "tool.py")))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert script.main("cpu,test", ["rare", "usual"]) == 0
    assert (tmp_path / ".left-out").read_text() == "rare\n"
    said = capfd.readouterr()
    assert "no wheel of rare" in said.err and "the extra rare can't be installed here" in said.out
    assert script.main("rare", []) == 1
