"""Installs the Python packages that the tests need, and the engines whose ops they test, into its own environment.

An engine that can't be installed on this machine is left out with a line that says so, and the file .left-out in the
environment names it. uv installs the packages, in a third of the time that pip takes. Where it can't, pip does.

Usage: VENV/bin/python deploy/test_packages.py EXTRAS ENGINES
"""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

#: The variables of uv for settings of pip.
OF_PIP = {
    "cert": "SSL_CERT_FILE",
    "constraint": "UV_CONSTRAINT",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "index-url": "UV_DEFAULT_INDEX",
    "no-index": "UV_NO_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
}
#: pip takes the best version that any index has.
LIKE_PIP = {"UV_INDEX_STRATEGY": "unsafe-best-match", "UV_SYSTEM_CERTS": "1"}
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
INSTALL = (*PIP, "install", "--quiet")


@cache
def settings_of_pip() -> dict[str, str]:
    """Returns the variables that give uv the settings of pip: those of its files and of the environment."""
    listed = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True).stdout
    found: dict[str, str] = {}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        if variable := OF_PIP.get(name.rpartition(".")[2]):
            separator = "," if variable == "UV_FIND_LINKS" else " "
            # The settings of the environment are listed before those of files, and go before them.
            found.setdefault(variable, separator.join(str(ast.literal_eval(value)).split()))
    more = found.get("UV_INDEX", "").split()
    if more and (main := found.get("UV_DEFAULT_INDEX") or index_of_pip()):
        # uv asks its default index last. pip's comes first: its files of a version are complete, those of a mirror with
        # a few packages may lack the one for this processor.
        found["UV_INDEX"] = " ".join([main, *more[:-1]])
        found["UV_DEFAULT_INDEX"] = more[-1]
    return found


def index_of_pip() -> str:
    """Returns the index that pip asks where no setting names one, "" if pip doesn't say."""
    code = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip()


def uv() -> tuple[str, ...]:
    """Returns the command of uv, which is installed first. It is empty where that fails."""
    if not importlib.util.find_spec("uv"):
        subprocess.run([*INSTALL, "uv>=0.13"], capture_output=True)
    return (sys.executable, "-m", "uv", "pip", "install", "--quiet") if importlib.util.find_spec("uv") else ()


def install(tool: tuple[str, ...], *packages: str, quiet: bool = True) -> bool:
    """Installs packages. Returns whether that went well. What the tool says is shown unless it is quiet."""
    environment = LIKE_PIP | settings_of_pip() | os.environ
    finished = subprocess.run([*tool, *packages], env=environment, capture_output=quiet)
    return finished.returncode == 0


def install_torch(tools: list[tuple[str, ...]]) -> None:
    """Installs the CPU build of PyTorch. Its default build brings gigabytes of CUDA's libraries."""
    version = "torch==2.13.0"
    ways = [[f"{version}+cpu"]] + [["--torch-backend", "cpu", version]] * (len(tools) > 1)
    if not any(install(tools[0], *way) for way in ways):
        print(
            "no index has a CPU build of PyTorch, so its default build comes, with 3 GB of CUDA's libraries. "
            "PIP_EXTRA_INDEX_URL names an index with CPU builds."
        )


def main(extras: str, engines: list[str]) -> int:
    """Installs the extras, and those of the engines that can be had. Returns the exit status."""
    # Python compiles a file when it first imports it. The tests import few of the files that pip would compile.
    tools = [tool for tool in (uv(), (*INSTALL, "--no-compile")) if tool]
    if "torch" in engines and not importlib.util.find_spec("torch"):
        install_torch(tools)
    left_out = Path(sys.prefix, ".left-out")
    left_out.write_text("")
    for tool in tools:
        if install(tool, "--editable", f".[{','.join([extras, *engines])}]"):
            return 0
    if not install(tools[-1], "--editable", f".[{extras}]", quiet=False):
        return 1
    for engine in engines:
        if not install(tools[-1], "--editable", f".[{extras},{engine}]", quiet=False):
            print(f"the extra {engine} can't be installed here: its tests are skipped")
            with left_out.open("a") as file:
                file.write(f"{engine}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2].split()))
