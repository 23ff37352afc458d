"""The pages of the site that are made from the code: commands, routes, metrics, settings, Python functions, ops."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
import tokenize
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

import opgate
from opgate import cli
from opgate.ops_build.adapters.jax import limits as jax
from opgate.ops_build.adapters.litert import limits as litert
from opgate.ops_build.adapters.openvino import limits as openvino
from opgate.ops_build.adapters.torch import limits as torch
from opgate.ops_build.building.options import BuildOptions
from opgate.ops_build.dtypes import DTYPES
from opgate.ops_build.op_folder import folder_of
from opgate.ops_build.op_functions import documentation, functions_of, signature_of
from opgate.ops_build.op_table import Op, read_table, snake_case
from opgate.service import app
from opgate.service.gateway import Gateway
from opgate.service.settings import Settings
from opgate.service.telemetry import gpus, metrics

#: The modules that people import.
MODULES = (
    *("opgate", "opgate.numpy", "opgate.torch", "opgate.tensorflow", "opgate.jax", "opgate.openvino"),
    *("opgate.tvm_ffi", "opgate.ray"),
)

#: What signatures of functions call a tensor of whatever engine.
TENSOR = type("Tensor", (), {"__module__": "builtins"})


def built_library() -> Path:
    """Returns the op library that `opgate build` wrote."""
    return BuildOptions().library()


def reference_pages(root: Path, library: Path) -> dict[str, str]:
    """Returns the pages of the part "Reference" by their names."""
    document, lines = from_a_gateway(root, library)
    return {
        "reference/cli": commands_page(),
        "reference/grpc": grpc_page(),
        "reference/http": routes_page(document),
        "reference/metrics": metrics_page(lines),
        "reference/python": python_page(root),
        "reference/settings": settings_page(root),
    }


def from_a_gateway(root: Path, library: Path) -> tuple[dict[str, Any], str]:
    """Returns the OpenAPI document and the metrics of a gateway that serves two models."""
    command = [sys.executable, "-m", "opgate", "serve", "--model-repository", str(root / "model_repository")]
    command += ["--http-port", "0", "--grpc-port", "0", "--model-control-mode", "explicit"]
    command += ["--load-model", "my_add", "--load-model", "digit_detector"]
    environment = {**os.environ, "OPGATE_OPS_PATH": str(library.parent)}
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, cwd=root) as server,
    ):
        assert server.stderr is not None
        try:
            for line in server.stderr:
                log.write(line)
                if '"listening"' in line:
                    url = f"http://127.0.0.1:{json.loads(line)['http_port']}"
                    break
            else:
                log.seek(0)
                raise RuntimeError(f"the gateway did not start:\n{log.read()}")
            document = json.loads(urllib.request.urlopen(f"{url}/openapi.json", timeout=20).read())
            return document, urllib.request.urlopen(f"{url}/metrics", timeout=20).read().decode()
        finally:
            server.terminate()


def plain(text: str) -> str:
    """Returns a text in which Markdown sees no marks but those of code: neither emphasis, tags nor cells."""
    parts = re.split(r"(``?[^`\n]+``?)", text)
    return "".join(
        part.replace("|", "\\|") if index % 2 else re.sub(r"([\\<>*_|\[\]{}$])", r"\\\1", part)
        for index, part in enumerate(parts)
    )


def cell(value: object, code: bool = False) -> str:
    """Returns a cell of a table."""
    text = " ".join(str(value).split())
    return (f"`{text.replace('|', chr(92) + '|')}`" if text else "") if code else plain(text)


def docstring(text: str) -> str:
    """Returns a docstring as Markdown. What is indented by four is code, as there."""
    return "\n".join(line if line.startswith("    ") else plain(line) for line in inspect.cleandoc(text).splitlines())


def commands_page() -> str:
    """Returns the page of the commands, with what `--help` says."""
    group = typer.main.get_command(cli.app)
    context = typer.Context(group, info_name="opgate")
    lines = ["# Command line", "", "What `opgate COMMAND --help` prints.", ""]
    for name in cli.COMMANDS:
        command = group.get_command(context, name)
        inner = typer.Context(command, info_name=name, parent=context)
        usage = " ".join(command.collect_usage_pieces(inner))
        lines += [
            f"## opgate {name}",
            "",
            "```sh",
            f"opgate {name} {usage}",
            "```",
            "",
            docstring(command.help or ""),
            "",
        ]
        rows = [(*_option(parameter, inner), parameter) for parameter in command.params if parameter.name != "help"]
        if rows:
            lines += ["| option or argument | what it does | default |", "|---|---|---|"]
            lines += [
                f"| {cell(names, True)} | {cell(text)} | {cell(default, True)} |" for names, text, default, _ in rows
            ]
            lines.append("")
    return "\n".join(lines)


def _option(parameter: Any, context: Any) -> tuple[str, str, str]:
    """Returns the names of an option, its help and its default."""
    names = ", ".join([*parameter.opts, *parameter.secondary_opts])
    if parameter.param_type_name == "argument":
        names = parameter.name.upper()
    default = parameter.get_default(context)
    said = "" if default in (None, False, "", [], ()) or callable(default) else default
    return names, getattr(parameter, "help", None) or "", str(said)


def routes_page(document: Mapping[str, Any]) -> str:
    """Returns the page of the routes of HTTP, from the table of the gateway and its OpenAPI document."""
    with tempfile.TemporaryDirectory() as empty:
        gateway = Gateway(Settings(model_repository=Path(empty)))
        table = [route for part in app._ENDPOINTS for route in part.routes(gateway)]
    lines = [
        "# HTTP",
        "",
        "Every route. `/openapi.json` of a gateway has them for its own models, and `/docs` shows it.",
        "",
    ]
    lines += ["| method | path | what it does | errors |", "|---|---|---|---|"]
    for route in table:
        operation = _described(document, route.path, route.method.lower())
        summary = operation.get("summary", "").replace("my_add", "a model").replace("digit_detector", "a model")
        errors = ", ".join(code for code in operation.get("responses", {}) if code != "200")
        lines.append(f"| {route.method} | {cell(route.path, True)} | {cell(summary)} | {errors} |")
    lines += ["", "## Schemas", "", "What the bodies in JSON have.", ""]
    for name, schema in document["components"]["schemas"].items():
        lines += [f"### {name}", "", "```json", json.dumps(schema, indent=2), "```", ""]
    return "\n".join(lines)


def _described(document: Mapping[str, Any], path: str, method: str) -> Mapping[str, Any]:
    """Returns what the document says of a route, for one of the models that the gateway serves."""
    for model in ("my_add", "digit_detector"):
        named = path.replace("{model}", model).replace("/versions/{version}", "")
        for candidate in (path, named):
            if method in document["paths"].get(candidate, {}):
                return dict(document["paths"][candidate][method])
    return {}


def grpc_page() -> str:
    """Returns the page of the methods of gRPC, from the descriptor of the service."""
    from tritonclient.grpc import service_pb2

    service = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    lines = [
        "# gRPC",
        "",
        f"The service `{service.full_name}`, beside `grpc.health.v1.Health` and server reflection.",
        "",
    ]
    lines += ["| method | request | answer |", "|---|---|---|"]
    for method in service.methods:
        streams = method.name == "ModelStreamInfer"
        asked, answered = (
            f"{'a stream of ' * streams}`{kind.name}`" for kind in (method.input_type, method.output_type)
        )
        lines.append(f"| `{method.name}` | {asked} | {answered} |")
    lines += ["", "## Messages", ""]
    for name, message in sorted(service_pb2.DESCRIPTOR.message_types_by_name.items()):
        lines += [f"### {name}", "", *(_fields(message) or ["It has no fields."]), ""]
    return "\n".join(lines)


def _fields(message: Any) -> list[str]:
    """Returns the table of the fields of a message."""
    lines = ["| number | field | type |", "|---|---|---|"]
    for field in message.fields:
        kinds = {getattr(field, name): name for name in dir(field) if name.startswith("TYPE_")}
        kind = field.message_type.name if field.message_type else kinds[field.type].removeprefix("TYPE_").lower()
        lines.append(f"| {field.number} | `{field.name}` | {kind} |")
    return lines if message.fields else []


def metric_families() -> Iterator[tuple[str, str, str, str]]:
    """Yields the name, the kind, the labels and the text of every metric that the sources declare."""
    version = "model, version"
    for table, kind, end in (
        (metrics._COUNTERS, "counter", ""),
        (metrics._CACHE_COUNTERS, "counter", ""),
        (metrics._GAUGES, "gauge", ""),
        (metrics._OWN_COUNTERS, "counter", "_total"),
    ):
        for name, text, _ in table:
            yield f"{name}{end}", kind, version, text
    for name, text, _, _ in metrics._HISTOGRAMS:
        yield name, "histogram", version, text
    for name, text, _ in gpus._METRICS:
        yield name, "counter" if name == "nv_energy_consumption" else "gauge", "gpu_uuid", text
    for call in ast.walk(ast.parse(inspect.getsource(metrics))):
        if isinstance(call, ast.Call) and (kind := getattr(call.func, "id", "")).endswith("MetricFamily"):
            name, text = (argument.value for argument in call.args[:2])
            labels = next((word.value for word in call.keywords if word.arg == "labels"), None)
            named = version if isinstance(labels, ast.Name) else ", ".join(ast.literal_eval(labels) if labels else [])
            kind = kind.removesuffix("MetricFamily").lower()
            yield f"{name}{'_total' if kind == 'counter' else '_info' * (kind == 'info')}", kind, named, text


def metrics_page(lines: str) -> str:
    """Returns the page of the metrics: what the sources declare, and what a gateway has beside that."""
    rows = {name: (kind, labels, text) for name, kind, labels, text in metric_families()}
    kinds = dict(re.findall(r"^# TYPE (\S+) (\w+)", lines, re.MULTILINE))
    for name, text in re.findall(r"^# HELP (\S+) (.*)", lines, re.MULTILINE):
        found = re.search(rf"^{name}(?:_bucket)?{{(.*?)}}", lines, re.MULTILINE)
        labels = [label for label in re.findall(r'(\w+)="', found[1]) if label != "le"] if found else []
        rows.setdefault(name, (kinds[name], ", ".join(labels), text))
    page = [
        "# Metrics",
        "",
        "What `/metrics` has. Those of GPUs, of Triton servers and of a budget of memory are there only with these.",
        "",
    ]
    page += ["| metric | kind | labels | what it is |", "|---|---|---|---|"]
    page += [
        f"| {cell(name, True)} | {kind} | {cell(labels)} | {cell(text)} |"
        for name, (kind, labels, text) in sorted(rows.items())
    ]
    return "\n".join(page) + "\n"


def settings_page(root: Path) -> str:
    """Returns the page of the settings, with the comments of their source."""
    flags, comments = Settings.flags(), _comments(root / "opgate" / "service" / "settings.py")
    page = [
        "# Settings",
        "",
        "A setting comes from its option of `opgate serve`, else from its variable, else it is the default.",
        "",
    ]
    page += ["| variable and option | default | what it does |", "|---|---|---|"]
    for name, field in Settings.model_fields.items():
        flag = flags.get(name)
        default = flag.default if flag and flag.default else "" if field.default_factory else field.default
        shown = "" if default is None or str(default) in ("", "PydanticUndefined") else str(default)
        option = Settings.option(name) if flag else ""
        text = " ".join(filter(None, [flag.help if flag else "", comments.get(name, "")]))
        names = f"{cell(Settings.variable(name), True)} {cell(option, True)}"
        page.append(f"| {names} | {cell(shown, True)} | {cell(text)} |")
    return "\n".join(page) + "\n"


def _comments(source: Path) -> dict[str, str]:
    """Returns the comments of the fields of Settings: those in lines before a field, and the one at its end."""
    with source.open("rb") as file:
        found = {token.start[0]: token for token in tokenize.tokenize(file.readline) if token.type == tokenize.COMMENT}
    alone = {number for number, token in found.items() if not token.line[: token.start[1]].strip()}
    (body,) = [node.body for node in ast.parse(source.read_text()).body if getattr(node, "name", "") == "Settings"]
    texts: dict[str, str] = {}
    for field in body:
        if isinstance(field, ast.AnnAssign):
            first = field.lineno
            while first - 1 in alone:
                first -= 1
            numbers = [*range(first, field.lineno), *range(field.lineno, field.end_lineno + 1)]
            words = [found[n].string.removeprefix("#").strip() for n in numbers if n in found]
            texts[field.target.id] = " ".join(words)
    return texts


def python_page(root: Path) -> str:
    """Returns the page of the Python functions, with their docstrings. Nothing imports an engine for it."""
    page = ["# Python", "", "The functions of single ops are on [the pages of the ops](../ops.md).", ""]
    for module in MODULES:
        path = root / f"{module.replace('.', '/')}.py"
        tree = ast.parse((path if path.is_file() else root / module / "__init__.py").read_text())
        page += [f"## {module}", "", docstring(ast.get_docstring(tree) or ""), ""]
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                page += _entry(module, node)
        if module == "opgate":  # what it has from elsewhere
            for function in (getattr(opgate, name) for name in opgate.__all__):
                if function.__module__ != "opgate":
                    page += _entry("opgate", ast.parse(inspect.getsource(function)).body[0])
    return "\n".join(page) + "\n"


def _entry(module: str, node: Any) -> list[str]:
    """Returns the lines of a function or a class and, of a class, of its public functions."""
    called = f"({ast.unparse(node.args)})" if isinstance(node, ast.FunctionDef) else ""
    gives = f" -> {ast.unparse(node.returns)}" if isinstance(node, ast.FunctionDef) and node.returns else ""
    lines = [f"### {module}.{node.name}", "", "```python", f"{node.name}{called}{gives}", "```", ""]
    lines += [docstring(ast.get_docstring(node) or ""), ""]
    for inner in node.body if isinstance(node, ast.ClassDef) else ():
        if isinstance(inner, ast.FunctionDef) and not inner.name.startswith("_"):
            text = " ".join((ast.get_docstring(inner) or "").split())
            lines.append(f"- `{inner.name}({ast.unparse(inner.args)})`: {plain(text)}")
    return [*lines, ""]


def ops_table(listed: str) -> str:
    """Returns the table of docs/ops.md with links to the pages of the ops."""
    table = listed.partition("\n## ")[0]
    return re.sub(
        r"^\| \[(\w+)\]\(#\w+\)", lambda row: f"| [{row[1]}](ops/{snake_case(row[1])}.md)", table, flags=re.MULTILINE
    )


def op_sections(library: Path, listed: str) -> dict[str, str]:
    """Returns what the page of each op has beside its README, by the name of its folder."""
    tables = {
        name: text.partition("```\n")[2].partition("```\n")[2].partition(f"\n`opgate::{name}`")[0].strip()
        for name, text in (part.split("\n", 1) for part in listed.split("\n## ")[1:])
    }
    found = {}
    for op in read_table(library):
        lines = ["", "## Tensors and attributes", "", f"{tables[op.name]}", "", *engines_table(op)]
        lines += [
            "## In Python",
            "",
            "The same function in `opgate.numpy` and, where the op is in the engine, in",
            "`opgate.torch`, `opgate.tensorflow` and `opgate.jax`:",
            "",
        ]
        for name, returned in functions_of(op):
            signature = signature_of(returned, TENSOR)
            called = str(signature or "(...)")
            lines += ["```text", f"{name}{called}", "", documentation(returned, ()).strip(), "```", ""]
        found[snake_case(op.name)] = "\n".join(lines)
    return found


def engines_table(op: Op) -> list[str]:
    """Returns the table of the engines and dtypes of an op."""
    cuda = folder_of(op, [BuildOptions().ops[0]]).has_cuda_kernel  # from the sources: a build may leave out CUDA
    devices = "CPU, CUDA" if cuda else "CPU"
    made = [openvino.MADE.get(dtype, dtype) for dtype in op.dtypes]
    rows: list[tuple[str, str, str, str]] = [
        ("ONNX Runtime", devices, " ".join(op.dtypes), ""),
        ("PyTorch", devices, " ".join(op.dtypes), torch.why_left_out(op)),
        ("TensorRT", "CUDA", " ".join(_of_plugins(op)), "" if cuda else "it has no CUDA kernel"),
        ("TensorFlow", "CPU", " ".join(op.dtypes), ""),
        ("LiteRT", "CPU", " ".join(op.dtypes), litert.why_left_out(op)),
        ("JAX", "CPU", " ".join(op.dtypes), jax.why_left_out(op)),
        ("OpenVINO", "CPU", " ".join(dict.fromkeys(made)), openvino.why_left_out(op)),
        ("NumPy", "CPU", " ".join(op.dtypes), ""),
    ]
    lines = ["## Engines", "", "| engine | devices | dtypes |", "|---|---|---|"]
    for engine, where, dtypes, reason in rows:
        left_out = reason or ("" if dtypes else "its plugins can't have one of the dtypes")
        lines.append(
            f"| {engine} | not there: {plain(left_out)} | |" if left_out else f"| {engine} | {where} | {dtypes} |"
        )
    return [*lines, ""]


def _of_plugins(op: Op) -> list[str]:
    """Returns the dtypes with which TensorRT's plugins can have the op, none if a tensor has a dtype that they lack."""
    choices = [[types.get(name, name) for name in op.tensor_types] for types in op.type_choices()]
    return list(dict.fromkeys(d for choice in choices if all(DTYPES[d].tensorrt for d in choice) for d in choice))
