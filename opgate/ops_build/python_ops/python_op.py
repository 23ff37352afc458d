"""An op that is written in Python: the decorator `opgate.op`, and what its author adds to it."""

from __future__ import annotations

import importlib
import inspect
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from opgate.ops_build.case import Case

_Function = Callable[..., Any]
_Cases = Callable[[Mapping[str, "np.dtype[Any]"]], Iterable[Case]]


@dataclass(frozen=True, slots=True)
class TritonKernel:
    """What @op.triton states: the kernel, which @triton.jit has made, the sizes of its grid, its constants."""

    function: Any
    grid: tuple[str, ...]
    constants: Mapping[str, Any]
    warps: int
    stages: int


@dataclass(frozen=True, slots=True)
class LoopKernel:
    """What @op.loop states: the function, the number of rows, how many a thread takes at once at least."""

    function: _Function
    rows: str
    grain: int
    fastmath: bool | frozenset[str]


class Enough(BaseException):
    """A source that is executed as an op.py asks for its own library. The op is above; what follows is no part of it.
    Code that catches exceptions lets it through."""


class _Executed(threading.local):
    """Whether this thread executes a source as an op.py."""

    now = False


EXECUTED = _Executed()


class InvalidArgument(ValueError):
    """The function of an op can't work with these inputs. The client is told the message."""


class PythonOp:
    """An op whose signature stands above its NumPy function. It can be called like that function.

    `function` takes the inputs by position and the attributes by name, and returns the output, or a tuple of the
    outputs. Floats of 16 bits come as float32, and what it returns becomes what the signature says. `formula`,
    `gradient` and `cases` decorate the functions that the author adds.
    """

    def __init__(self, signature: str, doc: str, function: _Function) -> None:
        self.signature, self.doc, self.function = signature, doc, function
        self.formula_function: _Function | None = None
        self.c_function = ""
        self.loop_kernel: LoopKernel | None = None
        self.triton_kernel: TritonKernel | None = None
        self.gradient_function: _Function | None = None
        self.surrogate = False
        self.cases_function: _Cases | None = None
        self.large_function: Callable[[Mapping[str, np.dtype[Any]]], Case] | None = None
        self.check_function: _Function | None = None
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__

    def __call__(self, *inputs: Any, **attributes: Any) -> Any:
        return self.function(*inputs, **attributes)

    @property
    def place(self) -> str:
        """The file and the line of the function."""
        return place_of(self.function)

    @property
    def parts(self) -> list[_Function]:
        """The functions that the author has added to the op's own."""
        kernels = [self.loop_kernel.function] if self.loop_kernel else []
        kernels += [self.triton_kernel.function.fn] if self.triton_kernel else []
        stated = (self.formula_function, self.gradient_function, self.check_function)
        tried: tuple[_Function | None, ...] = (self.cases_function, self.large_function)
        return [function for function in (*stated, *tried, *kernels) if function is not None]

    def formula(self, function: _Function | None = None) -> PythonOp:
        """States what the op computes for one element of each input, or for a row, for the CPU and for CUDA of every
        engine.

        The function has the parameters of the op's. `opgate build` calls it with values that stand for elements, and
        compiles what it did with them: arithmetic, comparisons, np.where and the elementary functions of NumPy. Without
        a function, the op's own is the formula.
        """
        self.formula_function = function or self.function
        return self

    def c_kernel(self, name: str) -> PythonOp:
        """States that a function of C is the kernel, on the CPU of every engine: int name(OpgateCall*), as
        op_call/c_kernel.h describes. Its source is a .c file in the op's folder, or a dependencies.cmake there links
        what another language has compiled. `opgate verify` holds it to the op's function."""
        if not name.isidentifier() or not name.isascii():
            raise ValueError(f"expected the name of a function of C, got {name!r}")
        self.c_function = name
        return self

    def loop(
        self, *, rows: str, grain: int = 1, fastmath: bool | Iterable[str] = False
    ) -> Callable[[_Function], PythonOp]:
        """States the kernel for the CPU as loops over numbers, which Numba compiles when the library is built.

            @nearest.loop(rows="n")
            def _(begin, end, x, table, row):
                for i in range(begin, end): ...

        The function computes the rows from `begin` to `end`, on one of the engine's threads. Its other parameters are
        known by their names: the inputs and outputs of the op are arrays, in which dims of any number are one, and an
        absent input has no elements; its int, float and bool attributes and the sizes of its signature are numbers. A
        size that only the kernel knows is an array of one number, to set, and the outputs have its bound. `rows` is an
        expression of sizes and integer attributes, `grain` how many rows a thread takes at once at least. `fastmath` is
        Numba's: a sum is vectorized only if its order may change, with {"reassoc", "nsz"}.
        """

        def decorate(function: _Function) -> PythonOp:
            allowed = fastmath if isinstance(fastmath, bool) else frozenset(fastmath)
            self.loop_kernel = LoopKernel(function, rows, int(grain), allowed)
            return self

        return decorate

    def triton(
        self, *, grid: str | tuple[str, ...], num_warps: int = 4, num_stages: int = 3, **constants: Any
    ) -> Callable[[Any], PythonOp]:
        """States the kernel for CUDA, a function below @triton.jit.

            @clamp_add.triton(grid="ceildiv(y_size, BLOCK)", BLOCK=1024)
            @triton.jit
            def clamp_add_kernel(a, b, y, y_size, high, BLOCK: tl.constexpr): ...

        Its parameters are known by their names: the inputs and outputs of the op are pointers, its integer, float and
        bool attributes and the sizes of its signature are numbers, <tensor>_size is the number of elements of a tensor,
        and `constants` are what tl.constexpr says. `grid` has one to three expressions of sizes, integer attributes and
        constants, with + - * / % min max ceildiv. `opgate build` compiles the kernel ahead of time, without a GPU.
        """

        def decorate(function: Any) -> PythonOp:
            if not hasattr(function, "fn"):
                raise TypeError("op.triton decorates what @triton.jit gives: write @triton.jit below it")
            sizes = (grid,) if isinstance(grid, str) else tuple(map(str, grid))
            self.triton_kernel = TritonKernel(function, sizes, constants, num_warps, num_stages)
            return self

        return decorate

    def check(self, function: _Function) -> PythonOp:
        """States what the attributes must be. The function takes the attributes that it names, by name, and returns for
        each that it limits a condition and a text: {"gamma": (gamma >= 0, "a number that is not negative")}."""
        self.check_function = function
        return self

    def gradient(self, function: _Function) -> PythonOp:
        """States the gradient, which `opgate verify` holds to differences. The function takes `grad_<output>`, and of
        the inputs, outputs and attributes those that it names. It returns the gradient of each input, None for one
        without. A formula needs none: its derivative is made from it."""
        self.gradient_function = function
        return self

    def surrogate_gradient(self, function: _Function) -> PythonOp:
        """States a gradient that is not the slope, such as 1 for a function that rounds. Nothing holds it to
        differences."""
        self.surrogate = True
        return self.gradient(function)

    def cases(self, function: _Cases) -> PythonOp:
        """States what `opgate verify` tries: a generator of opgate.Case. It gets the dtypes of the type variables."""
        self.cases_function = function
        return self

    def large(self, function: Callable[[Mapping[str, np.dtype[Any]]], Case]) -> PythonOp:
        """States one large case, for measuring time."""
        self.large_function = function
        return self

    def library(self, engine: str = "onnxruntime", *, domain: str | None = None) -> Path:
        """Builds a library of the op for an engine, and returns its file, for opgate.numpy.load and ONNX Runtime's
        SessionOptions.register_custom_ops_library, or, with the engine "torch", for opgate.torch.load.

        The op's source is the cell or the file that defines it, down to the first statement that asks for a library. It
        stands alone: it imports and defines what it uses. The domain is the op's name in snake_case by default. A
        changed op gets another file, because a process loads each only once. Raises OpFileError, whose message begins
        with the file and the line, or BuildError.
        """
        return Path(self._notebook().library(self, engine, domain))

    def save(self, folder: Path | str) -> Path:
        """Writes the op's source to FOLDER/<op>/op.py, for `opgate build FOLDER`, and returns that file. Raises
        OpFileError."""
        return Path(self._notebook().save(self, Path(folder)))

    def _notebook(self) -> Any:
        if EXECUTED.now:
            raise Enough
        return importlib.import_module("opgate.ops_build.notebook")  # it depends on this module


def op(signature: str, doc: str = "") -> Callable[[_Function], PythonOp]:
    """Makes an op of a NumPy function.

        @opgate.op("<T: f16|f32|i32> ClampAdd(a: T[...], b: T[...]; high: int=100) -> (y: T[...])", "min(a + b, high).")
        def clamp_add(a, b, *, high):
            return np.minimum(a + b, high)

    docs/signatures.md describes signatures. `doc` is one line; by default it is the first one of the docstring.
    """
    if not isinstance(signature, str):
        raise TypeError('opgate.op needs the signature: @opgate.op("ClampAdd(a: f32[...]) -> (y: f32[...])")')

    def decorate(function: _Function) -> PythonOp:
        line = doc or (inspect.getdoc(function) or "").split("\n")[0]
        return PythonOp(" ".join(signature.split()), line, function)

    return decorate


def place_of(function: _Function) -> str:
    code = inspect.unwrap(function).__code__
    return f"{code.co_filename}:{code.co_firstlineno}"
