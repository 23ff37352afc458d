"""The parts of the tests that `make test PART=...` runs, each by itself."""

from __future__ import annotations

import re
from pathlib import Path

# The files of a part, each with its folder. The first part that fits has a file.
_FILES = {
    "ops": "ops/|ops_build/test_(notebook|python_ops|scaffold|tvm_ffi)",
    "kernels": "ops_build/test_(bounded|c_kernels|core|cpu_levels|cuda|gpu|loops|numpy_kernels|old_glibc|rounded_boxes|"
    "rows|sanitizers|sass|tensorrt_emulation|triton_kernels)",
    "engines": "ops_build/test_.*(adapter|decompose|host|numpy_functions|torch)",
    "models": "attach/|models/|ops_build/test_(export|import|run)|"
    "system/test_(digit_detector|every_model|plan|starting_points|tune)",
    "build": "ops_build/|system/test_doctor|tests/test_style",
    "capacity": "system/test_(gateway_processes|memory|residency|shortages|worker_trouble)",
    "protocol": "fuzz/|rpc/|service/test_(bytes|classification|http|json_tensors|protobuf|python|shared_memory|wire)|"
    "system/test_(bounded_cost|bytes|classification|content_types|cuda_shared_memory|grpc|header_forwarding|held_bytes|"
    "hostile_http|http|leavers|limits|openapi|python|repeated_heads|shared_memory|streaming|tritonclient|"
    "written_repositories)",
    "operations": "console/|deploy/|system/test_(console|load|object_stores|operations|perf_analyzer|stack|triton)",
    "release": "system/test_(contributing|readme|soak|wheel)|tests/test_",
    "gateway": "",
}
PARTS = tuple(_FILES)


def part_of(file: Path) -> str:
    """Returns the part that the tests of a file belong to."""
    name = f"{file.parent.name}/{file.stem}"
    return next(part for part, files in _FILES.items() if re.match(files, name))
