"""The targets in C++: what they are made of, and how they are compiled and run.

`make fuzz` compiles them with clang++ and libFuzzer. The tests compile them with g++ and -DFUZZ_MAIN, and replay the
corpus.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests import PROJECT

SERVICE, OPS = PROJECT / "service", PROJECT / "ops_build"
TESTS = Path(__file__).parent
SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
#: Clang 14 has no _Float16, which the kernels need.
OLDEST_CLANG = 15
INSTALL = "apt-get install -y --no-install-recommends clang-16 libclang-rt-16-dev"


@dataclass(frozen=True)
class Native:
    """A target: its source and those that it fuzzes, where headers are, libraries, and the inputs to begin with."""

    source: Path
    sources: tuple[Path, ...]
    include: Path
    corpus: Path
    libraries: tuple[str, ...] = ()


def _files() -> tuple[Path, ...]:
    """Returns the sources of the ops that read files, and the core that calls them."""
    folders = [
        OPS / "ops" / name
        for name in ("audio_preprocess", "decode_audio", "decode_image", "decode_points", "image_preprocess")
    ]
    codecs = [
        path
        for room in ("audio", "images")
        for path in sorted((OPS / room / "codecs").glob("*.cpp"))
        if "encoder" not in path.name
    ]
    kernels = [path for folder in folders for path in sorted(folder.glob("*.cpp"))]
    core = [OPS / "op_call" / f"{name}.cpp" for name in ("configured", "sources", "table")]
    return (*core, OPS / "images" / "resampling.cpp", *codecs, *kernels)


def _of(name: str, include: Path, sources: Sequence[Path], libraries: tuple[str, ...] = ()) -> Native:
    return Native(TESTS / "native" / f"fuzz_{name}.cpp", tuple(sources), include, TESTS / "corpus" / name, libraries)


_PARSER = [OPS / "signature" / f"{name}.cpp" for name in ("lexer", "names", "parser", "signature_text")]
TARGETS = {
    "connection": Native(
        PROJECT / "tests" / "rpc" / "fuzz" / "fuzz_connection.cpp",
        (SERVICE / "rpc" / "connection.cpp", SERVICE / "rpc" / "header_filter.cpp"),
        SERVICE / "rpc",
        PROJECT / "tests" / "rpc" / "fuzz" / "corpus",
        ("-lnghttp2",),
    ),
    "json_tensors": _of("json_tensors", SERVICE / "native", [SERVICE / "native" / "json_tensors.cpp"]),
    "protobuf": _of("protobuf", SERVICE / "native", [SERVICE / "native" / "protobuf_fields.cpp"]),
    "signature": _of("signature", OPS, _PARSER),
    "files": _of(
        "files", OPS, _files(), ("-ljpeg", "-lpng", "-ldeflate", "-lwebp", "-lsndfile", "-lmpg123", "-logg", "-lsoxr")
    ),
}


def clang() -> str:
    """Returns the name of a clang++ that is new enough. Raises FileNotFoundError that says what to install."""
    names = [
        os.environ.get("CLANGXX", "clang++"),
        *(f"clang++-{version}" for version in range(22, OLDEST_CLANG - 1, -1)),
    ]
    for name in filter(shutil.which, names):
        version = subprocess.run([name, "-dumpversion"], capture_output=True, text=True).stdout
        if int(version.partition(".")[0]) >= OLDEST_CLANG:
            return name
    raise FileNotFoundError(f"the native targets need clang++ {OLDEST_CLANG} or later: {INSTALL}")


def compiled(target: Native, compiler: str, flags: Sequence[str], program: Path, link: Sequence[str] = ()) -> Path:
    """Compiles a target to a program, each source that is newer than its object file. A header that has changed is not
    noticed, so remove the folder then. `link` has flags for linking only."""
    objects = program.parent / f"{program.name}.o"
    objects.mkdir(parents=True, exist_ok=True)
    made = []
    for source in (target.source, *target.sources):
        made.append(objects / f"{source.parent.name}_{source.stem}.o")
        if made[-1].exists() and made[-1].stat().st_mtime > source.stat().st_mtime:
            continue
        command = [compiler, "-std=c++20", *flags, '-DOPGATE_DOMAIN="opgate"', f"-I{target.include}", "-c"]
        subprocess.run([*command, str(source), "-o", str(made[-1])], check=True, timeout=600)
    command = [compiler, *flags, *link, *map(str, made), *target.libraries, "-o", str(program)]
    subprocess.run(command, check=True, timeout=600)
    return program


def fuzz(name: str, seconds: int, output: Path) -> bool:
    """Looks for inputs that break a rule. Returns whether there was none.

    Inputs that reach something new are kept in <output>/found/<target>, and a later run begins with them. One that breaks
    a rule or takes long is written to <output>/<target>-crash-* or -timeout-*.
    """
    target = TARGETS[name]
    flags = ["-O1", "-g", "-fsanitize=fuzzer-no-link", *SANITIZE]
    program = compiled(target, clang(), flags, output / name, ["-fsanitize=fuzzer"])
    found = output / "found" / name
    found.mkdir(parents=True, exist_ok=True)
    options = [f"-max_total_time={seconds}", "-timeout=20", "-rss_limit_mb=4096", "-entropic_scale_per_exec_time=1"]
    options += ["-print_final_stats=1", f"-artifact_prefix={output}/{name}-"]
    command = [str(program), *options, str(found), str(target.corpus)]
    return subprocess.run(command).returncode == 0
