"""From `opgate new --python` to the first answer that is served: seconds of each command of docs/from-an-idea.md.

    python benchmarks/first_op.py --library LIBRARY [--against CHECKOUT] [--output FILE]

Each row is measured in a copy of the checkout that has built nothing but opgate's own library for ONNX Runtime, which a
wheel brings, and without a compiler's cache. "next folder" is another folder of ops in the same copy. --against
measures another checkout too. The seconds of the processor are those of all processes of a command.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "from-an-idea.md").read_text()
FILES = dict(re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE, re.DOTALL))
OP = "my_ops/squash/op.py"
KINDS = {"formula": FILES[OP], "NumPy": FILES[OP].replace("squash.formula()\n", "")}
PORT = 18652
STEPS = ("new", "build", "verify", "make the model", "serve until the answer")


@dataclass(frozen=True)
class Took:
    """Seconds of the clock, and of the processor."""

    clock: float
    processor: float

    def __add__(self, other: Took) -> Took:
        return Took(self.clock + other.clock, self.processor + other.processor)


def copied(checkout: Path, library: Path, target: Path) -> Path:
    """Copies the package of a checkout and an op library."""
    shutil.copytree(checkout / "opgate", target / "opgate", ignore=shutil.ignore_patterns("__pycache__"))
    (target / "service").symlink_to("opgate/service")
    (target / "build" / "ops").mkdir(parents=True)
    shutil.copy(library, target / "build" / "ops" / "libopgate_onnxruntime.so")
    shutil.copy(library.with_name("manifest.json"), target / "build" / "ops")
    return target


def environment_of(package: Path) -> dict[str, str]:
    toolchain = os.environ.get("OPGATE_TOOLCHAIN", str(ROOT / "build" / "toolchain"))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {
        **os.environ,
        "PYTHONPATH": str(package),
        "PATH": path,
        "OPGATE_TOOLCHAIN": toolchain,
        "CCACHE_DISABLE": "1",
    }


def used() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


def run(command: list[str], folder: Path, environment: Mapping[str, str]) -> Took:
    began, before = time.monotonic(), used()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}:\n{done.stdout}{done.stderr}")
    return Took(time.monotonic() - began, used() - before)


def served(folder: Path, environment: Mapping[str, str]) -> Took:
    """Starts the gateway, waits for the answer to the page's request, and compares it with the page's."""
    (data,) = re.findall(r"-d '(.*?)'", PAGE)
    (shown,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    ports = ["--http-port", str(PORT), "--grpc-port", str(PORT + 1)]
    command = ["opgate", "serve", "--model-repository", "models", "--allow-python-ops", *ports]
    began, before = time.monotonic(), used()
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
        try:
            answer = answered(f"http://127.0.0.1:{PORT}/v2/models/squashed/infer", data.encode())
            clock = time.monotonic() - began
        finally:
            server.terminate()
            server.wait()
    if answer["outputs"] != json.loads(shown)["outputs"]:
        raise SystemExit(f"the answer differs from the page's: {answer}")
    return Took(clock, used() - before)


def answered(url: str, data: bytes) -> dict[str, object]:
    for _ in range(600):
        try:
            with urllib.request.urlopen(url, data) as response:
                return dict(json.load(response))
        except urllib.error.URLError:
            time.sleep(0.1)
    raise SystemExit("no answer came in a minute")


def followed(folder: Path, package: Path, kind: str) -> list[Took]:
    """Runs the commands of the page in a folder, and returns what each step took."""
    environment = environment_of(package)
    (folder / "models" / "squashed" / "1").mkdir(parents=True)
    (folder / "make_model.py").write_text(FILES["make_model.py"])
    took = [run(["opgate", "new", "my_ops/squash", "--python"], folder, environment)]
    (folder / OP).write_text(KINDS[kind])
    took.append(run(["opgate", "build", "my_ops", "--engine", "onnxruntime", "--cuda", ""], folder, environment))
    took.append(run(["opgate", "verify", "--folder", "my_ops"], folder, environment))
    took.append(run([sys.executable, "make_model.py"], folder, environment))
    took.append(served(folder, {**environment, "OPGATE_OPS_PATH": str(folder / "my_ops" / "build")}))
    return took


def rows(checkout: Path, library: Path, label: str) -> list[str]:
    found = []
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as temporary:
            package = copied(checkout, library, Path(temporary) / "package")
            for which in ("first folder", "next folder"):
                folder = Path(temporary) / which.split()[0]
                took = followed(folder, package, kind)
                total = sum(took, Took(0, 0))
                cells = " | ".join(f"{each.clock:.1f}" for each in took)
                line = f"| {kind} | {which} | {label} | {cells} | **{total.clock:.1f}** | {total.processor:.1f} |"
                print(line, flush=True)
                found.append(line)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", type=Path, required=True, help="opgate's own library for ONNX Runtime")
    parser.add_argument("--against", type=Path, help="another checkout, measured too")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "first_op.md")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    lines = rows(ROOT, arguments.library, "now")
    if arguments.against:
        lines += rows(arguments.against.resolve(), arguments.library, "before")
    head = f"| kernel | | | {' | '.join(STEPS)} | all | of the processor |\n|{'---|' * 10}"
    arguments.output.write_text(
        "# From `opgate new --python` to the first answer\n\n"
        f"Machine: {os.cpu_count()} cores, load average {load:.1f} at the start. Seconds of each command of "
        "[docs/from-an-idea.md](../../docs/from-an-idea.md), for ONNX Runtime and without a compiler's cache, where "
        'nothing but opgate\'s own library was built. "next folder" is a second folder of ops on the same machine: the '
        "core and the adapter are compiled already. The last column has the seconds of the processor of all commands. "
        "Made by `python benchmarks/first_op.py`.\n\n" + "\n".join([head, *lines]) + "\n"
    )


if __name__ == "__main__":
    main()
