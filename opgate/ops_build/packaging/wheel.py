"""Makes a wheel that serves without a compiler. The build hook (service/native/build_hook.py) calls it.

The wheel gets the op library for ONNX Runtime on the CPU, one without ops for those in Python, ONNX Runtime's header
for `opgate build`, and, by auditwheel, the libraries that all of these are linked with, so that it runs on any Linux
with the C library of its manylinux tag.
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
from opgate.ops_build.building.options import BuildError, BuildOptions
from opgate.ops_build.building.toolchain import Log, toolchain_folder

#: The folders in the wheel, see opgate/folders.py.
OPS, HEADERS = "opgate/lib", "opgate/include/onnxruntime"
#: Debian's packages whose headers alone are compiled into the libraries.
_HEADERS_ONLY = ("nlohmann-json3-dev",)
#: The time of all files in the wheel, in seconds, as hatchling has it. SOURCE_DATE_EPOCH states another one.
_TIME = "1580601600"


def platform_tag() -> str:
    """Returns the manylinux tag of this machine, that of its C library. Raises BuildError without glibc."""
    name, version = platform.libc_ver()
    if name != "glibc":
        raise BuildError(f"a wheel needs a Linux with glibc, got {name or platform.system()}")
    return f"manylinux_{version.replace('.', '_')}_{platform.machine()}"


def wheel_tag() -> str:
    """Returns the tag of the wheel: the native modules have the limited API of Python 3.11."""
    return f"cp311-abi3-{platform_tag()}"


def contents(work: Path, log: Log) -> dict[str, str]:
    """Compiles the op library in the folder `work`. Returns the files that the wheel gets with their paths in it.

    Raises BuildError.
    """
    options = BuildOptions(output=work, engines=("onnxruntime",), cuda="")
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
            _list_hashes(root / OPS)
            _list_headers(root)
            if missing := _add_licenses(root):
                log(f"don't pass the wheel on: it has no license of {', '.join(missing)}, which Debian's packages have")


def _list_hashes(folder: Path) -> None:
    """Writes the hashes of the libraries into the manifest. auditwheel has changed where they look for others."""
    path = folder / MANIFEST
    manifest = json.loads(path.read_text())
    for entry in manifest["libraries"]:
        entry["sha256"] = sha256(folder / entry["file"])
    path.write_text(json.dumps(manifest, indent=2) + "\n")


def _list_headers(root: Path) -> None:
    """Lists the packages whose headers are compiled in. auditwheel has listed the libraries that it has brought."""
    components = []
    for package in _HEADERS_ONLY:
        version = subprocess.run(
            ["dpkg-query", "-W", "-f", "${Version}", package], capture_output=True, text=True
        ).stdout
        purl = f"pkg:deb/debian/{package}@{version}"
        components.append({"type": "library", "bom-ref": purl, "name": package, "version": version, "purl": purl})
    folder = next(root.glob("*.dist-info")) / "sboms"
    folder.mkdir(exist_ok=True)
    document = {"bomFormat": "CycloneDX", "specVersion": "1.4", "version": 1, "components": components}
    (folder / "headers.cdx.json").write_text(json.dumps(document, indent=2) + "\n")


def _add_licenses(root: Path) -> list[str]:
    """Copies the licenses of the libraries that auditwheel has brought, and of headers that are compiled in, from
    Debian's packages. Returns the libraries whose license wasn't found."""
    target = next(root.glob("*.dist-info")) / "licenses"
    target.mkdir(exist_ok=True)
    packages = dict.fromkeys(_HEADERS_ONLY, "")
    for library in sorted((root / "opgate.libs").glob("*.so*")):
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
