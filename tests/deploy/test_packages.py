"""How the packages of the tests are installed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests import PROJECT


@pytest.fixture(scope="module")
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
    assert found["UV_DEFAULT_INDEX"] == "https://a/simple"
    assert found["UV_INDEX"] == "https://b/simple https://c/simple"
    assert found["UV_INSECURE_HOST"] == "a"
    assert found["UV_FIND_LINKS"] == "/d,/e"  # the environment goes before the file


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
