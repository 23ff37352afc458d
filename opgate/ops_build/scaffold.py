"""Writes the folder of a new op: an elementwise formula that works at once, in Python or in C++, or the skeleton of a
signature.

Both build, verify and have a page. The skeleton's kernel and reference give zeros, until the author writes what they
should compute.
"""

from __future__ import annotations

import keyword
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from string import Template
from typing import Any

from opgate.ops_build.building.options import SOURCE
from opgate.ops_build.dtypes import DTYPES
from opgate.ops_build.op_table import Attribute, Expr, Input, Op, Output, parse_signature, snake_case
from opgate.ops_build.python_ops.op_file import FILE
from opgate.ops_build.signature_walk import DIVISIONS, OPERATIONS

#: The folder of opgate's own ops.
OWN_OPS = SOURCE / "ops"
_TEMPLATES = Path(__file__).resolve().parent / "templates"
_CPP_TYPES = {
    "f16": "opgate::f16",
    "bf16": "opgate::bf16",
    "f32": "float",
    "f64": "double",
    "i8": "std::int8_t",
    "u8": "std::uint8_t",
    "i32": "std::int32_t",
    "i64": "std::int64_t",
    "bool": "bool",
}
_GETTERS = {"int": "integer", "float": "number", "bool": "boolean", "str": "text", "choice": "text"}
#: The words of Python and of C++, and what the templates call their own.
_TAKEN = frozenset([
    *keyword.kwlist,
    "in", "out", "attributes", "np", "Array", "alignas", "alignof", "auto", "bool", "case", "catch", "char",
    "concept", "const", "constexpr", "default", "delete", "do", "double", "enum", "explicit", "export",
    "extern", "false", "float", "friend", "goto", "inline", "int", "long", "mutable", "namespace", "new",
    "noexcept", "nullptr", "operator", "private", "protected", "public", "register", "requires", "short",
    "signed", "sizeof", "static", "struct", "switch", "template", "this", "throw", "true", "typedef", "typeid",
    "typename", "union", "unsigned", "using", "virtual", "void", "volatile", "xor", "compl",
])  # fmt: skip
_VALUES: Mapping[str, Any] = {"int": 2, "float": 0.5, "bool": True, "str": "text"}


class ScaffoldError(ValueError):
    """The folder can't be written. The message says why, and what to do."""


def new_op(folder: Path, signature: str | None, library: Path, *, python: bool = False) -> list[Path]:
    """Writes the files of a new op into `folder`, whose name is the op's in snake_case, and returns them.

    Without a signature the op is elementwise and gives x times an attribute. With `python` it is an op.py: a formula,
    or with a signature a NumPy function that gives zeros. `library` is an op library, whose parser reads the signature.
    Raises ScaffoldError, SignatureError, and OSError if a file can't be written.
    """
    folder = empty_folder(folder)
    if signature is None:
        name = "".join(part.capitalize() for part in folder.name.split("_"))
        if snake_case(name) != folder.name:
            raise ScaffoldError(f"the op {name} lies in a folder named {snake_case(name)}, got {folder.name}")
        texts = _in_python(name, folder.name) if python else _elementwise(name, folder.name)
    elif library.is_file():
        op = op_in(folder, signature, library)
        texts = numpy_function(op) if python else _skeleton(op)
    else:
        raise ScaffoldError(f"{library} is not there, and its parser reads signatures: run opgate build")
    return written(folder, texts)


def empty_folder(folder: Path) -> Path:
    """Returns the path of a new op's folder. Raises ScaffoldError if no op has such a name, or if files are there."""
    folder = folder.resolve()
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", folder.name) or keyword.iskeyword(folder.name):
        raise ScaffoldError(f"expected a folder named in snake_case, such as my_ops/scale_add, got '{folder.name}'")
    if folder.is_dir() and any(folder.iterdir()):
        raise ScaffoldError(f"{folder} is not empty: name a new folder")
    return folder


def op_in(folder: Path, signature: str, library: Path) -> Op:
    """Returns the op of a signature, read by the parser of `library`. Raises ScaffoldError if it belongs to another
    folder, and SignatureError."""
    op = parse_signature(library, signature)
    if snake_case(op.name) != folder.name:
        raise ScaffoldError(f"the op {op.name} lies in a folder named {snake_case(op.name)}, got {folder.name}")
    return op


def written(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Writes files by their names, and returns them. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    if folder.parent == OWN_OPS:
        texts = {**texts, "__init__.py": ""}  # they are a package of Python
    paths = [folder / name for name in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        path.write_text(text)
    return paths


def _elementwise(name: str, stem: str) -> dict[str, str]:
    """Returns the files of an op that gives x * factor."""
    return {
        target.replace("op.", f"{stem}."): _filled(f"elementwise/{target}", name=name, stem=stem)
        for target in ("op.h", "reference.py", "cases.py", "README.md")
    }


def _in_python(name: str, stem: str) -> dict[str, str]:
    """Returns the file of an op in Python that gives x * factor."""
    return {FILE: _filled("python/op.py", name=name, stem=stem)}


def numpy_function(op: Op, template: str = "python/signature.py") -> dict[str, str]:
    """Returns the file of an op in Python that gives zeros. Raises ScaffoldError for a name that it can't have."""
    taken = {"np", "opgate", "Case", "rng", "random", "types", *keyword.kwlist}
    for name in (*(tensor.name for tensor in op.inputs), *(attribute.name for attribute in op.attributes), *_names(op)):
        if name in taken:
            raise ScaffoldError(f"'{name}' has a meaning in the op.py: call it otherwise")
    inputs = ", ".join(tensor.name for tensor in op.inputs)
    attributes = "".join(f", {attribute.name}" for attribute in op.attributes)
    quote = "'" if '"' in op.signature else '"'
    values = _values_in_python(op) | {
        "quoted": f"{quote}{op.signature}{quote}",
        "parameters": inputs + (f"{', ' * bool(inputs)}*{attributes}" if attributes else ""),
    }
    return {FILE: _filled(template, **values)}


def _values_in_python(op: Op) -> dict[str, str]:
    """Returns the values of the templates for files in Python."""
    return {
        "name": op.name,
        "stem": snake_case(op.name),
        "sizes": "".join(f"    {line}\n" for line in _python_sizes(op)),
        "outputs": "(\n" + "".join(f"        {_zeros(op, output)},\n" for output in op.outputs) + "    )",
        "inputs": "".join(f"        {line}\n" for line in _case_inputs(op)),
        "attributes": _literal({a.name: _value(a) for a in op.attributes if a.required}),
    }


def _skeleton(op: Op) -> dict[str, str]:
    """Returns the files of an op that gives zeros. Raises ScaffoldError for a name that its code can't have."""
    for name in (*(tensor.name for tensor in op.inputs), *(attribute.name for attribute in op.attributes), *_names(op)):
        if name in _TAKEN:
            raise ScaffoldError(f"'{name}' has a meaning in the kernel or in the reference: call it otherwise")
    values = _values_in_python(op) | {
        "signature": op.signature,
        "quoted": _quoted(op.signature),
        "attributes_name": " attributes" * bool(op.attributes),
        "template": f"  template <{', '.join(f'typename {t}' for t in op.type_variables)}>\n" * bool(op.type_variables),
        "read": "".join(f"    {line}\n" for line in _reads(op)),
        "write": "".join(f"    {line}\n" for line in _writes(op)),
        "parameters": _parameters(op),
        "table": "".join(_rows(op)),
    }
    return {
        target.replace("op.", f"{values['stem']}."): _filled(f"skeleton/{target}", **values)
        for target in ("op.cpp", "reference.py", "cases.py", "README.md")
    }


def _literal(values: Mapping[str, Any]) -> str:
    """Returns a dict of Python, with the quotes that formatters like."""
    return repr(dict(values)).replace("'", '"')


def _quoted(text: str) -> str:
    """Returns a text as a literal of C++, on as many lines as it needs."""
    lines = textwrap.wrap(text.replace("\\", "\\\\").replace('"', '\\"'), 100, drop_whitespace=False)
    return "\n          ".join(f'"{line}"' for line in lines)


def _filled(file: str, **values: str) -> str:
    return Template((_TEMPLATES / f"{file}.template").read_text()).substitute(values)


def _cpp_type(op: Op, tensor: Input | Output) -> str:
    if tensor.type in op.type_variables:
        return tensor.type
    if tensor.type == "str":
        return "std::string_view" if isinstance(tensor, Input) else "std::string"
    return _CPP_TYPES[tensor.type]


def _reads(op: Op) -> Iterator[str]:
    """Yields the lines of C++ that read inputs, attributes and sizes."""
    for tensor in op.inputs:
        at = f'in["{tensor.name}"]'
        pointer = f"{at}.data<{_cpp_type(op, tensor)}>()"
        if tensor.variadic:
            yield f'[[maybe_unused]] const auto {tensor.name} = in.all("{tensor.name}");'
        elif tensor.optional:
            yield f'[[maybe_unused]] const auto* {tensor.name} = in.has("{tensor.name}") ? {pointer} : nullptr;'
        else:
            yield f"[[maybe_unused]] const auto* {tensor.name} = {pointer};"
    for attribute in op.attributes:
        getter = _GETTERS[attribute.kind] + "s" * attribute.list
        yield f'[[maybe_unused]] const auto {attribute.name} = attributes.{getter}("{attribute.name}");'
    taken = {tensor.name for tensor in op.inputs} | {attribute.name for attribute in op.attributes}
    for name in dict.fromkeys(name for name in _names(op) if name not in taken):
        yield f'[[maybe_unused]] const std::int64_t {name} = in.size("{name}");'


def _writes(op: Op) -> Iterator[str]:
    """Yields the lines of C++ that write zeros."""
    for name in dict.fromkeys(dim["name"] for output in op.outputs for dim in output.dims if dim["kind"] == "bounded"):
        yield f'OPGATE_RETURN_IF_ERROR(out.bind("{name}", 0));  // the number that the kernel has found'
    for output in op.outputs:
        kind = _cpp_type(op, output)
        fill = f'std::fill_n(out["{output.name}"].data<{kind}>(), out["{output.name}"].size(), {kind}{{}});'
        yield f'if (out.has("{output.name}")) {fill}' if output.optional else fill


def _names(op: Op) -> Iterator[str]:
    """Yields the names of the sizes that inputs bind, in their order."""
    for tensor in op.inputs:
        yield from (dim["name"] for dim in tensor.dims if dim["kind"] == "name")


def _parameters(op: Op) -> str:
    arrays = {tensor.name: "list[Array]" if tensor.variadic else "Array" for tensor in op.inputs}
    inputs = [f"{tensor.name}: {arrays[tensor.name]}{' | None' * tensor.optional}" for tensor in op.inputs]
    kinds = {"int": "int", "float": "float", "bool": "bool", "str": "str", "choice": "str"}
    attributes = [f"{a.name}: {f'list[{kinds[a.kind]}]' if a.list else kinds[a.kind]}" for a in op.attributes]
    return ", ".join([*inputs, *(["*", *attributes] if attributes else [])])


def _python_sizes(op: Op) -> Iterator[str]:
    """Yields the lines of Python that bind the sizes which outputs have."""
    wanted = {name for output in op.outputs for dim in output.dims for name in _names_in(_expr_of(dim))}
    defaults = [(dim["name"], dim["default"]) for t in op.inputs for _, dim in _places(t) if dim.get("default")]
    wanted |= {name for of, default in defaults if of in wanted for name in _names_in(default)}
    bound: set[str] = {attribute.name for attribute in op.attributes}
    for tensor in op.inputs:
        if tensor.const and not tensor.dims and tensor.name in wanted:
            yield f"{tensor.name} = int({tensor.name})"
            bound.add(tensor.name)
    for name in dict.fromkeys(dim["name"] for output in op.outputs for dim in output.dims if dim["kind"] == "bounded"):
        yield f"{name} = 0  # the number that is found"
        bound.add(name)
    for tensor in op.inputs:
        array = f"{tensor.name}[0]" if tensor.variadic else tensor.name
        for place, dim in _places(tensor):
            name = dim["name"]
            if name in bound or name not in wanted:
                continue
            other = dim.get("default")
            if not tensor.optional:
                yield f"{name} = {array}.shape[{place}]"
            elif other is not None:
                yield f"{name} = {_python(other)} if {array} is None else {array}.shape[{place}]"
            else:
                continue
            bound.add(name)


def _places(tensor: Input) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yields the named dims with their index, which counts from the end behind dims of any number."""
    loose = next((i for i, dim in enumerate(tensor.dims) if dim["kind"] in ("ellipsis", "any")), len(tensor.dims))
    for i, dim in enumerate(tensor.dims):
        if dim["kind"] == "name":
            yield (i if i < loose else i - len(tensor.dims)), dim


def _expr_of(dim: Mapping[str, Any]) -> Expr:
    """Returns the expression of an output's dim; 0 for `...`, which has none."""
    expr: Expr = dim.get("expr", dim.get("name", 0))
    return expr


def _names_in(expr: Expr) -> set[str]:
    if isinstance(expr, str):
        return {expr}
    return set() if isinstance(expr, int) else _names_in(expr[1]) | _names_in(expr[2])


def _python(expr: Expr) -> str:
    """Returns an expression in Python."""
    if not isinstance(expr, list):
        return str(expr)
    operation, a, b = expr[0], _python(expr[1]), _python(expr[2])
    if operation == "ceildiv":
        return f"-(-({a}) // ({b}))"
    return f"{operation}({a}, {b})" if operation in ("min", "max") else f"({a} {operation.replace('/', '//')} {b})"


def _zeros(op: Op, output: Output) -> str:
    """Returns the expression of an output of zeros in NumPy."""
    parts: list[str] = []
    for dim in output.dims:
        parts.append(f"*{_loose_dims(op)}" if dim["kind"] == "ellipsis" else _python(_expr_of(dim)))
    shape = f"({', '.join(parts)}{',' * (len(parts) == 1)})"
    if output.type in op.type_variables:
        like = next(tensor for tensor in op.inputs if tensor.type == output.type and not tensor.optional)
        return f"np.zeros({shape}, {like.name}{'[0]' * like.variadic}.dtype)"
    if output.type == "str":
        return f'np.full({shape}, "", object)'
    return f"np.zeros({shape}, np.{DTYPES[output.type].numpy.name})"


def _loose_dims(op: Op) -> str:
    """Returns the dims that `...` stands for, in Python."""
    for tensor in op.inputs:
        kinds = [dim["kind"] for dim in tensor.dims]
        if "ellipsis" in kinds and not tensor.optional:
            first, behind = kinds.index("ellipsis"), len(kinds) - 1 - kinds.index("ellipsis")
            return f"{tensor.name}{'[0]' * tensor.variadic}.shape[{first or ''}:{-behind or ''}]"
    raise ScaffoldError("no required input has '...', and the skeleton can't tell the outputs' dims without one")


def _case_inputs(op: Op) -> Iterator[str]:
    """Yields the lines of Python that make small inputs of every required tensor."""
    sizes = {a.name: _value(a) for a in op.attributes if a.kind == "int" and not a.list}
    for tensor in op.inputs:
        if tensor.const and not tensor.dims:
            sizes.setdefault(tensor.name, 3)
    for number, name in enumerate(dict.fromkeys(_names(op))):
        sizes.setdefault(name, number % 4 + 3)
    for tensor in op.inputs:
        if tensor.optional:
            continue
        if not tensor.dims and tensor.name in sizes:
            yield f'"{tensor.name}": np.array({sizes[tensor.name]}, {_dtype(op, tensor)}),'
            continue
        shape = [
            _evaluate(dim.get("expr", dim.get("name")), sizes) for dim in tensor.dims if dim["kind"] in ("expr", "name")
        ]
        loose = [i for i, dim in enumerate(tensor.dims) if dim["kind"] in ("ellipsis", "any")]
        for place in loose:
            shape[place:place] = [2, 3]
        array = f"random({tuple(shape)}, {_dtype(op, tensor)})"
        yield f'"{tensor.name}": {f"[{array}, {array}]" if tensor.variadic else array},'


def _dtype(op: Op, tensor: Input) -> str:
    if tensor.type in op.type_variables:
        return f'types["{tensor.type}"]'
    return "object" if tensor.type == "str" else f"np.{DTYPES[tensor.type].numpy.name}"


def _evaluate(expr: Expr | None, sizes: Mapping[str, int]) -> int:
    if isinstance(expr, str):
        return sizes[expr]
    if not isinstance(expr, list):
        return int(expr or 0)
    a, b = _evaluate(expr[1], sizes), _evaluate(expr[2], sizes)
    return 0 if b == 0 and expr[0] in DIVISIONS else OPERATIONS[expr[0]](a, b)


def _value(attribute: Attribute) -> Any:
    """Returns the attribute's default, or a value for one without."""
    if not attribute.required:
        return attribute.default
    value = attribute.choices[0] if attribute.choices else _VALUES[attribute.kind]
    return [value] * (attribute.length or 1) if attribute.list else value


def _rows(op: Op) -> Iterator[str]:
    for tensor in op.inputs:
        yield f"| `{tensor.name}` | input | |\n"
    for attribute in op.attributes:
        yield f"| `{attribute.name}` | attribute | |\n"
    for output in op.outputs:
        yield f"| `{output.name}` | output | |\n"
