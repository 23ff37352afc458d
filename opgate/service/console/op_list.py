"""The ops of the trusted libraries, as the console lists them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opgate.ops_build.op_table import Op, loaded_table
from opgate.service.console.model_view import ops_in_use
from opgate.service.gateway import Gateway
from opgate.service.repository.config import ConfigError
from opgate.service.repository.op_libraries import entries, trusted_folders, trusted_library

logger = logging.getLogger("opgate.console")


def op_list(gateway: Gateway) -> list[dict[str, Any]]:
    """Returns the ops that the manifests list, each once with all of its engines. It reads files, so call it on a
    thread."""
    ops: dict[tuple[str, str], dict[str, Any]] = {}
    used = ops_in_use(gateway)
    trusted = trusted_folders(gateway.settings)
    for folder in trusted:
        try:
            listed = list(entries([folder]))
        except ConfigError as error:
            logger.warning("%s", error)
            continue
        for library in listed:
            domain, engine = str(library.get("domain", "")), str(library.get("engine", ""))
            for op in library.get("ops", []):
                name = str(op.get("name", ""))
                known = ops.setdefault(
                    (domain, name),
                    {
                        "name": name,
                        "domain": domain,
                        "signature": op.get("signature", ""),
                        "dtypes": op.get("dtypes", []),
                        "since_version": op.get("since_version", 1),
                        "devices": [],
                        "engines": [],
                        "library": str(library.get("file", "")),
                        "sha256": str(library.get("sha256", "")),
                        "trusted_by": str(folder / "manifest.json"),
                        "document": "",
                        "inputs": [],
                        "outputs": [],
                        "attributes": [],
                        "used_by": used.get((domain, name), []),
                    },
                )
                known["devices"] = sorted({*known["devices"], *op.get("devices", [])})
                known["engines"] = sorted({*known["engines"], engine} - {""})
                # A model on the CPU has this one.
                if engine == "onnxruntime" and "cuda" not in library.get("devices", ()):
                    known |= {"library": library.get("file", ""), "sha256": library.get("sha256", "")}
    for library_name in sorted({str(op["library"]) for op in ops.values() if "onnxruntime" in op["engines"]}):
        for op_of_table in _table(library_name, trusted):
            known_op = ops.get((op_of_table.domain, op_of_table.name))
            if known_op is not None:
                known_op |= _described(op_of_table)
    return [ops[key] for key in sorted(ops)]


def _table(name: str, trusted: Sequence[Path]) -> list[Op]:
    """Returns the op table of a library, an empty one if the gateway may not load it."""
    try:
        library = trusted_library(name, [], trusted)
        return [] if library.python_ops else loaded_table(library.image)
    except (ConfigError, OSError, ValueError) as error:
        logger.warning("the ops of %s can't be read: %s", name, error)
        return []


def _described(op: Op) -> dict[str, Any]:
    def types(name: str) -> str:
        return " ".join(op.type_variables.get(name, (name,)))

    return {
        "document": op.doc,
        "inputs": [
            {"name": i.name, "type": types(i.type), "optional": i.optional, "variadic": i.variadic} for i in op.inputs
        ],
        "outputs": [{"name": o.name, "type": types(o.type), "optional": o.optional} for o in op.outputs],
        "attributes": [
            {
                "name": a.name,
                "type": " or ".join(a.choices) if a.choices else f"{a.kind}{'[]' if a.list else ''}",
                "required": a.required,
                "default": a.default,
            }
            for a in op.attributes
        ],
    }
