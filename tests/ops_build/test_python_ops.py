"""Ops in Python: what is compiled of an op.py agrees with its NumPy function in every engine, so do gradients, and
errors name the author's line."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import opgate
from opgate.ops_build.building.build import build
from opgate.ops_build.building.options import DEFAULT_OUTPUT, BuildError, out_of_tree
from opgate.ops_build.dtypes import numpy_types
from opgate.ops_build.op_folder import OpFolder, folder_of
from opgate.ops_build.op_table import read_table
from opgate.ops_build.python_ops import layout
from opgate.ops_build.python_ops.functions import FUNCTIONS
from opgate.ops_build.python_ops.op_file import OpFileError, op_file_of
from opgate.ops_build.runner.checks import emulated
from opgate.ops_build.verification.sources import adapters_of
from opgate.ops_build.verification.supervision import supervised
from opgate.ops_build.verification.verify import verify
from tests.conftest import silent, thorough

OPS = Path(__file__).parent / "python_ops"
#: Those of the table that are written again there, in at most 15 lines, and their gradients in the table.
AGAIN = ("my_add", "leaky_relu", "clamped_relu", "swish", "mish", "gelu", "asinh", "sigmoid_focal_loss")
#: Ops over rows, as short.
ROWS = ("softmax", "log_softmax", "rms_norm", "layer_norm", "row_dot")
HEAD = """import math
import numpy as np
import opgate
@opgate.op("<T: f32|f64|i32> Squash(x: T[...]; factor: float=2) -> (y: T[...])", "What it does.")
def squash(x, *, factor):
"""
#: Line 6 and the lines behind it, and what is said of them.
REFUSED = [
    ("    if x > 0:\n        return x\n    return -x", r"op\.py:6: a branch on a value: .* write np\.where"),
    ("    return max(x, 0)", r"op\.py:6: .* write np\.minimum, np\.maximum"),
    ("    return math.exp(x)", r"op\.py:6: .* take functions of NumPy, not of math, np\.where"),
    ("    return np.sort(x)", r"op\.py:6: np\.sort is no function of formulas\. They have np\.add, .*opgate\.erf"),
    ("    return np.gcd(x, x)", r"op\.py:6: np\.gcd is no function of formulas"),
    ("    return np.multiply.reduce(x)", r"op\.py:6: np\.multiply\.reduce is no function of formulas"),
    (
        "    return np.add.reduce(x)",
        r"op\.py:6: a formula of elements sees one .*, and no sum of them: .*\(x: T\[\.\.\., n",
    ),
    ("    return x.max(axis=-1)", r"op\.py:6: a formula of elements .* no max of them: give the signature rows"),
    ("    return x.shape[-1]", r"op\.py:6: a formula sees one element .*: it has no \.shape"),
    ("    return x[0]", r"op\.py:6: a formula sees one element of each tensor"),
    ("    return x > 3", r"output 'y' is a condition: write np\.where\(condition, 1, 0\)"),
    ("    return (x > 3) * 2", r"op\.py:6: multiply takes numbers, got a condition"),
    ("    return np.where(x, 1, 0)", r"op\.py:6: np\.where needs a condition: write x != 0"),
    ("    return x & x", r"op\.py:6: &, \| and ~ join conditions"),
    ("    return x.astype(np.int8)", r"op\.py:6: .*leave out \.astype\(int8\)"),
    ("    return np.add(x, 1, dtype='f8')", r"op\.py:6: np\.add takes no dtype"),
    ("    return x + np.array([1, 2])", r"op\.py:6: expected an element, an attribute or a number, got an array"),
    ("    return x * 0.5", r"op\.py:6: 0\.5 meets tensors of int32: write a whole number"),
    ("    return x + 2**40", r"op\.py:6: 1099511627776 is beyond int32, -2147483648 to 2147483647"),
    ("    return x / 2", r"op\.py:6: divide of int32 is no int32: write //"),
    ("    return x, x", r"op\.py:4: expected 1 results, one for each output, got 2"),
    ("    x + 1", r"op\.py:4: expected an element, an attribute or a number, got None: does the function return\?"),
    ("    x[x > 0] = 0", r"op\.py:6: a formula sees one element of each tensor"),
    ("    return x**-1", r"op\.py:6: integers have no negative powers"),
    ("    return round(x, -1)", r"op\.py:6: a formula rounds no integers to 1 places before the point"),
    ("    return np.where(x > 0)", r"op\.py:6: np\.where takes a condition and two values here, got 1"),
    ("    return unknown", r"op\.py:6: NameError: name 'unknown' is not defined"),
    ("    return x\nsys = __import__('sys')\nsys.exit(3)", r"op\.py:8: SystemExit: 3"),
    ("    return x +", r"op\.py:6: SyntaxError"),
]


ROW_HEAD = """import numpy as np
import opgate
@opgate.op("<T: f32> Squash(x: T[..., n], s: T[...], w: T[n]) -> (y: T[..., n], z: T[...])", "What it does.")
def squash(x, s, w):
"""
#: Line 5 of an op over rows, and what is said of it.
REFUSED_ROWS = [
    ("return x, x.sum()", r"op\.py:5: a formula reduces the last axis, and sum has axis=None: write axis=-1\. .*C\+\+"),
    ("return x, x.sum(axis=0)", r"op\.py:5: .*sum has axis=0"),
    ("return x, np.add.reduce(x)", r"op\.py:5: .*sum has axis=0"),
    ("return x, np.cumsum(x, axis=-1)", r"op\.py:5: np\.cumsum is no function of formulas"),
    ("return x, np.argmax(x, axis=-1)", r"op\.py:5: np\.argmax is no function of formulas"),
    ("return np.sort(x), s", r"op\.py:5: np\.sort is no function of formulas"),
    (
        "return x / x.sum(axis=-1), s",
        r"op\.py:5: values for each row meet values that have a last axis: .*keepdims=True",
    ),
    ("return x * s, s", r"op\.py:5: values for each row .* or x\[\.\.\., None\]"),
    ("return x, x.sum(axis=-1, keepdims=True)", r"output 'z' has the dims \[\.\.\.\], .* write no keepdims=True"),
    ("return x, x", r"output 'z' has the dims \[\.\.\.\], .* write a reduction over axis=-1"),
    ("return s, s", r"output 'y' has the dims \[\.\.\., n\], and the result has no last axis"),
    ("return x, s.sum(axis=-1)", r"op\.py:5: sum of a value that has no last axis"),
    ("return x, (x > 0).sum(axis=-1)", r"op\.py:5: sum takes numbers, got a condition"),
    ("return x, x.sum(axis=-1, initial=1)", r"op\.py:5: sum takes axis and keepdims .*, and no initial"),
    ("return x, x[..., 0]", r"op\.py:5: a formula sees one row of each tensor, and no parts of it"),
    ("return x * x.shape[0], s", r"op\.py:5: a formula knows the number of columns, x\.shape\[-1\]"),
    ("n, m = x.shape; return x, s", r"op\.py:5: a formula knows the number of columns"),
    ("return x[:, ::-1], s", r"op\.py:5: a formula sees one row of each tensor"),
]


def op_py(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "op.py").write_text(text)
    return folder


@pytest.fixture(scope="session")
def options(library):
    options = out_of_tree(OPS, DEFAULT_OUTPUT.parent / "python_ops")
    build(replace(options, engines=("onnxruntime", "torch", "tensorflow", "litert"), cuda=""), silent)
    return options


def test_every_case_in_every_engine(options):
    """The ops of the table that are written again have the cases of the table."""
    with supervised(adapters_of(options)) as engines:
        cells = verify(read_table(options.library()), [OPS], engines)
    assert [failure for cell in cells for failure in cell.failures] == []
    assert sum(cell.passed for cell in cells if cell.engine == "onnxruntime cpu") > 1650
    for name in (*AGAIN, *ROWS):
        text = (OPS / name / "op.py").read_text()
        assert sum(bool(line.strip()) and "import" not in line for line in text.splitlines()) <= 15, name


def test_the_gradients_pass_the_cases_of_the_table(options):
    """The derived gradients have the cases that were written for those in C++."""
    ops = {op.name: op for op in read_table(options.library())}
    own = Path(opgate.__file__).parent / "ops_build" / "ops"
    tried = 0
    with supervised(adapters_of(options)) as engines:
        engine = next(engine for engine in engines if engine.name == "onnxruntime" and engine.device == "cpu")
        for name in ("MishBackward", "SwishBackward", "GeluBackward"):
            for types in ops[name].type_choices():
                reference = OpFolder(own / folder_name(name)).reference
                for case in OpFolder(own / folder_name(name)).cases(numpy_types(types)):
                    if case.error or "extremes" in case.name or "edge" in case.name:
                        continue  # the derived ones lose digits where those in C++ were written not to
                    given = engine.run(ops[name], case, types)["grad_x"].astype(np.float64)
                    expected = np.asarray(reference(**case.inputs, **attributes_of(ops[name], case))).astype(np.float64)
                    close = {"f16": 4e-3, "bf16": 3e-2, "f32": 2e-5, "f64": 1e-10}[types["T"]]
                    np.testing.assert_allclose(given, expected, rtol=close, atol=close, equal_nan=True)
                    tried += 1
    assert tried > 60


def folder_name(op: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", op).lower()


def attributes_of(op, case):
    return {attribute.name: case.attributes.get(attribute.name, attribute.default) for attribute in op.attributes}


@thorough("it compiles all kernels for emulated threads")
def test_the_cuda_kernels_on_emulated_threads(options):
    ops = [replace(op, devices=("cpu", "cuda")) for op in read_table(options.library())]
    with supervised(emulated(options, silent)) as engines:
        cells = verify(ops, [OPS], engines)
    assert [failure for cell in cells for failure in cell.failures] == []
    assert sum(cell.passed for cell in cells) > 3300


@pytest.mark.parametrize("name", sorted(name for name, each in FUNCTIONS.items() if each.derivative))
def test_the_derivative_of_each_function_is_its_slope(library, name):
    """Each where it has one, with gradients that differ from element to element."""
    others = {
        "select": lambda a, b: np.where(a > b, a, b * 2),
        "copysign": lambda a, b: np.copysign(a, b) * 3,
        "sigmoid_of_negative": lambda a: opgate.sigmoid(-a),
        "softplus": lambda a: np.logaddexp(0, a),
    }
    rows = FUNCTIONS[name].reduces
    function = others.get(name) or getattr(opgate, name, None) or FUNCTIONS[name].numpy
    two = name in ("select", "copysign") or getattr(function, "nin", 1) == 2
    inputs = "a: T[...], b: T[...]" if two else "a: T[..., n]" if rows else "a: T[...]"
    compute = (lambda a, b: function(a, b)) if two else (lambda a: function(a))  # noqa: PLW0108 (it has named parameters)
    if rows:
        compute = {"sum": lambda a: a.sum(-1), "max": lambda a: a.max(-1), "min": lambda a: a.min(-1)}[name]
    python = opgate.op(f"<T: f64> Tried({inputs}) -> (y: T[...])", "")(compute).formula()
    file = op_file_of(python, Path("op.py"))
    assert file.backward is not None
    low, high = {"arccosh": (1.1, 3), "log": (0.1, 3), "log2": (0.1, 3), "log10": (0.1, 3), "sqrt": (0.1, 3)}.get(
        name, (0.1, 2) if name == "power" else (-0.9, 0.9)
    )
    rng = np.random.default_rng(1)
    shapes = layout.input_shapes(file.backward[0], (50, 10)) if rows else {}
    values = {t.name: rng.uniform(low, high, shapes.get(t.name, 500)) for t in file.backward[0].inputs}
    arrays = file.backward_reference()(**values)
    assert len(arrays) >= 1 and all(np.isfinite(array).all() and array.any() for array in arrays)


def test_a_wrong_gradient_is_found(library, tmp_path):
    text = HEAD + "    return factor * x\nsquash.formula()\n"
    text = text.replace("|i32", "") + "@squash.gradient\ndef _(grad_y, x, *, factor):\n    return grad_y * x\n"
    folder = OpFolder(op_py(tmp_path / "squash", text), backward=True)
    with pytest.raises(ValueError, match=r"the gradient of 'x' is no slope of Squash: at x = 3 it is 3, and .* give 2"):
        folder.reference(x=np.array([3.0]), grad_y=np.array([1.0]), factor=2.0)


def test_a_stated_gradient_takes_the_place_of_the_derivative(library, tmp_path):
    text = HEAD.replace("|i32", "") + "    return np.sqrt(factor * x)\nsquash.formula()\n"
    text += "@squash.gradient\ndef _(grad_y, y, *, factor):\n    return grad_y * factor / (2 * y)\n"
    op, _ = OpFolder(op_py(tmp_path / "squash", text)).op_file.backward
    assert op.signature == (
        "<T: f32|f64> SquashBackward(grad_y: T[...], y: T[...]; factor: float=2.0) -> (grad_x: T[...])"
    )


def test_gradients_in_torch(options):
    torch = pytest.importorskip("torch")
    from opgate.torch import load

    ops = load(options.library("torch"))
    generator = torch.Generator().manual_seed(0)
    x, target = (torch.rand(40, dtype=torch.float64, generator=generator) for _ in range(2))
    x = (4 * x - 2).requires_grad_()
    target.requires_grad_()
    assert torch.autograd.gradcheck(ops.mish, (x,)) and torch.autograd.gradcheck(ops.my_add, (x, target))
    assert torch.autograd.gradcheck(lambda x: ops.gelu(x, approximate="tanh"), (x,))
    assert torch.autograd.gradcheck(lambda x, t: ops.sigmoid_focal_loss(x, t, gamma=1.5), (x, target))
    weight, bias = (torch.rand(8, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(2))
    rows = x.reshape(5, 8)
    assert torch.autograd.gradcheck(ops.softmax, (rows,)) and torch.autograd.gradcheck(ops.log_softmax, (rows,))
    assert torch.autograd.gradcheck(ops.rms_norm, (rows, weight))
    assert torch.autograd.gradcheck(ops.layer_norm, (rows, weight, bias))
    assert torch.autograd.gradcheck(ops.row_dot, (rows, target.reshape(5, 8)))
    for which in ("sum", "spread", "extremes", "norm"):
        scale, shift = (torch.rand(5, *dims, dtype=torch.float64, requires_grad=True) for dims in ((), (1,)))
        given = (rows, scale, shift, weight)
        assert torch.autograd.gradcheck(lambda *given, which=which: ops.row_functions(*given, which=which), given)
    torch.testing.assert_close(ops.softmax(rows), torch.softmax(rows, -1))
    checked = torch.library.opcheck(
        torch.ops.python_ops.sigmoid_focal_loss.default, (x.float(), target.float()), {"gamma": 1.5}
    )
    assert set(checked.values()) == {"SUCCESS"}


@pytest.mark.parametrize(("body", "message"), REFUSED)
def test_what_no_formula_can_be_is_refused_with_its_line(library, tmp_path, body, message):
    folder = op_py(tmp_path / "my_ops" / "squash", f"{HEAD}{body}\nsquash.formula()\n")
    with pytest.raises(OpFileError, match=f"^{re.escape(str(tmp_path))}/.*{message}"):
        OpFolder(folder).generated_sources()
    with pytest.raises(BuildError, match=message):
        out_of_tree(tmp_path / "my_ops")


@pytest.mark.parametrize(("body", "message"), REFUSED_ROWS)
def test_what_no_formula_over_rows_can_be_is_refused_with_its_line(library, tmp_path, body, message):
    folder = op_py(tmp_path / "squash", f"{ROW_HEAD}    {body}\nsquash.formula()\n")
    with pytest.raises(OpFileError, match=f"^{re.escape(str(tmp_path))}/.*{message}"):
        OpFolder(folder).generated_sources()


def test_two_sizes_of_rows_are_refused(library, tmp_path):
    text = ROW_HEAD.replace("w: T[n]", "w: T[m]") + "    return x, s\nsquash.formula()\n"
    with pytest.raises(
        OpFileError, match=r"op\.py:3: a formula computes elements, .*or rows: \[\.\.\., n\] for elements"
    ):
        OpFolder(op_py(tmp_path / "squash", text)).generated_sources()


def test_a_wrong_gradient_of_rows_is_found(library, tmp_path):
    text = ROW_HEAD + "    return x * w, s + (x * x).sum(axis=-1)\nsquash.formula()\n@squash.gradient\n"
    text += "def _(grad_y, grad_z, x, w):\n    return grad_y * w + grad_z[..., None] * x, grad_z, grad_y * x\n"
    values = {"x": [[1.0, 2]], "w": [3.0, 4], "grad_y": [[1.0, 1]], "grad_z": [2.0]}
    given = {name: np.array(value, np.float32) for name, value in values.items()}
    wrong = OpFolder(op_py(tmp_path / "squash", text), backward=True)
    right = OpFolder(
        op_py(tmp_path / "right" / "squash", text.replace("* x, grad_z", "* 2 * x, grad_z")), backward=True
    )
    assert right.op_file.backward[0].signature.endswith("-> (grad_x: T[..., n], grad_s: T[...], grad_w: T[n])")
    with pytest.raises(
        ValueError, match=r"the gradient of 'x' is no slope of Squash: in row 0, column 0 it is 5, .* 7"
    ):
        wrong.reference(**{t.name: given[t.name] for t in wrong.op_file.backward[0].inputs})
    found = right.reference(**{t.name: given[t.name] for t in right.op_file.backward[0].inputs})
    assert [array.tolist() for array in found] == [[[7, 12]], [2], [1, 2]]


def test_the_usual_cases_of_rows(library):
    names = [case.name for case in OpFolder(OPS / "softmax").cases({"T": np.dtype(np.float32)})]
    assert {"normal [5, 1000]", "normal [0, 5]", "rows of 0 elements", "large", "odd numbers"} <= {*names}
    odd = OpFolder(OPS / "row_dot").cases({"T": np.dtype(np.float16)})[-1].inputs["a"]
    assert np.isnan(odd).any() and np.isinf(odd).any() and np.isneginf(odd).all(axis=-1).any()


def test_what_costs_much_is_computed_once(library):
    """exp of a softmax is kept between its sum and the quotient on the CPU."""
    header = OpFolder(OPS / "softmax").generated_sources()["softmax.h"]
    assert header.count("formula::exp") == 1 and "row.template keep<0>" in header


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("factor):", "k):"), r"op\.py:4: expected the parameters \(x, \*, factor\), .* got \(x, \*, k\)"),
        (("Squash(x", "Squish(x"), r"op\.py:1: expected one op that is called like its folder, squash .* got Squish"),
        (("x: T[...];", "x T[...];"), r"op\.py:4: signature, column 27: expected ':'"),
        (
            ("x: T[...];", "x: T[n,...];"),
            r"op\.py:4: a formula computes elements, with the dims \[\.\.\.\] .*, or rows",
        ),
        (("x: T[...];", "x: T[..., n], w: T[m];"), r"op\.py:4: .*parameters"),
        (("T[...];", "T[..., n];"), r"op\.py:4: a formula over rows computes floats, and Squash takes i32"),
        (("x: T[...];", "x?: T[...];"), r"op\.py:4: signature, column"),
        (("|i32", "|bool"), r"op\.py:4: a formula computes numbers, and Squash takes bool"),
        (
            ("float=2", "bool[2]=[true, false]"),
            r"op\.py:4: attribute 'factor' is a bool, which no formula can compute with",
        ),
        (("float=2", "float[]=[]"), r"op\.py:4: attribute 'factor' has any length: write float\[3\]"),
        (
            ("return x", "return x\n@opgate.op('More(x: f32[...]) -> (y: f32[...])')\ndef more(x):\n    return x"),
            r"op\.py:1",
        ),
        (
            ("x: T[...];", "grad_y: T[...];"),
            r"op\.py:4: call 'grad_y' otherwise: the gradient has an input of this name",
        ),
        (("x: T[...];", "lambda: T[...];"), r"op\.py:4: call 'lambda' otherwise: it is a word of Python"),
        (("factor)", "factor=1)"), r"op\.py:4: leave out factor=1: the signature has the default"),
        (("import math", "import nothing_of_this_name"), r"op\.py:1: ModuleNotFoundError: .*: a helper is a part of"),
    ],
)
def test_what_no_op_can_be_is_refused_with_its_line(library, tmp_path, change, message):
    text = f"{HEAD}    return x\nsquash.formula()\n"
    assert change[0] in text
    folder = op_py(tmp_path / "squash", text.replace(*change))
    with pytest.raises(OpFileError, match=message):
        OpFolder(folder).generated_sources()


@pytest.mark.parametrize(
    ("check", "message"),
    [
        ("{'factor': factor > 0}", r"op\.py:8: a check returns .* with an attribute, a condition and a text"),
        ("{'other': (factor > 0, '')}", r"op\.py:8: a check returns .* with an attribute"),
        ("factor > 0", r"op\.py:8: a check returns .*, got a Traced"),
        ("{'factor': (factor, '')}", r"op\.py:8: attribute 'factor': expected a condition, such as factor > 0"),
    ],
)
def test_a_check_that_is_none(library, tmp_path, check, message):
    text = f"{HEAD}    return x\nsquash.formula()\n@squash.check\ndef _(*, factor):\n    return {check}\n"
    with pytest.raises(OpFileError, match=message):
        OpFolder(op_py(tmp_path / "squash", text)).generated_sources()


@pytest.mark.parametrize("formula", ["squash.formula()\n", ""])
def test_a_default_that_the_check_refuses(library, tmp_path, formula):
    check = "@squash.check\ndef _(*, factor):\n    return {'factor': (factor > 2, 'more than two')}\n"
    text = f"{HEAD}    return x\n{formula}{check}"
    with pytest.raises(OpFileError, match=r"op\.py:4: attribute 'factor': the default is 2\.0, and .* more than two"):
        OpFolder(op_py(tmp_path / "squash", text)).generated_sources()
    folder = op_py(tmp_path / "squash", text.replace("float=2", "float=3"))
    assert ("squash.h" in OpFolder(folder).generated_sources()) == bool(formula)


def test_rounding_to_places(library, tmp_path):
    text = HEAD.replace("|i32", "") + "    return np.round(x, 2) + round(x, -1) + x**0\nsquash.formula()\n"
    header = OpFolder(op_py(tmp_path / "squash", text)).generated_sources()["squash.h"]
    assert "formula::rint((x_in * V(100.0)))) / V(100.0)" in header
    assert "formula::rint((x_in / V(10.0)))) * V(10.0)" in header


@pytest.mark.parametrize("line", ["import beside", "from . import beside", "from beside import f"])
def test_a_helper_beside_the_file_is_refused(library, tmp_path, line, monkeypatch):
    """A library has the op.py alone."""
    folder = op_py(tmp_path / "squash", f"{line}\n{HEAD}    return x\nsquash.formula()\n")
    (folder / "beside.py").write_text("def f(): pass")
    monkeypatch.delitem(sys.modules, "beside", raising=False)
    for _ in range(2):
        with pytest.raises(
            OpFileError, match=r"op\.py:1: .*: a helper is a part of op\.py, or of an installed package"
        ):
            OpFolder(folder).generated_sources()
        monkeypatch.syspath_prepend(folder)  # as in a process that was started in the folder


@pytest.mark.parametrize(
    ("cases", "message"),
    [
        ("1 / 0", r"op\.py:10: ZeroDivisionError"),
        ("['a text']", r"op\.py:8: expected opgate\.Case\(name, inputs\), got 'a text'"),
        ("[opgate.Case('small', {'z': np.ones(3)})]", r"op\.py:8: case 'small': expected the inputs x, got z"),
    ],
)
def test_cases_that_are_none(library, tmp_path, cases, message):
    text = f"{HEAD}    return x\nsquash.formula()\n@squash.cases\ndef _(types):\n    return {cases}\n"
    with pytest.raises(OpFileError, match=message):
        OpFolder(op_py(tmp_path / "squash", text)).cases({"T": np.dtype(np.float32)})


def test_the_reference_has_the_digits_of_f64_and_the_dtype_of_the_formula(library, tmp_path):
    text = HEAD.replace("|i32", "") + "    return np.maximum(x, np.finfo(x.dtype).tiny) ** 0.1 + 1e-9 * factor\n"
    reference = OpFolder(op_py(tmp_path / "squash", text + "squash.formula()\n")).reference
    (y,) = reference(x=np.zeros(3, np.float32), factor=1.0)
    assert y.dtype == np.float32 and y[0] == np.float32(float(np.finfo(np.float32).tiny) ** 0.1 + 1e-9)
    (y,) = reference(x=np.zeros(3), factor=1.0)
    assert y[0] == np.finfo(np.float64).tiny ** 0.1 + 1e-9


def test_beside_a_step_a_gradient_may_be_either(library, tmp_path):
    """Whether 0.2 * 2.5 + 0.5 is beyond 1 depends on how it is rounded."""
    text = HEAD.replace("|i32", "").replace("float=2", "float=0.2") + "    return np.clip(factor * x + 0.5, 0, 1)\n"
    folder = OpFolder(op_py(tmp_path / "squash", text + "squash.formula()\n"), backward=True)
    (gradient,) = folder.reference(x=np.array([2.5, -2.5, 1, 7], "f"), grad_y=np.ones(4, "f"))
    assert np.ma.getmaskarray(gradient).tolist() == [True, True, False, False]
    assert gradient.data[2:].tolist() == [np.float32(0.2), 0]


def test_a_surrogate_gradient_is_held_to_nothing(library, tmp_path):
    text = HEAD.replace("|i32", "") + "    return np.rint(factor * x)\nsquash.formula()\n"
    text += "@squash.surrogate_gradient\ndef _(grad_y, *, factor):\n    return grad_y * factor\n"
    folder = OpFolder(op_py(tmp_path / "squash", text), backward=True)
    assert folder.reference(grad_y=np.array([3.0], "f"))[0].tolist() == [6]


def test_a_setting_chooses_and_a_number_is_for_all_elements(library, tmp_path):
    text = HEAD.replace("float=2", "bool=true") + "    return np.where(factor, 3, x)\nsquash.formula()\n"
    folder = OpFolder(op_py(tmp_path / "squash", text))
    assert 'attributes.boolean("factor") == false' in folder.generated_sources()["squash.h"]
    assert folder.reference(x=np.zeros((2, 2), "f"), factor=True)[0].tolist() == [[3, 3], [3, 3]]


def test_an_op_py_that_changes_within_a_second_is_read_again(library, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    folder = tmp_path / "squash"
    for factor in (3, 4, 5):
        text = HEAD + f"    return {factor} * x\nsquash.formula()\n"
        assert f"V({factor})" in OpFolder(op_py(folder, text)).generated_sources()["squash.h"]
    assert not (folder / "__pycache__").exists()


def test_the_gradient_of_a_result_and_a_required_attribute(library, tmp_path):
    text = HEAD.replace("|i32", "").replace("float=2", "float") + "    return np.exp(x) + factor\nsquash.formula()\n"
    text += "@squash.cases\ndef _(types):\n"
    text += "    yield opgate.Case('one', {'x': np.ones(2, types['T'])}, {'factor': 3.0})\n"
    folder = OpFolder(op_py(tmp_path / "squash", text), backward=True)
    (case,) = folder.cases({"T": np.dtype(np.float64)})
    np.testing.assert_allclose(folder.reference(**case.inputs)[0], np.e * case.inputs["grad_y"])
    own = text.replace("+ factor", "* factor") + "@squash.gradient\ndef _(grad_y, y):\n    return grad_y * y\n"
    folder = OpFolder(op_py(tmp_path / "own" / "squash", own), backward=True)
    (case,) = folder.cases({"T": np.dtype(np.float64)})
    np.testing.assert_allclose(case.inputs["y"], 3 * np.e)


def test_numbers_that_integers_lack(library, tmp_path):
    """What is computed from attributes is looked at in the call, and a number beyond 64 bits is a float."""
    text = HEAD.replace("f32|f64|i32", "i8").replace("float=2", "int=2") + "    return np.minimum(x, 2 * factor)\n"
    header = OpFolder(op_py(tmp_path / "squash", text + "squash.formula()\n")).generated_sources()["squash.h"]
    assert 'formula::fits<V>("factor", setting_0)' in header and "std::int64_t(2)" in header
    text = HEAD.replace("|i32", "") + "    return x * 10**20 + 2**63\nsquash.formula()\n"
    header = OpFolder(op_py(tmp_path / "other" / "squash", text)).generated_sources()["squash.h"]
    assert ("V(1e+20)" in header and "V(9.223372036854775808e+18)" in header) or "V(9.223372036854776e+18)" in header


def test_an_op_has_an_op_py_or_sources(library, tmp_path):
    folder = op_py(tmp_path / "squash", f"{HEAD}    return x\nsquash.formula()\n")
    (folder / "squash.cpp").touch()
    with pytest.raises(OpFileError, match=r"op\.py:1: an op has an op\.py or C\+\+ sources, and .* has both"):
        OpFolder(folder).generated_sources()


def test_a_formula_that_differs_from_its_function_is_found(library, tmp_path):
    """select(a + b < high, ...) gives `high` where NaN comes in."""
    op_py(
        tmp_path / "my_ops" / "clamp_add",
        """import numpy as np
import opgate

@opgate.op("<T: f32> ClampAdd(a: T[...], b: T[...]; high: int=100) -> (y: T[...])", "min(a + b, high).")
def clamp_add(a, b, *, high):
    return np.minimum(a + b, high)

@clamp_add.formula
def _(a, b, *, high):
    return opgate.select(a + b < high, a + b, high)
""",
    )
    options = replace(out_of_tree(tmp_path / "my_ops"), engines=("onnxruntime",), cuda="", arch="native")
    build(options, silent)
    with supervised(adapters_of(options)) as engines:
        ops = [op for op in read_table(options.library()) if op.name == "ClampAdd"]
        cells = verify(ops, options.ops, engines)
    failures = [failure for cell in cells for failure in cell.failures]
    assert len(failures) == 1 and re.search("odd numbers: output 'y': .* expected nan, got 100", failures[0])


def test_the_folder_of_a_gradient_is_that_of_its_op(options):
    ops = {op.name: op for op in read_table(options.library())}
    folder = folder_of(ops["GeluBackward"], [OPS])
    assert folder.path.name == "gelu" and folder.backward and folder.has_cuda_kernel
    assert ops["MyAddBackward"].signature.endswith("MyAddBackward(grad_y: T[...]) -> (grad_a: T[...], grad_b: T[...])")


def test_names_of_the_package():
    assert opgate.op and opgate.Case and opgate.select(True, 1, 2) == 1
    with pytest.raises(AttributeError, match="module 'opgate' has no attribute 'opp'"):
        _ = opgate.opp
    done = subprocess.run(
        [sys.executable, "-c", "import opgate, sys; print('numpy' in sys.modules)"], capture_output=True, text=True
    )
    assert done.stdout == "False\n", done.stderr
