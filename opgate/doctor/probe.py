"""Tries one library or one model in a process of its own, which may crash or hang, and prints JSON.

python -m opgate.doctor.probe library FILE
python -m opgate.doctor.probe model NAME < settings in JSON    loads it, and tries whether its rows can be batched
python -m opgate.doctor.probe load NAME < settings in JSON     only loads it
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opgate.ops_build.engines.process_end import how_ended

#: The types of ONNX Runtime that random rows can have.
_DTYPES = {
    "tensor(float)": "f32", "tensor(float16)": "f16", "tensor(double)": "f64", "tensor(int64)": "i64",
    "tensor(int32)": "i32", "tensor(int8)": "i8", "tensor(uint8)": "u8", "tensor(bool)": "bool",
    "tensor(string)": "str",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Probed:
    """What a process found. `ended` says how it ended if it didn't finish, with the last lines that it wrote."""

    found: dict[str, Any]
    ended: str = ""


def run(*arguments: str, stdin: str = "", seconds: float) -> Probed:
    """Runs this module in a new process, for so long at most."""
    command = [sys.executable, "-m", "opgate.doctor.probe", *arguments]
    environment = os.environ | {"PYTHONFAULTHANDLER": ""}
    try:
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, errors="replace", timeout=seconds, env=environment
        )
    except subprocess.TimeoutExpired:
        return Probed({}, f"did not end within {seconds:g} seconds")
    if done.returncode == 0:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return Probed(found)
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    how = how_ended(done.returncode).removeprefix("the process ")
    return Probed({}, how + (f": {' / '.join(lines[-2:])}" if lines else ""))


def probe_library(path: Path) -> dict[str, Any]:
    """Loads a library for ONNX Runtime, registers its ops, and reads its table if it has one."""
    from opgate import folders

    folders.load_shipped_dependencies()
    try:
        library = ctypes.CDLL(str(path), os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as error:
        return {"error": str(error)}
    if not hasattr(library, "RegisterCustomOps"):
        return {"error": "it exports no function RegisterCustomOps"}
    import onnxruntime

    try:
        onnxruntime.SessionOptions().register_custom_ops_library(str(path))
    except Exception as error:
        return {"error": f"ONNX Runtime {onnxruntime.__version__} refuses it: {error}"}
    if not hasattr(library, "opgate_table"):
        return {}
    library.opgate_table.restype = ctypes.c_char_p
    table = json.loads(library.opgate_table().decode(errors="replace"))
    return {"domain": table["domain"], "ops": [op["name"] for op in table["ops"]], "errors": table["errors"]}


def probe_model(name: str, settings: dict[str, Any], tries_rows: bool) -> dict[str, Any]:
    """Loads a model and the models that it needs, as the gateway does. `tries_rows` says whether random rows run."""
    from opgate.service.core.errors import ServingError
    from opgate.service.gateway import Gateway
    from opgate.service.repository.config import ignored
    from opgate.service.settings import Settings
    from opgate.service.telemetry import logs

    logs.configure("critical", "text")
    gateway = Gateway(Settings(**settings))
    try:
        gateway.catalog.load_all(only=name)
    except ServingError as error:
        return {"reasons": {"0": error.message}}
    entry = gateway.catalog.entry(name)
    reasons = {} if entry is None else {str(version): reason for version, reason in entry.reasons.items()}
    unread = [] if entry is None else [ignored(model.config) for model in entry.versions.values()]
    return {
        "reasons": reasons,
        "unknown": _unknown_ops(gateway, name) if reasons else [],
        "ignored": unread[-1] if unread else [],
        "rows": _independent_rows(entry.versions) if tries_rows and entry is not None else "",
    }


def _independent_rows(versions: Mapping[int, Any]) -> str:
    """Returns what shows that the rows of the newest version could be batched, which its config doesn't say. Empty if
    they are, or can't be."""
    from opgate.onnx_tools.row_dependence import try_rows
    from opgate.service.execution.scheduler import Scheduler

    model = versions[max(versions)] if versions else None
    if model is None or model.spec.batched or not isinstance(model.executor, Scheduler):
        return ""
    session = model.executor.session
    inputs = {tensor.name: (_DTYPES.get(tensor.type, ""), tensor.shape) for tensor in session.inputs}
    names = [tensor.name for tensor in session.outputs]
    if session.takes_requests or not all(dtype for dtype, _ in inputs.values()):
        return ""
    rows = try_rows(inputs, lambda feeds: dict(zip(names, session.run(names, dict(feeds)), strict=True)))
    return rows.why if rows.independent else ""


def _unknown_ops(gateway: Any, name: str) -> list[str]:
    """Returns the ops of a model's files that neither ONNX Runtime nor a trusted library has. The engine names only the
    first."""
    import onnx
    from google.protobuf.message import DecodeError

    from opgate.ops_build.onnx.nodes import OF_ONNX_RUNTIME, nodes_of
    from opgate.service.repository.op_libraries import entries, trusted_folders

    trusted = {
        (entry.get("domain"), op.get("name"))
        for entry in entries(trusted_folders(gateway.settings))
        for op in entry.get("ops", [])
    }
    found: set[str] = set()
    for repository in gateway.catalog.repositories.folders:
        for file in sorted((repository / name).glob("*/*.onnx")):
            try:
                model = onnx.load(file, format="protobuf", load_external_data=False)
            except (DecodeError, OSError):
                continue
            functions = {(function.domain, function.name) for function in model.functions}
            for node in nodes_of(model):
                op = (node.domain, node.op_type)
                if node.domain not in OF_ONNX_RUNTIME and op not in functions and op not in trusted:
                    found.add("::".join(op))
    return sorted(found)


def main() -> None:
    kind, name = sys.argv[1:]
    if kind == "library":
        found = probe_library(Path(name))
    else:
        found = probe_model(name, json.load(sys.stdin), tries_rows=kind == "model")
    print("\n" + json.dumps(found), flush=True)  # a library may have written a part of a line
    os._exit(0)  # a library's end is not what is tried here


if __name__ == "__main__":
    main()
