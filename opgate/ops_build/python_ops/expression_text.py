"""Expressions of sizes that an op.py states as texts: the grid of a kernel, the rows of a loop."""

from __future__ import annotations

import ast
from collections.abc import Mapping

_OPERATORS: Mapping[type, str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "/",
    ast.Mod: "%",
}
_FUNCTIONS = ("min", "max", "ceildiv")


class SizeError(ValueError):
    """A text is no expression of sizes."""


def parsed(text: str) -> ast.expr:
    """Returns the tree of an expression, in which / is // as in a signature. Raises SizeError."""
    try:
        written = ast.parse(text, mode="eval").body
    except SyntaxError:
        raise SizeError(f"'{text}' is no expression") from None
    tree: ast.expr = ast.fix_missing_locations(_WholeDivision().visit(written))
    if not _is_size(tree):
        raise SizeError(f"expected + - * / % min max ceildiv of sizes, got '{text}'")
    return tree


def names_in(tree: ast.expr) -> set[str]:
    """Returns the names of the sizes in an expression."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id not in _FUNCTIONS}


def value_of(tree: ast.expr, sizes: Mapping[str, int]) -> int:
    """Returns the value of an expression."""
    names = {**sizes, "ceildiv": lambda a, b: -(-a // b)}
    value: int = eval(compile(ast.Expression(tree), "size", "eval"), names)
    return value


def in_cpp(tree: ast.expr, constants: Mapping[str, int]) -> str:
    """Returns an expression in C++, where names are variables but for the constants."""
    if isinstance(tree, ast.Constant):
        return f"std::int64_t{{{tree.value!r}}}"
    if isinstance(tree, ast.Name):
        return f"std::int64_t{{{constants[tree.id]}}}" if tree.id in constants else tree.id
    if isinstance(tree, ast.BinOp):
        return f"({in_cpp(tree.left, constants)} {_OPERATORS[type(tree.op)]} {in_cpp(tree.right, constants)})"
    assert isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name)
    a, b = (in_cpp(argument, constants) for argument in tree.args)
    return f"(({a} + {b} - 1) / {b})" if tree.func.id == "ceildiv" else f"std::{tree.func.id}({a}, {b})"


def _is_size(tree: ast.expr) -> bool:
    if isinstance(tree, ast.BinOp):
        return type(tree.op) in _OPERATORS and _is_size(tree.left) and _is_size(tree.right)
    if isinstance(tree, ast.Call):
        known = isinstance(tree.func, ast.Name) and tree.func.id in _FUNCTIONS
        return known and len(tree.args) == 2 and not tree.keywords and all(map(_is_size, tree.args))
    return isinstance(tree, ast.Name) or (isinstance(tree, ast.Constant) and type(tree.value) is int)


class _WholeDivision(ast.NodeTransformer):
    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        return ast.BinOp(node.left, ast.FloorDiv(), node.right) if isinstance(node.op, ast.Div) else node
