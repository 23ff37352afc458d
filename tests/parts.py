"""The parts of the tests that `make test PART=...` runs, each by itself."""

from __future__ import annotations

import re
from pathlib import Path

PARTS = ("ops", "engines", "gateway", "protocol", "models")

_ENGINES = re.compile(
    "adapter|decompose|export|host|import|numpy|onnxruntime|out_of_tree|package|tensorrt|test_run|torch"
)
_PROTOCOL = re.compile(
    "bounded_cost|bytes|classification|connection|content_types|grpc|header_forwarding|held_bytes|http|json_tensors|"
    "leavers|limits|openapi|protobuf|python|repeated_heads|shared_memory|streaming|tritonclient|wire|written_repositories"
)
_MODELS = re.compile(
    "contributing|digit_detector|doctor|every_model|load|object_stores|operations|perf_analyzer|plan|readme|stack|starting_points|"
    "triton|tune|wheel"
)
# Long ones of the whole project go where there is room.
_OF_ALL = {"test_style": "engines", "test_bare_environment": "protocol"}


def part_of(file: Path) -> str:
    """Returns the part that the tests of a file belong to."""
    if file.stem in _OF_ALL:
        return _OF_ALL[file.stem]
    folder = file.parent.name
    if folder in ("ops", "ops_build"):
        return "engines" if folder == "ops_build" and _ENGINES.search(file.stem) else "ops"
    if folder in ("fuzz", "rpc") or (folder in ("service", "system") and _PROTOCOL.search(file.stem)):
        return "protocol"
    if folder in ("console", "service", "system") and not (folder == "system" and _MODELS.search(file.stem)):
        return "gateway"
    return "models"
