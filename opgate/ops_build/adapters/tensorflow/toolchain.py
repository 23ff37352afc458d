"""Finds the headers and the library of TensorFlow, which its wheel contains."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

from opgate.ops_build.building.toolchain import Cuda, LeftOut, Library, Log, Toolchain

HEADER = "tensorflow/core/framework/op_kernel.h"
LIBRARY = "libtensorflow_framework.so.2"


def find(cache: Path, cuda: Cuda | None, log: Log) -> Toolchain:
    """Returns what the build needs. Raises LeftOut."""
    root = find_tensorflow()
    # TensorFlow's C++ API changes from version to version, and loading a library of another one may end the process.
    details = {"engine_versions": f"=={version_of(root)}.*"}
    definitions = {
        "OPGATE_TENSORFLOW_INCLUDE": str(root / "include"),
        "OPGATE_TENSORFLOW_VERSION": version_of(root),
        "OPGATE_TENSORFLOW_LIBRARY": str(root / LIBRARY),
        # What tf.sysconfig.get_compile_flags() tells beside the language. Asking it would take seconds.
        "OPGATE_TENSORFLOW_FLAGS": "-D_GLIBCXX_USE_CXX11_ABI=1;-DEIGEN_MAX_ALIGN_BYTES=64",
    }
    library = Library("tensorflow", ("cpu",), has_table=False, details=details)
    return Toolchain(f"{root / 'include'} (TensorFlow {version_of(root)})", definitions, (library,))


def find_tensorflow() -> Path:
    """Returns the folder of a TensorFlow: the one that OPGATE_TENSORFLOW names, or else the one that this Python would
    import. Raises LeftOut."""
    if named := os.environ.get("OPGATE_TENSORFLOW"):
        return _complete(Path(named), f"OPGATE_TENSORFLOW is {named}")
    spec = importlib.util.find_spec("tensorflow")  # importing it would take seconds
    if spec is None or not spec.submodule_search_locations:
        raise LeftOut("tensorflow is not installed: pip install 'opgate[tensorflow]'")
    root = Path(spec.submodule_search_locations[0])
    return _complete(root, f"tensorflow is in {root}")


def _complete(root: Path, origin: str) -> Path:
    for file in (Path("include") / HEADER, Path(LIBRARY)):
        if not (root / file).is_file():
            raise LeftOut(f"{origin}: no {file} there")
    return root


def version_of(root: Path) -> str:
    """Returns the version of an installed TensorFlow, such as "2.21", or "" if nothing beside it says so."""
    names = (folder.name for folder in root.parent.glob("tensorflow*-*.dist-info"))
    return next((found[1] for name in names if (found := re.match(r"tensorflow(?:_cpu)?-(\d+\.\d+)", name))), "")
