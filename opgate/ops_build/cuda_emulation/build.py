"""Compiles the CUDA kernels of the ops for the CPU, against the stand-ins for CUDA's headers in include/."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Collection
from pathlib import Path

from opgate.ops_build.building.build import compile_configured, write_sources
from opgate.ops_build.building.options import ROOMS, SOURCE, BuildError
from opgate.ops_build.building.toolchain import Log, compiler_environment
from opgate.ops_build.op_folder import op_folders

HERE = Path(__file__).parent
#: The files of ops_build that the kernels are or include.
PARTS = (
    *(f"{room}/*.{suffix}" for room in ROOMS for suffix in ("h", "cuh")),
    *(f"ops/*/*.{suffix}" for suffix in ("h", "cuh", "inc", "cu")),
)


def rewritten(source: str) -> str:
    """Returns the source with each launch f<T><<<grid, block>>>(a, b) turned into a call of emulation::launch. Raises
    ValueError."""
    while (opening := source.find("<<<")) >= 0:
        name_end = len(source[:opening].rstrip())  # the formatter may break the line here
        begin, end = _kernel_name(source, name_end), source.index(">>>(", opening)
        name, configuration = source[begin:name_end], source[opening + 3 : end]
        call = (
            f"::emulation::launch(::emulation::configuration({configuration}), "
            f"[](auto... arguments) {{ {name}(arguments...); }}, "
        )
        source = source[:begin] + call + source[end + 4 :]
    return source


def _kernel_name(source: str, end: int) -> int:
    """Returns where the kernel's name that ends at `end` begins. The name includes its template arguments."""
    begin = end
    if source[begin - 1] == ">":
        depth = 0
        while True:
            begin -= 1
            depth += {">": 1, "<": -1}.get(source[begin], 0)
            if depth == 0:
                break
    name = re.search(r"[\w:]+$", source[:begin])
    if name is None:
        line = source.count("\n", 0, end) + 1
        text = source[:end].splitlines()[-1].strip()
        raise ValueError(f"line {line}: expected a launch kernel<<<...>>>(...) of a kernel by its name, got {text}<<<")
    return name.start()


def copy(target: Path, source: Path, ops: Path, kernels: Collection[str] = ()) -> None:
    """Writes the rewritten sources to `target` and deletes all other files there. With `kernels` it leaves out the
    kernels of all other ops."""
    texts = {}
    for pattern in PARTS:
        root, inside = (ops, pattern.removeprefix("ops/")) if pattern.startswith("ops/") else (source, pattern)
        for file in root.glob(inside):
            if kernels and file.suffix == ".cu" and file.parent.name not in kernels:
                continue
            relative = ("ops" if root == ops else "") / file.relative_to(root)
            try:
                text = rewritten(file.read_text())
            except ValueError as error:
                raise BuildError(f"{file}: {error}") from None
            text = f'#line 1 "{root.name}/{file.relative_to(root)}"\n{text}'  # messages name the source
            if file.suffix == ".cu":
                relative = relative.with_suffix(".cu.cpp")
                text = f"#include <cuda_runtime.h>\n{text}"  # as nvcc does
            texts[target / relative] = text
    for folder in op_folders(ops):
        op = folder.path.name
        if kernels and op not in kernels:
            continue
        for name, text in folder.generated_sources(Path("ops", op)).items():
            if name.endswith(".cu"):
                texts[target / "ops" / op / f"{name}.cpp"] = f"#include <cuda_runtime.h>\n{text}"
            elif name.endswith(".h"):
                texts[target / "ops" / op / name] = text
    write_sources(target, texts)


def build(
    folder: Path,
    source: Path = SOURCE,
    *,
    ops: Path | None = None,
    domain: str = "opgate",
    tensorrt: Path | str = "",
    onnxruntime: tuple[Path, Path] | None = None,
    tvm: Path | str = "",
    batch: int = 1,
    kernels: Collection[str] = (),
    log: Log = lambda line: None,
) -> Path:
    """Builds the program that runs the kernels of `ops` in `folder`, and returns its path.

    `source` is the folder ops_build, or a copy with other kernels. `ops` is a folder of ops, by default that of
    `source`. `tensorrt` is the folder of TensorRT's headers: with it the program has the plugins too. `onnxruntime` is
    the folder of ONNX Runtime's header and a source that plays ONNX Runtime: with it the program has that adapter.
    `tvm` is a source that plays TVM-FFI: with it the program has its functions. `batch` kernels are compiled together.
    With `kernels` the program has the kernels of these ops only. `log` gets the lines of the build tool. Raises
    BuildError with the compiler's messages if the build fails.
    """
    if not shutil.which("cmake"):
        raise BuildError("cmake is not installed. On Debian or Ubuntu: apt-get install cmake")
    copy(folder / "kernels", source, ops or source / "ops", kernels)
    include, host = onnxruntime or ("", "")
    configure = [
        "cmake",
        "-S",
        str(HERE),
        "-B",
        str(folder / "cmake"),
        f"-DKERNELS={folder / 'kernels'}",
        f"-DDOMAIN={domain}",
        f"-DTENSORRT_INCLUDE={tensorrt}",
        f"-DONNXRUNTIME_INCLUDE={include}",
        f"-DONNXRUNTIME_HOST={host}",
        f"-DTVM_HOST={tvm}",
        f"-DBATCH={batch}",
        *(["-G", "Ninja"] if shutil.which("ninja") else []),
    ]
    environment = compiler_environment(folder / "cmake")
    finished = subprocess.run(configure, capture_output=True, text=True, env=environment)
    if finished.returncode:
        raise BuildError(f"cmake could not configure the emulation:\n{finished.stdout}{finished.stderr}")
    compile_configured(folder / "cmake", lambda line: log(line) if line.startswith("[") else None)
    return folder / "cmake" / "opgate_runner"
