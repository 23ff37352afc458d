"""Makes a wheel that serves without a compiler. The build hook (service/native/build_hook.py) calls it.

The wheel gets the op library for ONNX Runtime on the CPU, one without ops for those in Python, ONNX Runtime's header
for `opgate build`, and, by auditwheel, the libraries that all of these are linked with, so that it runs on any Linux
with the C library of its manylinux tag. That is an older one than this machine's, see old_glibc.py.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from opgate.ops_build.adapters.onnxruntime.toolchain import find_onnxruntime_headers
from opgate.ops_build.building.build import build, build_without_ops
from opgate.ops_build.building.manifest import MANIFEST, sha256
from opgate.ops_build.building.old_glibc import HELPER, OLDEST, SOURCE, compile_helper, glibc, lower, patchelf
from opgate.ops_build.building.options import BuildError, BuildOptions
from opgate.ops_build.building.toolchain import Log, toolchain_folder

#: The folders in the wheel, see opgate/folders.py.
OPS, HEADERS = "opgate/lib", "opgate/include/onnxruntime"
#: The newest C library with which a wheel for the oldest was made. A newer one gives a tag of its own.
_NEWEST = (2, 36)
#: The time of all files in the wheel, in seconds, as hatchling has it. SOURCE_DATE_EPOCH states another one.
_TIME = "1580601600"


def platform_tag(version: tuple[int, ...] | None = None, machine: str = "") -> str:
    """Returns the manylinux tag of a C library and an architecture, this machine's by default."""
    return f"manylinux_{'_'.join(map(str, version or glibc()))}_{machine or platform.machine()}"


def wheel_tag() -> str:
    """Returns the tag of the wheel: the native modules have the limited API of Python 3.11."""
    return f"cp311-abi3-{platform_tag(OLDEST if _is_portable() else None)}"


def _is_portable() -> bool:
    """Returns whether this machine makes a wheel for older C libraries than its own."""
    return OLDEST < glibc() <= _NEWEST


def link_flags() -> tuple[str, ...]:
    """Returns the flags with which the native modules have the compiler's own libraries inside."""
    inside = ("-static-libstdc++", "-Wl,--exclude-libs,ALL", "-Wl,--gc-sections", str(SOURCE))
    return inside if _is_portable() else ()


def contents(work: Path, log: Log) -> dict[str, str]:
    """Compiles the op library in the folder `work`. Returns the files that the wheel gets with their paths in it.

    Raises BuildError.
    """
    options = BuildOptions(output=work, engines=("onnxruntime",), cuda="", portable=_is_portable())
    build(options, log)
    files = {str(options.target()): f"{OPS}/{options.target().name}", str(work / MANIFEST): f"{OPS}/{MANIFEST}"}
    plain = build_without_ops(options, work / "without_ops", log)
    files[str(plain)] = f"{OPS}/{plain.name}"
    headers = find_onnxruntime_headers(toolchain_folder(), log).include
    # Their license asks for its text beside them.
    debian = [folder / "share" / "doc" / "libonnxruntime-dev" / "copyright" for folder in headers.parents]
    terms = [*debian, headers / "LICENSE"]
    text = next((path for path in terms if path.is_file()), None)
    if text is None:
        log(f"the wheel has no header of ONNX Runtime, because its license is not beside {headers}")
        return files
    files[str(text)] = f"{HEADERS}/LICENSE"
    return files | {str(header): f"{HEADERS}/{header.name}" for header in sorted(headers.glob("*.h"))}


def repair(wheel: Path, log: Log) -> None:
    """Brings the libraries that a wheel's code is linked with into it, with their licenses, and lists what others have
    made of it (CycloneDX, where PEP 770 says). The same sources give the same bytes. Raises BuildError."""
    from auditwheel.wheeltools import InWheelCtx

    os.environ.setdefault("SOURCE_DATE_EPOCH", _TIME)  # auditwheel reads it
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "auditwheel", "repair", "--plat", platform_tag(), "--only-plat"]
        finished = subprocess.run([*command, "--wheel-dir", folder, str(wheel)], capture_output=True, text=True)
        if finished.returncode:
            raise BuildError(f"auditwheel could not repair {wheel.name}:\n{finished.stdout}{finished.stderr}")
        with InWheelCtx(next(Path(folder).glob("*.whl")), wheel) as context:  # writes RECORD anew at its end
            root = Path(context.path)
            if _is_portable():
                _lower(root, Path(folder))
            _list_hashes(root / OPS)
            _list_compiled_in(root)
            if missing := _add_licenses(root):
                log(f"don't pass the wheel on: it has no license of {', '.join(missing)}, which Debian's packages have")
    _check(wheel)


def _lower(root: Path, work: Path) -> None:
    """Makes the libraries in a wheel run with the C library of its tag."""
    libraries = root / "opgate.libs"
    helper = compile_helper(work)
    needing = [library for library in sorted(root.rglob("*.so*")) if lower(library)]
    if needing:
        shutil.copyfile(helper, libraries / helper.name)
    for library in needing:
        path = f"$ORIGIN/{os.path.relpath(libraries, library.parent)}"
        patchelf("--force-rpath", "--set-rpath", path, str(library))
    (stated,) = root.glob("*.dist-info/WHEEL")
    stated.write_text(re.sub("(?m)^Tag: .*", f"Tag: {wheel_tag()}", stated.read_text()))


def _check(wheel: Path) -> None:
    """Raises BuildError if auditwheel finds that a wheel needs a newer C library than its name says."""
    command = [sys.executable, "-m", "auditwheel", "show", "--json", str(wheel)]
    shown = subprocess.run(command, capture_output=True, text=True)
    tag = json.loads(shown.stdout)["overall_tag"] if shown.returncode == 0 else ""
    found = re.search(r"manylinux_2_(\d+)_", tag)
    stated = re.search(r"manylinux_2_(\d+)_", wheel.name)
    if not found or not stated or int(found[1]) > int(stated[1]):
        raise BuildError(
            f"auditwheel does not find {wheel.name} to be what its name says:\n{shown.stdout}{shown.stderr}"
        )


def _list_hashes(folder: Path) -> None:
    """Writes the hashes of the libraries into the manifest. auditwheel has changed where they look for others."""
    path = folder / MANIFEST
    manifest = json.loads(path.read_text())
    for entry in manifest["libraries"]:
        entry["sha256"] = sha256(folder / entry["file"])
    path.write_text(json.dumps(manifest, indent=2) + "\n")


def _list_compiled_in(root: Path) -> None:
    """Lists the packages that are compiled in. auditwheel has listed the libraries that it has brought."""
    components = []
    for package in _compiled_in():
        version = subprocess.run(
            ["dpkg-query", "-W", "-f", "${Version}", package], capture_output=True, text=True
        ).stdout
        purl = f"pkg:deb/debian/{package}@{version}"
        components.append({"type": "library", "bom-ref": purl, "name": package, "version": version, "purl": purl})
    folder = next(root.glob("*.dist-info")) / "sboms"
    folder.mkdir(exist_ok=True)
    document = {"bomFormat": "CycloneDX", "specVersion": "1.4", "version": 1, "components": components}
    (folder / "compiled-in.cdx.json").write_text(json.dumps(document, indent=2) + "\n")


def _compiled_in() -> list[str]:
    """Returns Debian's packages whose headers, or static libraries, are compiled into the libraries."""
    gcc = subprocess.run(["gcc", "-dumpversion"], capture_output=True, text=True).stdout.partition(".")[0].strip()
    return ["nlohmann-json3-dev", *([f"libstdc++-{gcc}-dev"] if _is_portable() else [])]


def _add_licenses(root: Path) -> list[str]:
    """Copies the licenses of the libraries that auditwheel has brought, and of what is compiled in, from Debian's
    packages. Returns the libraries whose license wasn't found."""
    target = next(root.glob("*.dist-info")) / "licenses"
    target.mkdir(exist_ok=True)
    packages = dict.fromkeys(_compiled_in(), "")
    for library in sorted(path for path in (root / "opgate.libs").glob("*.so*") if path.name != HELPER):
        name = re.sub(r"-[0-9a-f]{8}(?=\.so)", "", library.name)
        packages[_package_of(name) or name] = name
    missing = []
    for package, name in packages.items():
        text = Path("/usr/share/doc") / package / "copyright"
        if text.is_file():
            shutil.copyfile(text, target / f"{package}.txt")
        else:
            missing.append(name or package)
    return missing


def _package_of(file: str) -> str:
    """Returns Debian's package that has a library for this machine, "" if there is none."""
    if not shutil.which("dpkg"):
        return ""
    lines = subprocess.run(["dpkg", "-S", f"*/{file}"], capture_output=True, text=True).stdout.splitlines()
    # A cross compiler's package has libraries of these names for other machines.
    own = [line for line in lines if f"/lib/{platform.machine()}-linux-gnu/" in line]
    return (own or lines or [""])[0].partition(":")[0]
