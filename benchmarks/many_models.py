"""A thousand models on one machine: on demand under a budget, loaded side by side, with weights that processes share.

    python benchmarks/many_models.py [--models 1000] [--largest 200] [--seconds 600] [--parts cold,start,hot,...]
        [--folder FOLDER] [--before TREE] [--output benchmarks/results/many_models.md]

The models are stacks of matrices of 1 MiB, from 1 to `--largest` of them, small ones more often. What each gives for a
fixed input is computed with NumPy when its file is written, and every answer is compared with that. The folder is kept
if it is named, and used again. `--before` is the root of another checkout, whose gateway does what it can beside.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import platform
import random
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import onnx
from onnx import TensorProto, helper
from tritonclient import http

from benchmarks.serve_overhead import machine
from opgate.service.execution.prepared import PreparedModels
from opgate.service.execution.session import Session, SessionOptions
from opgate.triton import default_folder
from tests.system.resources import descendants
from tests.system.running import ROOT, Server, free_port

SIDE = 512  # a weight has 1 MiB
X = np.linspace(-1, 1, SIDE, dtype=np.float32).reshape(1, SIDE)
MIB = 1 << 20
LIBC = ctypes.CDLL(None)
KCMP = {"x86_64": 312, "aarch64": 272}[platform.machine()]
DISABLED = "session.disable_prepacking"
NOT_PACKED = f'parameters {{ key: "{DISABLED}" value: {{ string_value: "1" }} }}'


class Repository:
    """Models on disk, and what each gives for `X`."""

    def __init__(self, folder: Path, models: int, largest: int) -> None:
        self.folder = folder / "models"
        self.names = [f"m{i:04}" for i in range(models)]
        known = folder / "expected.json"
        self.expected: dict[str, list[float]] = json.loads(known.read_text()) if known.is_file() else {}
        generator = random.Random(0)
        # Half of them have less than 4 MiB.
        self.sizes = {name: max(1, round(largest ** (generator.random() ** 2))) for name in self.names}
        base = np.random.default_rng(0).standard_normal(1 << 26, dtype=np.float32) / np.float32(SIDE**0.5)
        for number, name in enumerate(self.names):
            if name not in self.expected:
                self.expected[name] = self._write(name, self.sizes[name], base, number)
        known.write_text(json.dumps(self.expected))

    def _write(self, name: str, weights: int, base: Any, seed: int) -> list[float]:
        generator = random.Random(seed)
        values, out = [], X
        for _ in range(weights):
            begin = generator.randrange(base.size - SIDE * SIDE)
            matrix = base[begin : begin + SIDE * SIDE].reshape(SIDE, SIDE)
            values.append(matrix)
            out = out @ matrix
        tensors = ["x", *(f"t{i}" for i in range(1, weights)), "y"]
        nodes = [helper.make_node("MatMul", [tensors[i], f"w{i}"], [tensors[i + 1]]) for i in range(weights)]
        weight = [
            helper.make_tensor(f"w{i}", TensorProto.FLOAT, matrix.shape, matrix.tobytes(), raw=True)
            for i, matrix in enumerate(values)
        ]
        x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", SIDE]) for n in "xy")
        graph = helper.make_graph(nodes, name, [x], [y], weight)
        path = self.folder / name / "1"
        path.mkdir(parents=True, exist_ok=True)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        onnx.save(model, path / "model.onnx")
        return [float(value) for value in out[0, :8]]

    def is_right(self, name: str, y: Any) -> bool:
        return bool(np.allclose(y[0, :8], self.expected[name], rtol=1e-2, atol=1e-3))

    def subset(self, folder: Path, names: Sequence[str], config: str = "") -> Path:
        """Returns a repository with some of the models."""
        for name in names:
            (folder / name / "1").mkdir(parents=True)
            (folder / name / "1" / "model.onnx").hardlink_to(self.folder / name / "1" / "model.onnx")
            if config:
                (folder / name / "config.pbtxt").write_text(config)
        return folder


class Client:
    """A client of one thread."""

    def __init__(self, server: Server) -> None:
        self._client = http.InferenceServerClient(f"127.0.0.1:{server.http}", network_timeout=120)

    def ask(self, name: str) -> tuple[float, Any]:
        """Returns the seconds of an answer, and its tensor."""
        given = http.InferInput("x", [1, SIDE], "FP32")
        given.set_data_from_numpy(X)
        began = time.perf_counter()
        y = self._client.infer(name, [given]).as_numpy("y")
        return time.perf_counter() - began, y


@contextmanager
def serving(
    folder: Path, *options: str, cache: Path | None = None, tree: Path = ROOT
) -> Iterator[tuple[Server, float]]:
    """Runs a gateway. Yields it, and the seconds until it listened."""
    more = [] if tree != ROOT else ["--model-cache-byte-size", "100GiB" if cache else "0"]
    more += ["--model-cache", str(cache)] if cache else []
    began = time.perf_counter()
    # With this name of Python it starts from nothing, and not from a process that has imported everything.
    server = Server(folder, *options, *more, python=str(Path(sys.executable).with_name("python3")), folder=tree)
    seconds = time.perf_counter() - began
    try:
        yield server, seconds
    finally:
        server.stop()


def pss(pid: int) -> int:
    """Returns the bytes of a process and its descendants, but for those that prepare models."""
    total, counted = 0, list[int]()
    for one in descendants(pid):
        try:
            if b"opgate.service.execution.preparing" in Path(f"/proc/{one}/cmdline").read_bytes():
                continue
            text = Path(f"/proc/{one}/smaps_rollup").read_text()
        except OSError:
            continue
        # A process that is begun has the memory of the one that begins it, until it runs its program.
        if not any(have_one_memory(one, other) for other in counted):
            total += next((int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:")), 0)
            counted.append(one)
    return total


def have_one_memory(one: int, other: int) -> bool:
    """Returns whether two processes have the same address space, by kcmp(2)."""
    return LIBC.syscall(KCMP, one, other, 1, 0, 0) == 0  # 1: KCMP_VM


class Memory(threading.Thread):
    """Samples the memory of a gateway."""

    def __init__(self, pid: int, every: float = 0.2) -> None:
        super().__init__(daemon=True)
        self._pid, self._every = pid, every
        self.empty = pss(pid)
        self.samples: list[int] = []
        self._end = threading.Event()

    def run(self) -> None:
        while not self._end.wait(self._every):
            self.samples.append(pss(self._pid) - self.empty)

    def stop(self) -> None:
        self._end.set()
        self.join()


OWN = """
import sys, time
import numpy as np, onnxruntime as ort
x = np.linspace(-1, 1, {side}, dtype=np.float32).reshape(1, {side})
options = ort.SessionOptions()
options.intra_op_num_threads = 2
ort.InferenceSession(sys.argv[1], options).run(None, {{"x": x}})
for path in sys.argv[2:]:
    began = time.perf_counter()
    ort.InferenceSession(path, options).run(None, {{"x": x}})
    print(time.perf_counter() - began)
"""


def own_times(paths: Sequence[Path]) -> list[float]:
    """Returns the seconds that ONNX Runtime alone takes to open each file and run it once."""
    code = OWN.format(side=SIDE)
    done = subprocess.run(
        [sys.executable, "-c", code, str(paths[0]), *map(str, paths)], capture_output=True, check=True
    )
    return [float(line) for line in done.stdout.split()]


def read_all(paths: Sequence[Path]) -> None:
    """Reads files, so that all measurements find them in the page cache."""
    for path in paths:
        with path.open("rb") as file:
            while file.read(1 << 24):
                pass


def warm(place: Path, names: Sequence[str], cache: Path | None) -> None:
    """Reads model files, or their prepared forms if there is a cache."""
    files = [place / name / "1" / "model.onnx" for name in names]
    if cache is None:
        read_all(files)
    elif not are_prepared(cache, files, SessionOptions(entries={DISABLED: "1"} if place.name == "unpacked" else {})):
        raise RuntimeError("not all models are prepared")


def cold(repository: Repository, options: argparse.Namespace, cache: Path) -> list[str]:
    """The first answer of a model that is not in memory, and the time that its session takes alone."""
    names = repository.names[:: max(1, len(repository.names) // 40)][:40]
    files = [repository.folder / name / "1" / "model.onnx" for name in names]
    read_all(files)
    own = own_times(files)
    lines = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for what, place in (("as the file is", None), ("prepared", cache)):
            if place is not None:  # the first time prepares them
                with serving(repository.folder, "--model-memory", "16GiB", cache=place) as (server, _):
                    client = Client(server)
                    for name in names:
                        client.ask(name)
                    wait_until(lambda place=place: are_prepared(place, files))
            with serving(repository.folder, "--model-memory", "16GiB", cache=place) as (server, listening):
                client = Client(server)
                client.ask(repository.names[1])  # imports and the first thread
                times = [client.ask(name)[0] for name in names]
            over = [t - o for t, o in zip(times, own, strict=True)]
            lines.append(
                f"| {what} | {len(repository.names)} | {listening:.2f} s | {ms(np.median(times))} | "
                f"{ms(np.median(own))} | {ms(np.median(over))} | {ms(max(over))} |"
            )
            print(lines[-1], flush=True)
        del folder
    return [
        "## The first answer of a model",
        "",
        f"{len(names)} of the models were asked one after the other, each for the first time. ONNX Runtime alone",
        "opened the same files and ran them once, in a process that did nothing else.",
        "",
        "| files | models | listening | first answer, median | ONNX Runtime alone, median | more, median | "
        "more, at most |",
        "|---|---|---|---|---|---|---|",
        *lines,
        "",
    ]


def are_prepared(cache: Path, paths: Sequence[Path], options: SessionOptions | None = None) -> bool:
    found = PreparedModels(cache, 1 << 40)
    return all(found.find(path, options or SessionOptions(), ()) is not None for path in paths)


def wait_until(condition: Callable[[], bool], seconds: float = 600.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.2)


def ms(seconds: Any) -> str:
    return f"{1000 * float(seconds):.1f} ms"


def zipf(repository: Repository, options: argparse.Namespace, cache: Path) -> list[str]:
    """Traffic to all models, a few of which get most of it."""
    weights = 1 / np.arange(1, len(repository.names) + 1) ** 1.1
    order = np.random.default_rng(1).permutation(len(repository.names))
    lock, ends = threading.Lock(), time.monotonic() + options.seconds
    counts: dict[str, Any] = {"answers": [], "wrong": 0, "failed": []}
    with serving(repository.folder, "--model-memory", options.budget, cache=cache) as (server, _):
        memory = Memory(server.process.pid)
        memory.start()

        def one(seed: int) -> None:
            generator = np.random.default_rng(seed)
            client = Client(server)
            while time.monotonic() < ends:
                name = repository.names[order[generator.choice(len(order), p=weights / weights.sum())]]
                try:
                    seconds, y = client.ask(name)
                except Exception as error:
                    with lock:
                        counts["failed"].append(f"{name}: {error}")
                    continue
                with lock:
                    counts["answers"].append(seconds)
                    counts["wrong"] += not repository.is_right(name, y)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(one, range(8)))
        memory.stop()
        numbers = metrics(server)
    budget = int(numbers["opgate_model_memory_budget_bytes"])
    times = counts["answers"]
    loads = sum(value for key, value in numbers.items() if key.startswith("opgate_model_loads_total"))
    left = sum(value for key, value in numbers.items() if key.startswith("opgate_model_evictions_total"))
    for text in counts["failed"][:5]:
        print(text)
    lines = [
        "## Traffic to all models",
        "",
        f"8 clients asked for {options.seconds:g} s, the models by Zipf's law with exponent 1.1. `--model-memory` was",
        f"{options.budget}, the files of all models have {sum(repository.sizes.values()) / 1024:.1f} GiB. The memory",
        "is the proportional set size of the gateway, five times a second, without what it took when it was empty.",
        "",
        "| answers | wrong | failed | loads | models that left | p50 | p99 | largest memory | budget |",
        "|---|---|---|---|---|---|---|---|---|",
        f"| {len(times)} | {counts['wrong']} | {len(counts['failed'])} | {loads:.0f} | {left:.0f} | "
        f"{ms(np.percentile(times, 50))} | {ms(np.percentile(times, 99))} | {max(memory.samples) // MIB} MiB | "
        f"{budget // MIB} MiB |",
        "",
    ]
    print("\n".join(lines), flush=True)
    return lines


def metrics(server: Server) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.http}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def start(repository: Repository, options: argparse.Namespace, cache: Path) -> list[str]:
    """The start of 100 models that are always in memory."""
    names = repository.names[: min(100, len(repository.names))]
    read_all([repository.folder / name / "1" / "model.onnx" for name in names])
    rows: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(dir=repository.folder.parent) as folder:
        place = repository.subset(Path(folder) / "models", names)
        ways: list[tuple[str, list[str], Path | None, Path]] = [
            ("one after the other", ["--model-load-thread-count", "1"], None, ROOT),
            ("side by side", [], None, ROOT),
            ("prepared, side by side", [], cache, ROOT),
        ]
        if options.before is not None:
            ways.insert(0, ("before", [], None, options.before))
        unpacked = repository.subset(Path(folder) / "unpacked", names, NOT_PACKED)
        ways.append(("prepared, weights not packed, side by side", [], cache, ROOT))
        for which, session in ((place, SessionOptions()), (unpacked, SessionOptions(entries={DISABLED: "1"}))):
            with serving(which, cache=cache) as (server, _):  # prepares those that are not
                files = [which / name / "1" / "model.onnx" for name in names]
                wait_until(lambda files=files, session=session: are_prepared(cache, files, session))
        empty = tempfile.mkdtemp()
        for _ in range(3):
            for what, more, kept, tree in [("no model", [], None, ROOT), *ways]:
                where = Path(empty) if what == "no model" else unpacked if "not packed" in what else place
                if what != "no model":
                    warm(where, names, kept)
                with serving(where, *more, cache=kept, tree=tree) as (server, seconds):
                    rows.setdefault(what, []).append(seconds)
                    if what != "no model":
                        client = Client(server)
                        assert all(repository.is_right(name, client.ask(name)[1]) for name in names[:10])
    none = float(np.median(rows["no model"]))
    slow = float(np.median(rows["one after the other"])) - none
    lines = [
        "## The start of 100 models",
        "",
        f"They have {sum(repository.sizes[name] for name in names)} MiB and are loaded before the gateway listens.",
        f"Medians of three starts, less that without a model, which takes {none:.2f} s.",
        "",
        "| models | seconds | times as fast |",
        "|---|---|---|",
    ]
    for what, seconds in rows.items():
        if what != "no model":
            own = float(np.median(seconds)) - none
            lines.append(f"| {what} | {own:.2f} | {slow / own:.1f} |")
    print("\n".join(lines), flush=True)
    largest = max(names, key=lambda name: repository.sizes[name])
    return [*lines, "", *run_times(repository.folder / largest / "1" / "model.onnx"), ""]


def run_times(path: Path) -> list[str]:
    """What a model takes whose weights are not packed."""
    sessions = [Session(path, SessionOptions(entries=entries)) for entries in ({}, {DISABLED: "1"})]
    lines = []
    for rows in (1, 4, 16, 64):
        x = np.repeat(X, rows, axis=0)
        times: list[list[float]] = [[], []]
        for _ in range(15):
            for session, taken in zip(sessions, times, strict=True):
                began = time.perf_counter()
                session.run(["y"], {"x": x})
                taken.append(time.perf_counter() - began)
        packed, unpacked = (float(np.median(taken)) for taken in times)
        lines.append(f"| {rows} | {ms(packed)} | {ms(unpacked)} | {unpacked / packed:.1f} |")
    return [
        f"With the parameter `{DISABLED}` ONNX Runtime does not pack the weights. Runs of the largest of these",
        "models on one thread, medians of 15:",
        "",
        "| rows | packed | not packed | times |",
        "|---|---|---|---|",
        *lines,
    ]


def workers(repository: Repository, options: argparse.Namespace, cache: Path) -> list[str]:
    """The memory of one gateway process and of four that share the weights."""
    names = sorted(repository.names, key=lambda name: -repository.sizes[name])[
        : 10 if len(repository.names) > 10 else 3
    ]
    lines = []
    total = sum(repository.sizes[name] for name in names)
    with tempfile.TemporaryDirectory(dir=repository.folder.parent) as folder:
        place = repository.subset(Path(folder), names)
        with serving(place, cache=cache) as (server, _):
            wait_until(lambda: are_prepared(cache, [place / name / "1" / "model.onnx" for name in names]))
        for what, kept in (("as the files are", None), ("prepared", cache)):
            of = {}
            for count in (1, 4):
                with (
                    tempfile.TemporaryDirectory() as nothing,
                    serving(Path(nothing), "--workers", str(count), cache=kept) as (server, _),
                ):
                    empty = pss(server.process.pid)
                with serving(place, "--workers", str(count), cache=kept) as (server, _):
                    with ThreadPoolExecutor(8) as pool:
                        list(pool.map(lambda name, s=server: Client(s).ask(name), names * 20))
                    of[count] = pss(server.process.pid) - empty
            lines.append(f"| {what} | {of[1] // MIB} MiB | {of[4] // MIB} MiB | {of[4] / of[1]:.2f} |")
            print(lines[-1], flush=True)
    return [
        "## Weights of several gateway processes",
        "",
        f"The {len(names)} largest models, with {total} MiB of weights, in one gateway process and in four. The memory",
        "is the proportional set size of all processes after 20 requests to each model, without what they took without",
        "a model.",
        "",
        "| files | `--workers 1` | `--workers 4` | times |",
        "|---|---|---|---|",
        *lines,
        "",
    ]


OPENS = """
import sys
import onnxruntime as ort
options = ort.SessionOptions()
options.intra_op_num_threads = 1
for line in sys.stdin:
    ort.InferenceSession(line.strip(), options)
    print(flush=True)
"""


@contextmanager
def opener() -> Iterator[Callable[[Path], object]]:
    """Yields a function that lets a process of its own open a file with ONNX Runtime and close it again."""
    process = subprocess.Popen([sys.executable, "-c", OPENS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    given, told = process.stdin, process.stdout

    def open_one(path: Path) -> None:
        print(path, file=given, flush=True)
        told.readline()

    try:
        yield open_one
    finally:
        given.close()
        process.wait()


def hot(repository: Repository, options: argparse.Namespace, cache: Path) -> list[str]:
    """A model that gets requests all the time, while others are loaded."""
    small = min(repository.names, key=lambda name: repository.sizes[name])
    others = [name for name in repository.names if name != small][:100]
    files = [repository.folder / name / "1" / "model.onnx" for name in others]
    with serving(repository.folder, "--model-memory", "16GiB", cache=cache) as (server, _):
        for name in others:
            Client(server).ask(name)
        wait_until(lambda: are_prepared(cache, files))
    lines = []
    ways = [("as the files are", None), ("prepared", cache), ("as they are, opened by another process", None)]
    for what, kept in ways:
        started = serving(repository.folder, "--model-memory", options.budget, cache=kept)
        with started as (server, _), ExitStack() as stack:
            client, other = Client(server), Client(server)
            open_one: Callable[[str], object] = other.ask
            if "another process" in what:
                foreign = stack.enter_context(opener())
                open_one = lambda name, foreign=foreign: foreign(repository.folder / name / "1" / "model.onnx")  # noqa: E731
            for _ in range(500):
                client.ask(small)
            quiet = [client.ask(small)[0] for _ in range(5000)]

            def load(open_one: Callable[[str], object] = open_one) -> None:
                for name in others:
                    open_one(name)
                    time.sleep(0.1)

            thread = threading.Thread(target=load)
            thread.start()
            busy = []
            while thread.is_alive():
                busy.append(client.ask(small)[0])
        row = [float(np.percentile(values, part)) for values in (quiet, busy) for part in (50, 99)]
        lines.append(f"| {what} | {ms(row[0])} | {ms(row[1])} | {ms(row[2])} | {ms(row[3])} | {row[3] / row[1]:.2f} |")
        print(lines[-1], flush=True)
    return [
        "## A model in use while others are loaded",
        "",
        f"One client asks the smallest model all the time. A second client asks {len(others)} others, each for the",
        "first time, a tenth of a second after the answer before. In the last row it asks none: a process that has",
        "nothing to do with the gateway opens the same files in the same way, and closes them.",
        "",
        "| files | p50, quiet | p99, quiet | p50 beside loads | p99 beside loads | p99, times |",
        "|---|---|---|---|---|---|",
        *lines,
        "",
    ]


TRITON = """backend: "onnxruntime"
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [512] }
output { name: "y" data_type: TYPE_FP32 dims: [512] }
"""


def triton(repository: Repository, options: argparse.Namespace, cache: Path) -> list[str]:
    """The start of 100 models in Triton, and their memory. Triton loads none on demand."""
    names = repository.names[: min(100, len(repository.names))]
    lines = []
    with tempfile.TemporaryDirectory(dir=repository.folder.parent) as folder:
        place = repository.subset(Path(folder), names, TRITON)
        ports = [str(free_port()) for _ in range(3)]
        command = [sys.executable, "-m", "opgate", "triton", "--model-repository", str(place)]
        for option, port in zip(("--http-port", "--grpc-port", "--metrics-port"), ports, strict=True):
            command += [option, port]
        command += ["--start-timeout", "600", "--install-into", str(options.triton)]
        began = time.monotonic()
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT) as process:
            try:
                wait_until(lambda: is_ready(f"http://127.0.0.1:{ports[0]}"))
                lines.append(f"| Triton | {time.monotonic() - began:.1f} s | {pss(process.pid) // MIB} MiB |")
            finally:
                process.terminate()
        with serving(place, cache=cache) as (server, seconds):
            lines.append(f"| opgate | {seconds:.1f} s | {pss(server.process.pid) // MIB} MiB |")
    print("\n".join(lines), flush=True)
    return [
        "## The start of 100 models in Triton",
        "",
        "Triton is the server of the package nvidia-pytriton. It has no backend for ONNX Runtime, so one in Python",
        "stands in, with a process for each model: these figures are not those of Triton's own backend. They are the",
        "time from the start of the process until the server is ready, and the memory of all its processes then.",
        "",
        "| server | ready after | memory |",
        "|---|---|---|",
        *lines,
        "",
    ]


def is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/v2/health/ready", timeout=5):
            return True
    except OSError:
        return False


PARTS = {"cold": cold, "start": start, "workers": workers, "hot": hot, "zipf": zipf, "triton": triton}


def main() -> None:
    """Measures and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--largest", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--budget", default="4GiB")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--triton", type=Path, default=default_folder(), help="where `opgate triton` has its server")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results/many_models.md")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        repository = Repository(folder, options.models, options.largest)
        size = sum(repository.sizes.values())
        print(f"{options.models} models with {size} MiB, written in {time.monotonic() - began:.0f} s", flush=True)
        pages = [PARTS[part](repository, options, folder / "cache") for part in options.parts.split(",")]
    lines = [
        "# Many models",
        "",
        f"`python benchmarks/many_models.py --models {options.models} --largest {options.largest} --seconds "
        f"{options.seconds:g} --budget {options.budget} --parts {options.parts}` on {machine()}. The models have 1 to "
        f"{options.largest} MiB,",
        f"{size / 1024:.1f} GiB together.",
        "",
        *(line for page in pages for line in page),
    ]
    text = "\n".join(lines).rstrip() + "\n"
    options.output.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
