"""When the native modules of the gateway are compiled."""

from __future__ import annotations

import pytest

from opgate.service.native import build_hook


def test_a_module_is_compiled_again_if_anything_has_changed(tmp_path, monkeypatch: pytest.MonkeyPatch):
    folder, calls = tmp_path / "native", tmp_path / "calls"
    folder.mkdir()
    (folder / "a.cpp").write_text('#include "a.h"\nint f() { return kOne; }\n')
    (folder / "a.h").write_text("constexpr int kOne = 1;\n")
    compiler = tmp_path / "compiler"
    compiler.write_text(f'#!/bin/sh\necho >> {calls}\nexec g++ "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setattr(build_hook, "SERVICE", tmp_path)
    monkeypatch.setenv("CXX", str(compiler))
    module = build_hook.Module("native/a", ("a.cpp",))

    def compiled(*target):
        before = len(calls.read_text()) if calls.exists() else 0
        made = build_hook.compile_module(module, build_hook.FLAGS, *target)
        assert made.exists()
        return len(calls.read_text()) - before

    assert [compiled(), compiled()] == [1, 0]
    (folder / "a.h").write_text("constexpr int kOne = 2;\n")
    assert [compiled(), compiled()] == [1, 0]
    monkeypatch.setenv("CXXFLAGS", "-O0")
    assert [compiled(), compiled()] == [1, 0]
    monkeypatch.delenv("CXXFLAGS")
    assert [compiled(), compiled()] == [1, 0]
    (made,) = folder.glob("a*.so")
    made.unlink()
    assert [compiled(), compiled()] == [1, 0]
    assert [compiled(tmp_path / "another.so"), compiled(tmp_path / "another.so"), compiled()] == [1, 1, 0]
    (folder / "a.cpp").write_text("no C++")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="the native module native/a doesn't compile"):
            compiled()
