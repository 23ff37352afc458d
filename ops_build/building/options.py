"""What to compile, and where it goes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ops_build.op_folder import op_folders

SOURCE = Path(__file__).parents[1]
PROJECT = SOURCE.parent
DEFAULT_OUTPUT = PROJECT / "build" / "ops"
#: The engines there are adapters for, in the order of reports.
ENGINES: tuple[str, ...] = ("onnxruntime", "torch", "tensorrt")


class BuildError(RuntimeError):
    """The build can't go on; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """What to compile. `ops` are folders whose subfolders are ops; the libraries are called lib<prefix>_<engine>.so.
    `engines` are the adapters; one without a toolchain is left out. `cuda` is a list of CUDA architectures as CMake
    writes them, "auto" for what find_cuda takes, "" for no CUDA. With `strict` a compiler's warning is an error;
    with `cuda_ops_only` ops without a CUDA kernel, and the libraries that only they need, are left out."""

    output: Path = DEFAULT_OUTPUT
    ops: tuple[Path, ...] = (SOURCE / "ops",)
    domain: str = "opgate"
    prefix: str = "opgate"
    arch: str = "-march=x86-64-v3"
    sanitize: str = ""
    build_type: str = "Release"
    source: Path = SOURCE
    engines: tuple[str, ...] = ENGINES
    cuda: str = "auto"
    strict: bool = False
    cuda_ops_only: bool = False

    def library(self, name: str = "onnxruntime") -> Path:
        """A library that the build writes: "onnxruntime" is for ONNX Runtime on the CPU."""
        return self.output / f"lib{self.prefix}_{name}.so"


def out_of_tree(folder: Path, output: Path | None = None, domain: str | None = None) -> BuildOptions:
    """Options for a user's own ops: `folder` holds op folders, the domain is the folder's name unless said."""
    folder = folder.resolve()
    if not folder.is_dir():
        raise BuildError(f"{folder} is no folder")
    if not any(source.suffix == ".cpp" for op in op_folders(folder) for source in op.sources):
        raise BuildError(f"{folder} holds no op: expected {folder.name}/<op>/<op>.cpp")
    name = domain or re.sub(r"\W+", "_", folder.name).strip("_").lower()
    if name == "opgate":
        raise BuildError(
            "the domain 'opgate' is taken: a session can't load two libraries of one domain. Name another with --domain"
        )
    return BuildOptions(output=output or folder / "build", ops=(folder,), domain=name, prefix=name)
