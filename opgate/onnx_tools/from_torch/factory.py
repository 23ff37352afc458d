"""Finds what package.module:name names, and makes the module of PyTorch that it stands for."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch


class FactoryError(ValueError):
    """A factory can't be found or gives something else than a module. The message says what was expected."""


@dataclass(frozen=True, slots=True)
class Made:
    """A module in evaluation mode, and the example inputs of its factory, if it gives some."""

    module: torch.nn.Module
    examples: tuple[torch.Tensor, ...] | None


def named(reference: str) -> Any:
    """Returns the object of package.module:name. Modules are also looked for in the working directory. Raises
    FactoryError."""
    module_name, separator, name = reference.partition(":")
    if not separator or not module_name or not name:
        raise FactoryError(f"expected PACKAGE.MODULE:FACTORY, got '{reference}'")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise FactoryError(f"{module_name} can't be imported: {error}") from error
        raise FactoryError(f"there is no module {module_name}, neither installed nor in {here}") from None
    except Exception as error:
        raise FactoryError(f"{module_name} can't be imported: {type(error).__name__}: {error}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise FactoryError(f"{module_name} has no '{part}'")
        found = getattr(found, part)
    return found


def make(reference: str) -> Made:
    """Calls a factory. It returns a module, or a module and its example inputs; it may also be a module itself, or a
    class of modules. Raises FactoryError."""
    found = named(reference)
    try:
        result = found if isinstance(found, torch.nn.Module) else found()
    except Exception as error:
        raise FactoryError(f"{reference}() fails: {type(error).__name__}: {error}") from error
    module, examples = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
    if not isinstance(module, torch.nn.Module):
        raise FactoryError(
            f"{reference}: expected a torch.nn.Module, or one and its example inputs, got {_type(result)}"
        )
    if examples is not None:
        examples = (examples,) if isinstance(examples, torch.Tensor) else examples
        if not isinstance(examples, (tuple, list)) or not all(isinstance(value, torch.Tensor) for value in examples):
            raise FactoryError(f"{reference}: expected a tuple of tensors as example inputs, got {_type(examples)}")
        examples = tuple(examples)
    return Made(module.eval(), examples)


def _type(value: Any) -> str:
    return type(value).__name__


def parameter_names(module: torch.nn.Module, count: int) -> list[str]:
    """Returns names for the inputs of a module: those of forward's parameters, as far as it names them."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [p.name for p in inspect.signature(module.forward).parameters.values() if p.kind in kinds]
    return [parameters[i] if i < len(parameters) else f"input_{i}" for i in range(count)]


class _Flat(torch.nn.Module):  # type: ignore[misc]  # PyTorch may be missing where types are checked
    """Returns the tensors of a module's dicts as one tuple, because a graph has no dicts."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(tensor for _, tensor in _tensors(self.module(*inputs), ""))


def flattened(
    module: torch.nn.Module, inputs: Sequence[torch.Tensor], taken: Sequence[str] = ()
) -> tuple[torch.nn.Module, tuple[str, ...]]:
    """Returns a module that returns a tensor or a tuple of tensors, and the names of those that were in dicts.

    A module without dicts is returned as it is, without names. A name is made of the keys on the way to the tensor, and
    of indexes where a list has several elements. None is left out. A name that another tensor or one of `taken` has
    gets a number. Raises FactoryError.
    """
    outputs = _run(module, inputs)
    if not any(isinstance(part, Mapping) for part in (outputs, *_listed(outputs))):
        return module, ()
    return _Flat(module), _unique([name for name, _ in _tensors(outputs, "")], taken)


def _unique(names: Sequence[str], taken: Sequence[str]) -> tuple[str, ...]:
    used = set(taken)
    unique = []
    for name in names:
        free, number = name, 0
        while free in used:
            number += 1
            free = f"{name}_{number}"
        used.add(free)
        unique.append(free)
    return tuple(unique)


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (tuple, list)) else ()


def _tensors(value: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the tensors in dicts, lists and tuples, with their names."""
    if isinstance(value, torch.Tensor):
        yield name or "output", value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _tensors(part, f"{name}_{key}" if name else str(key))
    elif isinstance(value, (tuple, list)):
        for i, part in enumerate(value):
            yield from _tensors(part, name if len(value) == 1 else f"{name}_{i}" if name else f"output_{i}")
    elif value is not None:
        raise _unexpected([value])


def _unexpected(outputs: Sequence[Any]) -> FactoryError:
    returned = ", ".join(map(_type, outputs))
    return FactoryError(f"the module returns {returned}: expected a tensor, or a tuple or a dict of tensors")


def outputs_of(module: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Runs a module that returns a tensor or a tuple of tensors. Raises FactoryError."""
    outputs = _run(module, inputs)
    outputs = tuple(outputs) if isinstance(outputs, (tuple, list)) else (outputs,)
    if not all(isinstance(output, torch.Tensor) for output in outputs):
        raise _unexpected(outputs)
    return outputs


def _run(module: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> Any:
    try:
        with torch.no_grad():
            return module(*inputs)
    except Exception as error:
        shapes = ", ".join(str(list(tensor.shape)) for tensor in inputs)
        raise FactoryError(f"the module fails on inputs of shape {shapes}: {type(error).__name__}: {error}") from error


@contextmanager
def functions_with_symbolic() -> Iterator[set[str]]:
    """Collects the names of the autograd functions with a `symbolic` that are called."""
    called: set[str] = set()
    found = [f for f in dict.fromkeys(_subclasses(torch.autograd.Function)) if _has_own_symbolic(f)]
    # `apply` looks `forward` up when it is called; programs keep `apply` under other names.
    wrappers = {function: _recording(function, function.forward, called) for function in found}
    before = {function: vars(function).get("forward") for function in found}
    for function, wrapper in wrappers.items():
        function.forward = staticmethod(wrapper)
    try:
        yield called
    finally:
        for function, forward in before.items():
            if forward is None:
                del function.forward
            else:
                function.forward = forward


def _has_own_symbolic(function: Any) -> bool:
    return hasattr(function, "symbolic") and not function.__module__.startswith("torch.")


def _recording(function: Any, forward: Any, called: set[str]) -> Any:
    def record(*args: Any, **kwargs: Any) -> Any:
        called.add(function.__name__)
        return forward(*args, **kwargs)

    return record


def _subclasses(base: Any) -> Iterator[Any]:
    subclass: Any
    for subclass in base.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)
