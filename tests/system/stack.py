"""Runs the services of docker-compose.yml on this machine, without a container engine.

Each service is the real program with the command, environment, mounts, capabilities and read-only root file system that
docker-compose.yml and the Dockerfile state. All services share one network namespace, apart from this machine's, in
which their names are 127.0.0.1 and every port is free. Each has a mount namespace of its own: its root is this machine's
file system with the mounts on top.

What differs from containers: the programs and libraries are those of this machine, the services run as its root user
without capabilities, and limits of CPU and memory are not set (a file tells the gateway its limit of memory).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml
from dockerfile_parse import DockerfileParser

from opgate import triton
from tests.system.running import ROOT

T = TypeVar("T")
_CLONE_NEWNET = 0x40000000
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@dataclass
class Image:
    """What an image brings. `content` maps its folders to folders of this machine."""

    entrypoint: list[str]
    command: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    healthcheck: list[str] = field(default_factory=list)
    content: dict[str, Path] = field(default_factory=dict)


def built(dockerfile: str, content: Mapping[str, Path], target: str = "") -> Image:
    """Returns the image that one of our Dockerfiles makes, from its last stage or another one."""
    instructions = DockerfileParser(fileobj=open(ROOT / dockerfile, "rb")).structure  # noqa: SIM115
    stages = [i for i, step in enumerate(instructions) if step["instruction"] == "FROM"]
    first = next((i for i in stages if instructions[i]["value"].endswith(f" AS {target}")), stages[-1])
    end = next((i for i in stages if i > first), len(instructions))
    image = Image([], content=dict(content))
    for step in instructions[first:end]:
        value = step["value"]
        match step["instruction"]:
            case "ENV":
                image.environment |= dict(part.split("=", 1) for part in shlex.split(value))
            case "ENTRYPOINT":
                image.entrypoint = json.loads(value)
            case "CMD":
                image.command = json.loads(value)
            case "HEALTHCHECK":
                image.healthcheck = json.loads(value[value.index("CMD") + 3 :])
    return image


def triton_image(ops: Path, installed: triton.Installation, folder: Path) -> Image:
    """Returns the image of Triton, whose program is the server that nvidia-pytriton carries. It needs to be told where
    its backends are, and it finds its libraries by a variable."""
    environment = triton.environment(installed, Path("/models"))
    program = folder / "tritonserver"
    program.write_text(
        "#!/bin/sh\n"
        f"export LD_LIBRARY_PATH=$LD_LIBRARY_PATH:{environment['LD_LIBRARY_PATH']}\n"
        f"export PYTHONPATH={environment['PYTHONPATH']} OPGATE_TRITON_REPOSITORY=/models\n"
        f'exec {installed.program} --backend-directory={installed.backends} "$@"\n'
    )
    program.chmod(0o755)
    image = built("deploy/triton.Dockerfile", {"/opt/opgate/opgate/lib": ops, "/opt/tritonserver/bin": folder})
    image.environment["PATH"] = "/opt/tritonserver/bin:/usr/bin:/bin"
    return image


def images() -> dict[str, Image]:
    """Returns the images of docker-compose.yml that this machine has the programs of, by their names without registry and version."""
    venv = Path(sys.prefix)
    return {
        "opgate": built("deploy/gateway.Dockerfile", {"/opt/opgate/venv": venv}),
        "opgate-plan": built("deploy/triton-gpu.Dockerfile", {"/opt/opgate/venv": venv}, "plan"),
        "opgate-locust": built("deploy/locust.Dockerfile", {"/opt/locust/venv": venv}),
        "prometheus": Image(["/bin/prometheus"], environment={"PATH": "/usr/bin:/bin"}),
    }


def compose(variables: Mapping[str, str], file: Path = ROOT / "docker-compose.yml") -> dict[str, Any]:
    """Returns the compose file with its variables replaced, as the compose specification says it."""

    def replaced(match: re.Match[str]) -> str:
        return variables.get(match["name"]) or match["default"]

    text = re.sub(r"\$\{(?P<name>\w+):-(?P<default>[^}]*)\}", replaced, file.read_text())
    assert "${" not in text, "this reader knows ${NAME:-default} only"
    loaded = yaml.safe_load(text)
    assert isinstance(loaded, dict)
    return loaded


def missing() -> str:
    """Returns what this machine lacks to run the stack, nothing if it lacks nothing."""
    if lacking := [name for name in ("unshare", "nsenter", "setpriv", "ip", "prometheus") if not shutil.which(name)]:
        return f"not installed: {', '.join(lacking)}"
    attempt = "mount -t tmpfs none /mnt && mkdir /mnt/a /mnt/b && mount -t overlay none -o ro,lowerdir=/mnt/a:/ /mnt/b"
    tried = subprocess.run(["unshare", "--net", "--mount", "sh", "-c", attempt], capture_output=True, text=True)
    return f"no namespaces and overlays: {tried.stderr.strip()}" if tried.returncode else ""


class Service:
    """A service of the stack while it runs. A thread reads its output, so that it never blocks."""

    def __init__(self, name: str, process: subprocess.Popen[str], healthcheck: list[str], grace: float) -> None:
        self.name, self.process, self.healthcheck, self.grace = name, process, healthcheck, grace
        self.output: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.output.extend(self.process.stdout)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Runs a command in the service's namespaces, with its environment, as `docker compose exec` does."""
        inside = ["nsenter", "--target", str(self.process.pid), "--mount", "--net", "--root", "--wd"]
        pairs = Path(f"/proc/{self.process.pid}/environ").read_bytes().split(b"\0")
        environment = dict(pair.decode().split("=", 1) for pair in pairs if pair)
        return subprocess.run([*inside, *command], env=environment, capture_output=True, text=True, timeout=60)

    def wait_until_healthy(self, seconds: float = 60) -> None:
        """Waits until the health check of the image or of docker-compose.yml succeeds."""
        end = time.monotonic() + seconds
        while self.process.poll() is not None or self.run(*self.healthcheck).returncode:
            if self.process.poll() is not None or time.monotonic() > end:
                self._reader.join(2)
                raise RuntimeError(f"{self.name} is not healthy:\n" + "".join(self.output))
            time.sleep(0.2)

    def stop(self) -> int:
        """Sends SIGTERM, and SIGKILL after the service's grace period. Returns the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(self.grace)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait(10)
        finally:
            self._reader.join(10)


class Stack:
    """The services of docker-compose.yml, with the given values of its variables."""

    def __init__(self, known: Mapping[str, Image], variables: Mapping[str, str], folder: Path) -> None:
        self.services = compose(variables)["services"]
        self.running: dict[str, Service] = {}
        self._images, self.folder = known, folder
        holder = ["unshare", "--net", "sh", "-c", "ip link set lo up && echo up && exec sleep infinity"]
        self._holder = subprocess.Popen(holder, stdout=subprocess.PIPE, text=True)
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "up\n"
        self._threads = ThreadPoolExecutor(8, initializer=self._enter_network)

    def _enter_network(self) -> None:
        with open(f"/proc/{self._holder.pid}/ns/net") as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "the thread can't enter the network of the stack")

    def submit(self, work: Callable[..., T], *arguments: Any, **named: Any) -> Future[T]:
        """Calls `work` on a thread that is in the network of the stack."""
        return self._threads.submit(work, *arguments, **named)

    def call(self, work: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Does the same, and returns the result."""
        return self.submit(work, *arguments, **named).result(120)

    def answers(self, url: str) -> bool:
        """Returns whether a URL answers."""
        try:
            self.call(urllib.request.urlopen, url).close()
        except OSError:
            return False
        return True

    def start(self, name: str, *, number: int = 0, environment: Mapping[str, str] | None = None) -> Service:
        """Starts a service, and waits until it is healthy if it has a health check.

        `number` tells its replicas apart. `environment` is added to its environment, like a file gateway.env.
        """
        stated = self.services[name]
        image = self._images[stated["image"].rpartition("/")[2].partition(":")[0]]
        arguments = stated.get("command", image.command)
        command = [*image.entrypoint, *(shlex.split(arguments) if isinstance(arguments, str) else arguments)]
        variables = {"HOME": "/tmp"} | image.environment | dict(environment or {}) | stated.get("environment", {})
        healthcheck = stated["healthcheck"]["test"][1:] if "healthcheck" in stated else image.healthcheck
        grace = float(stated.get("stop_grace_period", "10s").removesuffix("s"))
        script = self._script(stated, image, command)
        process = subprocess.Popen(
            ["nsenter", f"--net=/proc/{self._holder.pid}/ns/net", "unshare", "--mount", "sh", "-euc", script],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=variables | {"PATH": variables["PATH"] + ":/usr/sbin:/sbin"},
        )  # fmt: skip
        service = self.running[f"{name}-{number}" if number else name] = Service(name, process, healthcheck, grace)
        if healthcheck:
            service.wait_until_healthy()
        return service

    def _script(self, stated: Mapping[str, Any], image: Image, command: list[str]) -> str:
        """Returns the shell commands that make the service's root file system and become its program."""
        mounts = [(str(source), target, True) for target, source in image.content.items()]
        for volume in stated.get("volumes", []):
            source, target, *mode = volume.split(":")
            if not source.startswith((".", "/")):  # a volume of its own
                (self.folder / source).mkdir(exist_ok=True)
                source = str(self.folder / source)
            mounts.append((str((ROOT / source).resolve()), target, mode == ["ro"]))
        hosts = self.folder / "hosts"
        hosts.write_text(f"127.0.0.1 localhost {' '.join(self.services)}\n")
        limit = self.folder / "memory.max"
        limit.write_text(
            f"{_bytes(stated.get('deploy', {}).get('resources', {}).get('limits', {}).get('memory', ''))}\n"
        )
        new = "/mnt/new"
        folders = [target for _, target, _ in mounts]
        lines = [
            "mount --make-rprivate /", "mount -t tmpfs none /mnt", f"mkdir {new} /mnt/group",
            *(f"mkdir -p /mnt/lower{shlex.quote(folder)}" for folder in ["", *folders]),
            f"mount -t overlay none -o ro,lowerdir=/mnt/lower:/ {new}",
            *(f"mount --rbind /{folder} {new}/{folder}" for folder in ("proc", "dev", "sys")),
            # A container with a limit of memory sees it in the root of its control groups.
            f"mount --bind /mnt/group {new}/sys/fs/cgroup", f"cat {limit} > {new}/sys/fs/cgroup/memory.max",
            f"echo 0::/ > /mnt/cgroup; mount --bind /mnt/cgroup {new}/proc/$$/cgroup",
            f"mount --bind {hosts} {new}/etc/hosts",
        ]  # fmt: skip
        for source, target, read_only in mounts:
            place = shlex.quote(new + target)
            lines.append(f"mount --bind {shlex.quote(source)} {place}")
            if read_only:
                lines.append(f"mount -o remount,bind,ro {place}")
        for folder in stated.get("tmpfs", []):
            lines.append(f"mount -t tmpfs none {new}{folder}")
            # The project itself may lie in that folder.
            for path in (str(ROOT), sys.prefix):
                if path.startswith(f"{folder}/"):
                    lines += [f"mkdir -p {new}{shlex.quote(path)}", f"mount --bind {shlex.quote(path)} {new}{path}"]
        assert stated["read_only"] and stated["cap_drop"] == ["ALL"], "containers differ here"
        no_rights = "setpriv --no-new-privs --bounding-set=-all --inh-caps=-all"
        lines.append(f"exec chroot {new} {no_rights} {shlex.join(command)}")
        return "\n".join(lines)

    def close(self) -> None:
        """Stops every service, and ends the network."""
        try:
            with contextlib.ExitStack() as each:  # the others are stopped even if one can't be
                for service in self.running.values():
                    each.callback(service.stop)
        finally:
            self._threads.shutdown()
            self._holder.kill()
            self._holder.wait()


def _bytes(text: str) -> int | str:
    match = re.fullmatch(r"(\d+)([kmg])", text)
    return int(match[1]) * _UNITS[match[2]] if match else "max"


@contextlib.contextmanager
def stack(known: Mapping[str, Image], variables: Mapping[str, str]) -> Iterator[Stack]:
    """Makes an empty stack, and stops what was started in it."""
    with tempfile.TemporaryDirectory() as folder:
        made = Stack(known, variables, Path(folder))
        try:
            yield made
        finally:
            made.close()
