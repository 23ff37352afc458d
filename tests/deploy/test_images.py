"""The Dockerfiles that begin with Debian: their steps, run in a Debian that debootstrap makes, and the program at the end.

`make test-all` runs this as root. It takes some minutes and needs a network.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest
from dockerfile_parse import DockerfileParser

from tests.conftest import thorough
from tests.deploy.conftest import PIP, SHARED
from tests.system.running import ROOT, free_port

pytestmark = [
    thorough("it installs a system for each image"),
    pytest.mark.skipif(os.geteuid() != 0, reason="it needs root"),
    pytest.mark.skipif(shutil.which("debootstrap") is None, reason="debootstrap is not installed"),
]


def run(root: Path, command: list[str], variables: dict[str, str], user: str = "") -> subprocess.Popen[str]:
    """Starts a command in a root file system of its own, with what a step of a build sees."""
    new = shlex.quote(str(root))
    lines = ["mount --make-rprivate /"]
    for shared in ("/proc", "/dev", *SHARED):
        lines += [f"mkdir -p {new}{shared}", f"mount --rbind {shared} {new}{shared}"]
    chroot = f"chroot {f'--userspec={user} ' if user else ''}{new}"
    lines.append(f"exec {chroot} {shlex.join(command)}")
    script = ["unshare", "--mount", "sh", "-euc", "\n".join(lines)]
    variables = {**variables, "PATH": f"{variables['PATH']}:/usr/sbin:/sbin"}  # where mount and chroot are
    return subprocess.Popen(script, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def build(dockerfile: str, debian: Path, folder: Path) -> tuple[Path, dict[str, str], str]:
    """Runs the steps of a Dockerfile. Returns the last stage's root, environment and user."""
    stages: dict[str, Path] = {}
    root, workdir, user = debian, "/", ""
    variables: dict[str, str] = {}
    for step in DockerfileParser(fileobj=(ROOT / dockerfile).open("rb")).structure:
        value = step["value"]
        match step["instruction"]:
            case "FROM":
                image, *name = value.split(" AS ")
                assert image.startswith("debian:12")
                root = folder / (name[0] if name else "last")
                stages[name[0] if name else "last"] = root
                subprocess.run(["cp", "-a", debian, root], check=True)
                workdir, user = "/", ""
                variables = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
            case "WORKDIR":
                workdir = value
                (root / workdir[1:]).mkdir(parents=True, exist_ok=True)
            case "ENV":
                variables |= dict(part.split("=", 1) for part in shlex.split(value))
            case "USER":
                user = value
            case "COPY":
                *sources, target = value.split()
                base = stages[sources.pop(0).removeprefix("--from=")] if sources[0].startswith("--from") else ROOT
                for source in sources:
                    place = Path(f"{root}{target}" if target.startswith("/") else f"{root}{workdir}/{target}")
                    place = place / Path(source).name if target.endswith("/") else place
                    place.parent.mkdir(parents=True, exist_ok=True)
                    copied = base / source.removeprefix("/")
                    if copied.is_dir():
                        shutil.copytree(
                            copied,
                            place,
                            symlinks=True,
                            ignore=shutil.ignore_patterns("__pycache__", "*.so") if base == ROOT else None,
                        )
                    else:
                        shutil.copy(copied, place)
            case "RUN":
                command = f"cd {workdir} && {value}"
                step_run = run(root, ["sh", "-ec", command], {**variables, **PIP, "HOME": "/root"})
                output, _ = step_run.communicate(timeout=1200)
                assert step_run.returncode == 0, f"{value}\n{output[-4000:]}"
    return root, variables, user


def test_the_gateway(debian, tmp_path):
    """The image serves the models as its own user, and has no compiler."""
    root, variables, user = build("deploy/gateway.Dockerfile", debian, tmp_path)
    for tool in ("g++", "cc", "cmake", "make"):
        assert not any((root / folder / tool).exists() for folder in ("usr/bin", "usr/local/bin")), tool
    shutil.copytree(ROOT / "model_repository", root / "models")
    port = free_port()
    variables |= {"OPGATE_HTTP_PORT": str(port), "OPGATE_GRPC_PORT": "0", "HOME": "/tmp"}
    gateway = run(root, ["opgate", "serve"], variables, user)
    try:
        end = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready").close()
                break
            except OSError:
                assert gateway.poll() is None and time.monotonic() < end
                time.sleep(0.2)
        picture = (ROOT / "docs/examples/digits.jpg").read_bytes()
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/predict/digit_detector", picture, {"Content-Type": "image/jpeg"}
        )
        with urllib.request.urlopen(request) as answer:
            assert len(json.loads(answer.read())["predictions"]) == 8
        assert Path(f"/proc/{gateway.pid}/status").read_text().split("Uid:")[1].split()[0] == user.split(":")[0]
    finally:
        gateway.terminate()
        output, _ = gateway.communicate(timeout=60)
    assert gateway.returncode == 0, output


def test_locust(debian, tmp_path):
    root, variables, user = build("deploy/locust.Dockerfile", debian, tmp_path)
    shutil.copytree(ROOT / "deploy/locust", root / "opt/locust/load")
    listed = run(
        root, ["locust", "-f", "/opt/locust/load/locustfile.py", "--list"], {**variables, "HOME": "/tmp"}, user
    )
    output, _ = listed.communicate(timeout=60)
    assert listed.returncode == 0 and "GrpcUser" in output, output
