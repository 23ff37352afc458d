"""`make release`: everything that a release gives away, in dist/, each part tried in a fresh environment.

    python deploy/release.py [--output dist] [--arm64]

It writes the archive of the sources, the wheel for this machine, which pip makes of that archive in an environment of
its own, the context from which the images are built, the notes out of CHANGELOG.md, and the SHA-256 of each. With
--arm64 it runs deploy/arm64.sh first, which makes the wheel for ARM. The same sources give the same bytes.
"""

from __future__ import annotations

import argparse
import fnmatch
import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: The minor versions of Python after the first that the wheel is for. Those that are there are tried.
LATER = range(12, 15)
#: The time of all files, in seconds: that of the last commit.
EPOCH = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="an empty folder, or none")
    parser.add_argument("--arm64", action="store_true", help="make the wheel for 64-bit ARM too, see deploy/arm64.sh")
    options = parser.parse_args()
    version = str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])
    if changed := git("status", "--porcelain"):
        sys.exit(f"expected a checkout without changes, got\n{changed}")
    if options.output.exists() and any(options.output.iterdir()):
        sys.exit(f"expected an empty folder, or none, got {options.output}")
    options.output.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": EPOCH}
    say("notes")
    (options.output / f"opgate-{version}.md").write_text(notes((ROOT / "CHANGELOG.md").read_text(), version))
    if options.arm64:
        say("the wheel for ARM")
        subprocess.run([ROOT / "deploy" / "arm64.sh"], check=True, env={**environment, "DIST": str(options.output)})
    say("the archive of the sources")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(options.output)]
    subprocess.run(command, cwd=ROOT, check=True, env=environment)
    sources = options.output / f"opgate-{version}.tar.gz"
    check_sources(sources)
    say("the wheel, of that archive: minutes")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(options.output)]
    toolchain = os.environ.get("OPGATE_TOOLCHAIN", str(ROOT / "build" / "toolchain"))
    subprocess.run([*command, str(sources)], check=True, env={**environment, "OPGATE_TOOLCHAIN": toolchain})
    say("the context of the images")
    images = options.output / f"opgate-{version}-images.tar.gz"
    context(images)
    check_context(images)
    (wheel,) = options.output.glob(f"opgate-{version}-*_{os.uname().machine}.whl")
    for python in [sys.executable, *(f"python3.{minor}" for minor in LATER if runs(f"python3.{minor}"))]:
        say(f"{wheel.name} in a fresh environment of {python}")
        check_wheel(wheel, version, python)
    files = sorted(path for path in options.output.iterdir() if path.is_file())
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (options.output / "SHA256SUMS").write_text("".join(sums))
    print("".join(f"{path.stat().st_size:>12,}  {path.name}\n" for path in files), end="")
    return 0


def say(what: str) -> None:
    print(f"-- {what}", flush=True)


def runs(python: str) -> bool:
    """Returns whether there is this Python, with what makes environments. A shim of pyenv may be there without one."""
    command = [python, "-c", "import ensurepip, venv"]
    return shutil.which(python) is not None and subprocess.run(command, capture_output=True).returncode == 0


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def notes(changelog: str, version: str) -> str:
    """Returns what the changelog says of a version, or of what is not released yet. Raises ValueError if it says
    nothing."""
    for title in (version, "Unreleased"):
        found = re.search(rf"^## \[?{re.escape(title)}\]?[^\n]*\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
        if found and found[1].strip():
            return f"# opgate {version}\n\n{found[1].strip()}\n"
    raise ValueError(f"CHANGELOG.md says nothing of {version}")


def context(target: Path) -> None:
    """Writes an archive of the tracked files, from which `docker compose build` makes the images."""
    with target.open("wb") as file, gzip.GzipFile(fileobj=file, mode="wb", mtime=int(EPOCH), filename="") as packed:
        packed.write(subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout)


def check_context(archive: Path) -> None:
    """Looks whether the context of the images has what the Dockerfiles copy into them."""
    with tarfile.open(archive) as packed:
        names = packed.getnames()
        files = [name for name in names if name.endswith("Dockerfile")]
        texts = {name: packed.extractfile(name).read().decode() for name in files}  # type: ignore[union-attr]
    for name, text in texts.items():
        for line in re.findall(r"^COPY (?!--from)(.*)", text.replace("\\\n", " "), re.MULTILINE):
            *copied, _ = (word for word in line.split() if not word.startswith("--"))
            for pattern in copied:
                if not fnmatch.filter(names, pattern.rstrip("/")):
                    raise SystemExit(f"{archive.name} lacks {pattern}, which {name} copies")
    if not texts:
        raise SystemExit(f"{archive.name} has no Dockerfile")


def check_wheel(wheel: Path, version: str, python: str) -> None:
    """Installs a wheel where there is nothing else, and runs an op of it."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python, "-m", "venv", folder], check=True)
        installed = Path(folder) / "bin" / "python"
        subprocess.run([installed, "-m", "pip", "install", "--quiet", f"{wheel}[cpu]"], check=True)
        clean = {"PATH": str(installed.parent), "HOME": folder}
        for arguments, expected in ((["--version"], version), (["verify", "MyAdd"], " 0 failed")):
            command = [str(installed), "-m", "opgate", *arguments]
            done = subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True)
            if done.returncode or expected not in done.stdout:
                raise SystemExit(f"opgate {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")


def check_sources(archive: Path) -> None:
    """Holds the archive of the sources to the files that git tracks."""
    listed = subprocess.run(["tar", "-tzf", archive], capture_output=True, text=True, check=True).stdout.split()
    names = {name.partition("/")[2] for name in listed}
    missing = [name for name in git("ls-files", "opgate").split() if name not in names]
    if missing:
        raise SystemExit(f"{archive.name} lacks {', '.join(missing[:5])}")


if __name__ == "__main__":
    sys.exit(main())
