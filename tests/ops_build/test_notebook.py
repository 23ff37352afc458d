"""An op that a notebook's cell defines: its library, its folder, and what is said if the cell doesn't stand alone."""

from __future__ import annotations

import linecache
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import opgate
import opgate.numpy
from opgate.ops_build.building.options import BuildError, out_of_tree
from opgate.ops_build.python_ops.execution import OpFileError
from tests import PROJECT
from tests.skips import need

CELL = """import numpy as np
import opgate

@opgate.op("<T: f32> ClampAdd(a: T[...], b: T[...]; high: int=100) -> (y: T[...])", "min(a + b, high).")
def clamp_add(a, b, *, high):
    return np.minimum(a + b, high)
"""
A, B = np.array([60, 1], np.float32), np.array([70, 2], np.float32)


class Notebook:
    """Runs cells as IPython does: each is compiled under a name of its own, and linecache has its text."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self._count = 0

    def run(self, cell: str) -> str:
        """Runs a cell and returns its name."""
        self._count += 1
        name = f"/tmp/ipykernel_1/{self._count}_{id(self)}.py"
        linecache.cache[name] = (len(cell), None, cell.splitlines(keepends=True), name)
        exec(compile(cell, name, "exec"), self.names)
        return name


@pytest.fixture
def notebook() -> Notebook:
    return Notebook()


def in_onnxruntime(library: Path, domain: str) -> np.ndarray:
    node = helper.make_node("ClampAdd", ["a", "b"], ["y"], domain=domain)
    a, b, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "aby")
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(domain, 1)]
    model = helper.make_model(helper.make_graph([node], "g", [a, b], [y]), opset_imports=opsets, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(library))
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return np.asarray(session.run(None, {"a": A, "b": B})[0])


def test_a_cell_that_is_run_again_gives_the_new_op(notebook: Notebook) -> None:
    cell = CELL + "\npath = clamp_add.library()\nafter = undefined if clamp_add.__name__ == 'x' else 1\n"
    notebook.run(cell)
    first = notebook.names["path"]
    assert notebook.names["after"] == 1 and first.name == "libclamp_add_onnxruntime.so"
    assert notebook.names["clamp_add"].library() == first
    kept = opgate.numpy.load(first)
    assert kept.clamp_add(A, B).tolist() == [100, 3] == in_onnxruntime(first, "clamp_add").tolist()

    notebook.run(cell.replace("a + b", "a - b"))
    second = notebook.names["path"]
    assert second != first
    assert (
        opgate.numpy.load(second).clamp_add(A, B).tolist() == [-10, -1] == in_onnxruntime(second, "clamp_add").tolist()
    )
    assert kept.clamp_add(A, B).tolist() == [100, 3]


def test_the_cell_may_have_a_formula_and_a_domain(notebook: Notebook) -> None:
    notebook.run(CELL + "clamp_add.formula()\n")
    library = notebook.names["clamp_add"].library("onnxruntime", domain="notebook")
    assert library.name == "libnotebook_onnxruntime.so"
    assert in_onnxruntime(library, "notebook").tolist() == [100, 3]


def test_torch_says_what_to_do_with_a_second_one(notebook: Notebook) -> None:
    need("torch")
    import torch

    import opgate.torch

    notebook.run(CELL)
    first = notebook.names["clamp_add"].library("torch", domain="first_cells")
    a, b = torch.tensor(A), torch.tensor(B)
    assert opgate.torch.load(first).clamp_add(a, b).tolist() == [100, 3]
    notebook.run(CELL.replace("a + b", "a - b"))
    op = notebook.names["clamp_add"]
    with pytest.raises(ImportError, match="build a changed op with another domain, or start the process again"):
        opgate.torch.load(op.library("torch", domain="first_cells"))
    assert opgate.torch.load(op.library("torch", domain="second_cells")).clamp_add(a, b).tolist() == [-10, -1]


@pytest.mark.parametrize(
    ("before", "cell", "said"),
    [
        ("import numpy as np", CELL.replace("import numpy as np", ""), r"py:6: there is no name 'np' here: the cell "),
        ("import opgate", CELL.replace("import opgate", ""), r"py:4: NameError: name 'opgate' .*: it stands alone"),
        ("", CELL + CELL.replace("lampAdd", "lampSub").replace("clamp_add", "clamp_sub"), "py:1: expected one op"),
        ("", CELL.replace("high: int", "high: int int"), r"ipykernel_1/\S+py:4: signature, "),
        ("", CELL + "clamp_add.c_kernel('f')\n", "py:4: a kernel in C has a source of its own"),
    ],
)
def test_a_cell_stands_alone(notebook: Notebook, before: str, cell: str, said: str) -> None:
    notebook.run(before)
    notebook.run(cell)
    with pytest.raises((OpFileError, BuildError), match=said):
        notebook.names["clamp_add"].library()


@pytest.mark.parametrize("part", ["formula\ndef _(a, b, *, high)", "loop(rows='a_size')\ndef _(begin, end, a, y)"])
def test_all_of_an_op_is_in_one_cell(notebook: Notebook, part: str) -> None:
    notebook.run(CELL)
    name = notebook.run(f"@clamp_add.{part}:\n    return a\n")
    with pytest.raises(OpFileError, match=f"{name}:1: another cell or file defines clamp_add: put all"):
        notebook.names["clamp_add"].library()


def test_what_has_no_source_is_refused() -> None:
    names: dict[str, Any] = {}
    exec(CELL, names)
    with pytest.raises(OpFileError, match="<string>:4: the source of clamp_add is not known"):
        names["clamp_add"].library()


def test_unknown_engines_and_domains(notebook: Notebook) -> None:
    notebook.run(CELL)
    op = notebook.names["clamp_add"]
    with pytest.raises(ValueError, match=r"expected one of onnxruntime, .*, got 'onnx'"):
        op.library("onnx")
    with pytest.raises(ValueError, match="expected a domain of letters"):
        op.library(domain="my/ops")
    with pytest.raises(BuildError, match="the domain 'opgate' is taken"):
        op.library(domain="opgate")


def test_an_op_is_saved(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run(CELL)
    file = notebook.names["clamp_add"].save(tmp_path / "my_ops")
    assert file == tmp_path / "my_ops" / "clamp_add" / "op.py" and file.read_text() == CELL
    assert out_of_tree(tmp_path / "my_ops").domain == "my_ops"


def test_a_script_and_an_op_file(tmp_path: Path) -> None:
    """The library is asked for inside of a function, where the source can't be cut."""
    file = tmp_path / "my_ops" / "clamp_add" / "op.py"
    file.parent.mkdir(parents=True)
    file.write_text(
        CELL
        + textwrap.dedent("""
            def main():
                import opgate.numpy
                a = np.array([60, 1], np.float32)
                print(opgate.numpy.load(clamp_add.library(domain="scripts")).clamp_add(a, a).tolist())

            main()
        """)
    )
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, cwd=PROJECT)
    assert done.stdout == "[100.0, 2.0]\n", done.stderr
    build = [sys.executable, "-m", "opgate", "build", str(tmp_path / "my_ops"), "--engine", "onnxruntime", "--cuda", ""]
    done = subprocess.run(build, capture_output=True, text=True, cwd=PROJECT)
    assert done.returncode == 0, done.stderr
    built = tmp_path / "my_ops" / "build" / "libmy_ops_onnxruntime.so"
    assert opgate.numpy.load(built).clamp_add(A, B).tolist() == [100, 3]
