"""Looks at what is installed and at the variables of the environment."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from opgate.doctor.findings import Finding
from opgate.tried_versions import TRIED, untried


def check_environment() -> Iterator[Finding]:
    """Says what is installed wrongly, and which variables nobody reads. Import nothing that may be missing."""
    installed = [name for name in ("onnxruntime", "onnxruntime-gpu") if _is_installed(name)]
    if importlib.util.find_spec("onnxruntime") is None:
        yield Finding("this environment", "ONNX Runtime is not installed", "pip install 'opgate[cpu]' or 'opgate[gpu]'")
    elif len(installed) > 1:
        yield Finding(
            "this environment",
            "onnxruntime and onnxruntime-gpu are both installed: each has overwritten files of the other",
            "pip uninstall both, and install the one that you want",
        )
    for name in TRIED:
        if said := untried(name):
            yield Finding("this environment", said, "opgate verify tells whether all ops agree there", is_error=False)
    from opgate.service.settings import misspelt

    for name, meant in misspelt(os.environ):
        yield Finding(f"variable {name}", "no setting has this name", f"is {meant} meant?", is_error=False)


def _is_installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True
