"""Nobody gets another's: in each way in which the data of two clients lies side by side, neither gets the other's.

Two clients with different secrets send requests at the same time. Each answer must be exactly the client's own, and the
other's secret must be in no byte of it, nor any secret in the log or in /metrics. A cell of the matrix is a way, a
protocol, whether requests share runs, and where the model runs. `python -m tests.system.test_others_data` runs all cells
and prints in how many answers of each was searched.
"""

from __future__ import annotations

import asyncio
import base64
import importlib
import itertools
import json
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import ALL
from tests.service.onnx_models import identity
from tests.service.padded_models import parameters, scattered, tokens
from tests.system import side_by_side_models as models
from tests.system.conftest import wait_until
from tests.system.running import Server, running
from tests.system.secret_search import Secret, in_log
from tests.system.shared_files import SharedFile, shared_file
from tests.system.side_by_side_models import ALONE, BATCHED, GATEWAY, PROCESSES, PYTHON, WORKER
from tests.system.two_clients import (
    BINARY,
    EVENTS,
    GENERATE,
    GRPC,
    JSON,
    PREDICT,
    STREAM,
    Answer,
    Array,
    Asked,
    Client,
    checked,
    http_request,
    read_http,
)

SECRETS = (
    Secret(
        "Hazel-q7Zk", 5418273.5, 583_920_174_665_213, "Walnut-8fKp2vXw", "00-" + "a1c7" * 8 + "-" + "9be3" * 4 + "-01"
    ),
    Secret(
        "Rowan-v3Tm", 7290651.5, 901_746_352_818_477, "Acacia-5mRt9cYd", "00-" + "d25f" * 8 + "-" + "4e86" * 4 + "-01"
    ),
)
#: Requests of each client in a cell.
COUNT = 20
INFER = (JSON, BINARY, GRPC, STREAM)
BOTH = (BATCHED, ALONE)
IN_ENGINE = (GATEWAY, WORKER)
IN_PROCESSES = (GATEWAY, WORKER, PROCESSES)

#: The answers in which was searched, by way, protocol, batching and place.
SEARCHED: Counter[tuple[str, str, str, str]] = Counter()


@dataclass
class Serving:
    """A gateway that loads models when they are needed."""

    server: Server
    repository: Path
    loaded: set[str] = field(default_factory=set)
    read: int = 0  # lines of the log
    marks: Iterator[int] = field(default_factory=itertools.count)

    def load(self, name: str, write: Callable[[], Any]) -> str:
        """Returns the name of a model, which is loaded then."""
        if name not in self.loaded:
            write()
            url = f"{self.server.url}/v2/repository/models/{name}/load"
            try:
                urllib.request.urlopen(urllib.request.Request(url, b"{}", method="POST"), timeout=60).close()
            except urllib.error.HTTPError as refused:
                raise RuntimeError(f"{name}: {refused.read().decode()}") from refused
            self.loaded.add(name)
        return name

    def new_lines(self) -> list[str]:
        """Returns the lines of the log since the last call."""
        mark = f"mark-{next(self.marks)}"
        asked = urllib.request.Request(f"{self.server.url}/v2", headers={"X-Request-Id": mark})
        urllib.request.urlopen(asked, timeout=20).close()
        wait_until(lambda: any(f'"{mark}"' in line for line in self.server.log[self.read :]), 20)
        lines = self.server.log[self.read :]
        self.read += len(lines)
        return lines


@dataclass
class Cell:
    """A cell of the matrix, with its two clients."""

    way: str
    protocol: str
    batching: str
    place: str
    serving: Serving
    clients: tuple[Client, ...] = ()
    lines: list[str] = field(default_factory=list)  # of the log

    def read_log(self) -> list[str]:
        """Returns the lines of the log since the cell began."""
        self.lines += self.serving.new_lines()
        return self.lines

    @property
    def batched(self) -> bool:
        """Whether requests share runs."""
        return self.batching != ALONE

    def model(self, kind: str, write: Callable[[Path, str, str], Any], place: str = "", extra: str = "") -> str:
        """Returns the name of a model in ONNX, which is loaded. `write` gets the folder, the name and the config."""
        place = place or self.place
        name = f"{kind}_{self.batching}_{place}".replace(" ", "_")
        config = models.batching(self.batched) + (models.ISOLATED if place == WORKER else "") + extra
        repository = self.serving.repository
        return self.serving.load(name, lambda: write(repository, name, f'backend: "onnxruntime" {config}'))

    def python(self, kind: str, source: str, extra: str = "", **constants: Any) -> str:
        """Returns the name of a model in Python, which is loaded."""
        name = f"{kind}_{self.batching}"
        config = models.batching(self.batched) + extra

        def write() -> None:
            models.in_python(self.serving.repository, name, source, self.batched, config, **constants)

        return self.serving.load(name, write)

    def rows(self, place: str = "") -> str:
        """Returns a model that gives x [batch, n] back as y."""
        return self.model("rows", lambda *where: identity(*where[:2], "FP32", ("batch", "n"), where[2]), place)

    def echo(self) -> str:
        """Returns a model in Python that gives X back as Y, and says in TOLD what it was told of the request."""
        return self.python("echo", models.ECHO)

    async def ask_both(self, make: Callable[[Client, int], Asked], count: int = COUNT) -> None:
        """Sends so many requests of each client at once, in turns."""
        await together(client.ask(make(client, k)) for k in range(count) for client in self.clients)

    def search(self) -> None:
        """Looks for the secret of each client in what the other got, and for both in the log."""
        searched = 0
        for own, other in (self.clients, self.clients[::-1]):
            for answer in own.answers:
                found = other.secret.in_bytes(answer.raw)
                assert not found, f"{own.secret.name} got {found} of {other.secret.name}: {answer.raw[:2000]!r}"
                searched += 1
        errors = [(client.secret, answer.error) for client in self.clients for answer in client.answers if answer.error]
        assert not (wrong := in_log(self.read_log(), SECRETS, errors)), "\n".join(wrong)
        SEARCHED[self.way, self.protocol, self.batching, self.place] += searched


async def together(asked: Any) -> list[Any]:
    """Awaits all of them, and raises what the first that fails raises."""
    return list(await asyncio.gather(*asked))


Way = Callable[[Cell], Awaitable[None]]
WAYS: dict[str, Way] = {}
CELLS: list[tuple[str, str, str, str]] = []


def way(
    name: str,
    *,
    protocols: tuple[str, ...] = INFER,
    batchings: tuple[str, ...] = BOTH,
    places: tuple[str, ...] = IN_ENGINE,
) -> Callable[[Way], Way]:
    """Adds the cells of a way to the matrix."""

    def added(function: Way) -> Way:
        WAYS[name] = function
        CELLS.extend(itertools.product((name,), protocols, batchings, places))
        return function

    return added


def secret_rows(client: Client, k: int, rows: int = 1, width: int = 4) -> Array:
    """Returns numbers of a client: its secret everywhere, but for the number of the request."""
    x = np.full((rows, width), client.secret.number, np.float32)
    x[:, 0] = k
    return x


def id_of(client: Client, k: int) -> str:
    """Returns an id for two of three requests: those without one have the same envelope."""
    return f"{client.secret.name}-{k}" if k % 3 else ""


def told(batched: bool, *what: Any, rows: int = 1) -> Array:
    """Returns what a model in Python says in TOLD."""
    found = np.empty((rows, 1) if batched else (1,), np.object_)
    found[:] = json.dumps(what, sort_keys=True).encode()
    return found


@way("dynamic batches", places=IN_PROCESSES)
async def dynamic_batches(cell: Cell) -> None:
    model = cell.rows()
    before = cell.serving.server.metric("nv_inference_exec_count", model)

    def make(client: Client, k: int) -> Asked:
        x = secret_rows(client, k, rows=1 + k % 3, width=4 + k % 2)
        return Asked(model, {"x": x}, {"y": x}, id=id_of(client, k))

    await cell.ask_both(make)
    runs = cell.serving.server.metric("nv_inference_exec_count", model) - before
    assert (runs < 2 * COUNT) == cell.batched


@way("padded rows", batchings=(BATCHED,))
async def padded_rows(cell: Cell) -> None:
    padded = parameters(pad_inputs="tokens=7", pad_masks="mask=tokens")
    model = cell.model("tokens", tokens, extra=padded)

    def make(client: Client, k: int) -> Asked:
        x = np.full((1 + k % 2, 1 + k % 7), client.secret.whole, np.int64)
        x[:, -1] = k
        total = x.sum(axis=1, keepdims=True)
        expected = {"double": 2 * x, "total": total}
        return Asked(model, {"tokens": x}, expected, id=id_of(client, k), outputs={"double": {}, "total": {}})

    await cell.ask_both(make)


@way("ragged rows", batchings=(BATCHED,))
async def ragged_rows(cell: Cell) -> None:
    model = cell.model("scattered", scattered, extra=models.RAGGED)

    def make(client: Client, k: int) -> Asked:
        x = secret_rows(client, k, 1 + k % 5, 2)[None]
        return Asked(model, {"x": x}, {"y": 2 * x}, id=id_of(client, k), outputs={"y": {}})

    await cell.ask_both(make)


@way("strings")
async def strings(cell: Cell) -> None:
    model = cell.model("texts", lambda *where: identity(*where[:2], "BYTES", ("batch", "n"), where[2]))

    def make(client: Client, k: int) -> Asked:
        text = client.secret.text
        x = np.array([[f"{text}-{k}", text * (k % 4), "ä", text]], np.object_)
        x[0] = [element.encode() for element in x[0]]
        in_base64 = cell.protocol == JSON and k % 2 == 1
        if cell.protocol != JSON or in_base64:
            x[0, 2] = b"\xff\x00" + text.encode()
        return Asked(model, {"x": x}, {"y": x}, id=id_of(client, k), content="base64" if in_base64 else "")

    await cell.ask_both(make)


@way("batches of model.py", places=(PYTHON,))
async def batches_of_python(cell: Cell) -> None:
    model = cell.echo()
    await cell.ask_both(lambda client, k: echoed(cell, model, client, k))


def echoed(cell: Cell, model: str, client: Client, k: int) -> Asked:
    """Returns a request to a model that says what it was told."""
    x = secret_rows(client, k, 1 + k % 3, 3 + k % 2)
    given = {} if k % 4 == 0 else {"mine": client.secret.text, "number": client.secret.whole + k, "k": k}
    id = id_of(client, k)
    expected = {"Y": x, "TOLD": told(cell.batched, id, given, rows=len(x))}
    return Asked(model, {"X": x}, expected, id=id, parameters=given)


@way("arrays that model.py keeps", places=(PYTHON,))
async def kept_arrays(cell: Cell) -> None:
    model = cell.python("keeps", models.KEEPS, CALLED=cell.rows(GATEWAY))

    def make(client: Client, k: int) -> Asked:
        x = secret_rows(client, k, width=2 + k % 4)
        return Asked(model, {"X": x}, {"Y": x, "TOLD": told(cell.batched, 0)}, id=id_of(client, k))

    await cell.ask_both(make)


def place_in(id: int | str, step: int, steps: int) -> dict[str, Any]:
    """Returns the parameters of a step of a sequence."""
    return {"sequence_id": id, "sequence_start": step == 0, "sequence_end": step == steps - 1}


async def sequences(cell: Cell, texts: bool) -> None:
    """Three sequences of each client at once; then both use one id, whose states must not last."""
    strategy = cell.batching.split()[0]
    block = "direct { }" if strategy == "direct" else "oldest { max_candidate_sequences: 8 }"
    rows = cell.batching.endswith(BATCHED)
    name = f"memory_{'texts' if texts else 'numbers'}_{cell.batching}_{cell.place}".replace(" ", "_").replace(".", "_")
    repository = cell.serving.repository
    if cell.place == PYTHON:
        config = f"max_batch_size: {8 * rows} sequence_batching {{ {block} {models.IDLE} }}"
        model = cell.serving.load(name, lambda: models.in_python(repository, name, models.REMEMBERS, rows, config))
    else:
        extra = models.ISOLATED if cell.place == WORKER else ""
        model = cell.serving.load(name, lambda: models.memory(repository, name, block, rows, texts, extra))

    def step(x: Array, before: Array, id: int | str, at: int, steps: int) -> Asked:
        if cell.place == PYTHON:
            if not rows:
                x, before = x[None], before[None]
            expected = {"Y": before, "TOLD": told(rows, id)}
            return Asked(model, {"X": x}, expected, parameters=place_in(id, at, steps))
        whose = np.array([str(id).encode()], np.object_) if texts else np.array([id], np.uint64)
        expected = {"before": before, "whose": whose[None] if rows else whose}
        return Asked(model, {"x": x}, expected, parameters=place_in(id, at, steps))

    async def run(client: Client, id: int | str, steps: int, ends: bool = True) -> None:
        before = np.zeros((1, 4) if rows else 4, np.float32)
        for at in range(steps):
            x = secret_rows(client, at + 1)[0]
            x = x[None] if rows else x
            await client.ask(step(x, before, id, at, steps + (not ends)))
            before = x

    def own(client: Client, j: int) -> int | str:
        return f"{client.secret.name}-{j}" if texts else client.secret.whole + j

    shared: int | str = "shared" if texts else 77

    async def several(client: Client, ids: list[int | str]) -> None:
        for id in ids:
            await run(client, id, 6)

    names = {client: [own(client, j) for j in range(3)] for client in cell.clients}
    if rows:
        await together(several(client, [id]) for client, ids in names.items() for id in ids)
    else:  # there is room for one sequence, and answers of a stream come in the order of its requests
        await together(several(client, ids) for client, ids in names.items())
    for ends in (True, False, True):
        for client in cell.clients:
            await run(client, shared, 3, ends)


SEQUENCES = ("direct batched", "oldest batched", "direct alone")


@way("sequences with numbers as ids", batchings=SEQUENCES, places=(GATEWAY, WORKER, PYTHON))
async def sequences_of_numbers(cell: Cell) -> None:
    await sequences(cell, texts=False)


@way("sequences with texts as ids", batchings=SEQUENCES, places=(GATEWAY, WORKER, PYTHON))
async def sequences_of_texts(cell: Cell) -> None:
    await sequences(cell, texts=True)


@way("response cache", places=(GATEWAY, WORKER, PYTHON, PROCESSES))
async def response_cache(cell: Cell) -> None:
    """First the inputs are the same and all else isn't, then only the secrets differ."""
    server = cell.serving.server
    if cell.place == PYTHON:
        model = cell.python("cached_echo", models.ECHO, models.CACHE)
    else:
        cached = models.CACHE
        model = cell.model("cached", lambda *w: identity(*w[:2], "FP32", ("batch", "n"), w[2]), extra=cached)
    x_of = {JSON: 1, BINARY: 2, GRPC: 3, STREAM: 4}[cell.protocol]

    def make(client: Client, x: Array, k: int) -> Asked:
        own = {"mine": client.secret.text, "k": k} if k % 2 else {}
        id = id_of(client, k)
        named = f"{client.secret.name}-x{k}" if k % 5 else ""
        if cell.place == PYTHON:
            expected = {"Y": x, "TOLD": told(cell.batched, id, own)}
            return Asked(model, {"X": x}, expected, id=id, request_id=named, parameters=own)
        return Asked(model, {"x": x}, {"y": x}, id=id, request_id=named, parameters=own)

    same = np.full((1, 4), x_of, np.float32)
    before = server.metric("nv_cache_num_hits_per_model", model)
    for _ in range(2):
        await cell.ask_both(lambda client, k: make(client, same, k), COUNT // 2)
    for _ in range(2):
        await cell.ask_both(lambda client, k: make(client, secret_rows(client, k % 3 + 10 * x_of), k), COUNT // 2)
    assert server.metric("nv_cache_num_hits_per_model", model) > before


CANARY = b"\xc5"
LANE = 4096


@way("shared memory", places=IN_PROCESSES)
async def shared_memory(cell: Cell) -> None:
    """Each client has a file with four lanes, and in each an input, an output that is large or small, and a region that
    is too small for the answer."""
    model = cell.rows()
    server = cell.serving.server

    def call(name: str, action: str, body: dict[str, Any]) -> None:
        url = f"{server.url}/v2/systemsharedmemory/region/{name}/{action}"
        urllib.request.urlopen(
            urllib.request.Request(url, json.dumps(body).encode(), method="POST"), timeout=20
        ).close()

    def region(client: Client, size: int) -> str:
        return f"{client.secret.name}-{size}"

    async def lane(client: Client, file: SharedFile, at: int) -> None:
        begin = at * LANE
        for k in range(COUNT // 4):
            wide = k % 2 == 0
            x = secret_rows(client, k, 1, 200 if wide else 3)
            file.put(begin, x.tobytes() + CANARY * (LANE - x.nbytes))
            given = {"shared_memory_region": region(client, 8 * LANE), "shared_memory_byte_size": x.nbytes}
            places = {"x": {**given, "shared_memory_offset": begin}}
            wanted = {"shared_memory_region": region(client, 4 * LANE), "shared_memory_byte_size": x.nbytes}
            inside = {"y": {**wanted, "shared_memory_offset": begin + 1024}}
            await client.ask(Asked(model, {"x": x}, places=places, outputs=inside, id=id_of(client, k)))
            rest = LANE - 1024 - x.nbytes
            assert file.get(begin + 1024, LANE - 1024) == x.tobytes() + CANARY * rest
            file.put(begin + 1024, CANARY * 1024)
            outside = {"y": {**wanted, "shared_memory_byte_size": x.nbytes - 1, "shared_memory_offset": begin + 1024}}
            small = Asked(model, {"x": x}, places=places, outputs=outside, error="bytes", id=f"{client.secret.name}-s")
            await client.ask(small)
            assert file.get(begin + 1024, LANE - 1024) == CANARY * (LANE - 1024)

    empty = CANARY * (8 * LANE)
    with shared_file(empty) as first, shared_file(empty) as second:
        files = dict(zip(cell.clients, (first, second), strict=True))
        for client, file in files.items():
            for size in (8 * LANE, 4 * LANE):
                call(region(client, size), "register", {"key": file.key, "offset": 0, "byte_size": size})
        try:
            await together(lane(client, file, at) for at in range(4) for client, file in files.items())
        finally:
            for client, size in itertools.product(files, (8 * LANE, 4 * LANE)):
                call(region(client, size), "unregister", {})
        for own in cell.clients:
            own.answers.append(Answer(files[own].get(0, 8 * LANE)))
            assert own.secret.in_bytes(own.answers[-1].raw)


@way("prepared kernels")
async def prepared_kernels(cell: Cell) -> None:
    """Each client has a model of the same op, with its secret as a constant."""

    def model(client: Client) -> tuple[str, Array]:
        index = cell.clients.index(client)
        weights = np.array([client.secret.number, 1 + index, client.secret.number, 2], np.float32)
        name = cell.model(f"columns{index}", lambda *where: models.columns(*where, weights.tolist()))
        return name, weights

    owned = {client: model(client) for client in cell.clients}

    def make(client: Client, k: int) -> Asked:
        name, weights = owned[client]
        x = np.array([[1, k, 2, k]], np.float32)
        return Asked(name, {"x": x}, {"y": x * weights}, id=id_of(client, k))

    await cell.ask_both(make)


@way("generate", protocols=(GENERATE, EVENTS), places=(GATEWAY, WORKER, PYTHON, PROCESSES))
async def generate(cell: Cell) -> None:
    """Inputs, ids and parameters come beside "parameters" or in it."""
    model = cell.echo() if cell.place == PYTHON else cell.rows()

    def make(client: Client, k: int) -> Asked:
        x = secret_rows(client, k, 1, 3 + k % 2)
        given = x[0] if cell.batched else x
        if cell.place != PYTHON:
            return Asked(model, {"x": given}, {"y": x}, id=id_of(client, k), parameters={"mine": client.secret.text})
        asked = echoed(cell, model, client, k)
        asked.inputs, asked.expected["Y"] = {"X": given}, x
        asked.expected["TOLD"] = told(cell.batched, asked.id, asked.parameters)
        return asked

    await cell.ask_both(make)


@way("answers shorter than the one before", places=(GATEWAY, WORKER, PYTHON))
async def shorter_answers(cell: Cell) -> None:
    model = cell.echo() if cell.place == PYTHON else cell.rows()

    def make(client: Client, k: int) -> Asked:
        long = (k + cell.clients.index(client)) % 2
        x = secret_rows(client, k, 1, 700 if long else 1 + k % 3)
        if cell.place != PYTHON:
            return Asked(model, {"x": x}, {"y": x}, id=id_of(client, k))
        id = id_of(client, k)
        return Asked(model, {"X": x}, {"Y": x, "TOLD": told(cell.batched, id, {})}, id=id)

    for k in range(COUNT):  # one after the other, so that each finds the memory of the other's
        for client in cell.clients:
            await client.ask(make(client, k))


@way("decoupled", protocols=(STREAM, EVENTS), places=(GATEWAY, WORKER, PYTHON))
async def decoupled(cell: Cell) -> None:
    """One client leaves after the first response to some requests while the other goes on. Then the response to a
    request of one client is sent, too late, while the other's is run."""
    if cell.place == PYTHON:
        model = cell.python("sends", models.SENDS, models.DECOUPLED)
    else:
        extra = models.DECOUPLED
        model = cell.model("each", lambda *w: identity(*w[:2], "FP32", ("batch", "n"), w[2]), extra=extra)

    async def late(client: Client) -> None:
        x = secret_rows(client, 1, 1, 3)
        given = x[0] if cell.batched and cell.protocol == EVENTS else x
        asked = Asked(model, {"X": given}, error="too late", parameters={"late": True}, id=f"{client.secret.name}-late")
        if cell.protocol == EVENTS:
            await client.ask(asked)
            return
        async for answer in client.responses(asked):
            checked(asked, answer)

    async def one(client: Client, k: int) -> None:
        leaves = client is cell.clients[k // 2 % 2] and k % 2 == 1
        x = secret_rows(client, k, 1, 3)
        id = id_of(client, k)
        if cell.place == PYTHON:
            given = x[0] if cell.batched and cell.protocol == EVENTS else x
            asked = Asked(model, {"X": given}, {"Y": x, "TOLD": told(cell.batched, id, {})}, id=id)
            parts = [{"Y": x + i, "TOLD": asked.expected["TOLD"]} for i in range(3)]
        elif cell.batched:  # a response for each entry of the row
            given = x[0] if cell.protocol == EVENTS else x
            asked = Asked(model, {"x": given}, {"y": x[:, :1]}, id=id)
            parts = [{"y": x[:, i : i + 1]} for i in range(3)]
        else:  # a response for each row
            x = np.concatenate([x, x, x])
            asked = Asked(model, {"x": x}, {"y": x[:1]}, id=id)
            parts = [{"y": x[i : i + 1]} for i in range(3)]
        asked.request_id = f"{client.secret.name}-x{k}"
        came = client.responses(asked)
        for part in parts[:1] if leaves else parts:
            asked.expected = part
            checked(asked, await anext(came))
        if not leaves:
            assert await anext(came, None) is None
        await came.aclose()  # type: ignore[attr-defined]

    await together(one(client, k) for k in range(COUNT) for client in cell.clients)
    if cell.place == PYTHON:
        for k in (0, 2, 4):
            for client, other in (cell.clients, cell.clients[::-1]):
                await late(client)
                await one(other, k)


@way("calls between models", places=(GATEWAY, WORKER, PYTHON))
async def calls_between_models(cell: Cell) -> None:
    """A model.py calls a model at each of the places, one call after the other and two at once."""
    if cell.place == PYTHON:
        called, names = cell.echo(), ("X", "Y", "TOLD")
    else:
        called, names = cell.rows(), ("x", "y")
    model = cell.python(f"calls_{cell.place.replace('.', '_')}", models.CALLS, CALLED=called, NAMES=names)

    def make(client: Client, k: int) -> Asked:
        x = secret_rows(client, k)
        own = {"times": 1 + k % 2, "mine": client.secret.text}
        id = id_of(client, k)
        text = told(cell.batched, id, own) if cell.place == PYTHON else told(cell.batched, id)
        return Asked(model, {"X": x}, {"Y": x, "TOLD": text}, id=id, parameters=own)

    await cell.ask_both(make)


@way("ensembles", places=(GATEWAY, WORKER, PYTHON))
async def ensembles(cell: Cell) -> None:
    """Two steps; the second is a model.py that says what it was told."""
    steps = [{"model": cell.rows(GATEWAY if cell.place == PYTHON else cell.place), "inputs": {"x": "X"}}]
    if cell.place == PYTHON:
        steps += [{"model": cell.echo(), "inputs": {"X": "between"}, "outputs": {"Y": "Y", "TOLD": "TOLD"}}]
    else:
        steps += [{"model": cell.rows(), "inputs": {"x": "between"}, "outputs": {"y": "Y"}}]
    steps[0]["outputs"] = {"y": "between"}
    name = f"ensemble_{cell.batching}_{cell.place}".replace(".", "_")
    repository = cell.serving.repository
    model = cell.serving.load(
        name, lambda: models.ensemble(repository, name, steps, cell.batched, has_texts=cell.place == PYTHON)
    )

    def make(client: Client, k: int) -> Asked:
        asked = echoed(cell, model, client, k)
        if cell.place != PYTHON:
            del asked.expected["TOLD"]
        return asked

    await cell.ask_both(make)


@way("pipelined requests", protocols=(JSON, BINARY))
async def pipelined(cell: Cell) -> None:
    """The requests of both clients follow one another on one connection, as a proxy sends them: some with the head that
    came before, some with names."""
    model = cell.rows()
    reader, writer = await asyncio.open_connection("127.0.0.1", cell.serving.server.http)
    asked: list[tuple[Client, Asked]] = []
    for k in range(COUNT):
        for client in cell.clients:
            x = secret_rows(client, k % 10, 1, 4)
            named = {} if k < COUNT // 2 else {"id": id_of(client, k), "request_id": f"{client.secret.name}-x{k}"}
            asked.append((client, Asked(model, {"x": x}, {"y": x}, **named)))
    writer.write(b"".join(http_request(request, cell.protocol) for _, request in asked))
    for client, request in asked:
        answer = await read_http(reader, request)
        client.answers.append(answer)
        checked(request, answer)
        assert request.request_id == answer.headers.get("x-request-id", "")
    writer.close()


@way("plans of repeated requests", places=IN_PROCESSES)
async def plans(cell: Cell) -> None:
    """Requests of one shape whose names, ids, parameters, outputs and values differ."""
    model = cell.model("pair", models.pair)

    def make(client: Client, k: int) -> Asked:
        x = secret_rows(client, k)
        word = np.array([[f"{client.secret.text}-{k % 10}".encode(), client.secret.text.encode()]], np.object_)
        inputs = {"x": x, "word": word} if k % 2 else {"word": word, "x": x}
        both: dict[str, Array] = {"y": x, "same": word}
        names = (("y", "same"), ("same",), ("y",))[k % 3]
        own = {"mine": client.secret.text} if k % 4 == 1 else {}
        id = f"{client.secret.name}-{k}" if k % 5 < 2 else ""
        outputs: dict[str, dict[str, Any]] = {name: {} for name in names} if k % 3 else {}
        return Asked(model, inputs, {n: both[n] for n in names}, id=id, parameters=own, outputs=outputs)

    for _ in range(2):  # the second time their envelopes are known
        await cell.ask_both(make)


@way("lists of a type", protocols=(GRPC, STREAM))
async def typed_lists(cell: Cell) -> None:
    """Elements in `contents` in place of bytes, fewer and more than in the request before."""
    model = cell.model("pair", models.pair)

    def make(client: Client, k: int) -> Asked:
        x = secret_rows(client, k, width=1 + k % 5)
        word = np.array([[f"{client.secret.text}-{k}".encode() * (i % 3) for i in range(1 + k % 4)]], np.object_)
        return Asked(model, {"x": x, "word": word}, {"y": x, "same": word}, id=id_of(client, k), typed=True)

    await cell.ask_both(make)


@way("compressed bodies", protocols=(JSON, BINARY))
async def compressed(cell: Cell) -> None:
    model = cell.model("pair", models.pair)

    def make(client: Client, k: int) -> Asked:
        x = secret_rows(client, k, width=1 + 300 * (k % 3))
        word = np.array([[f"{client.secret.text}-{k}".encode()]], np.object_)
        return Asked(model, {"x": x, "word": word}, {"y": x, "same": word}, id=id_of(client, k), compressed=True)

    await cell.ask_both(make)


@way("values and files", protocols=(PREDICT,), places=(GATEWAY, WORKER, PYTHON, PROCESSES))
async def values_and_files(cell: Cell) -> None:
    """Every second request is a file, of which some are none that the model can read, where a batch has statuses."""
    model = cell.echo() if cell.place == PYTHON else cell.rows()
    files = cell.model("numbers", models.numbers) if cell.batched and cell.place != PYTHON else ""
    named, given = ("X", "Y") if cell.place == PYTHON else ("x", "y")

    def make(client: Client, k: int) -> Asked:
        request_id = f"{client.secret.name}-x{k}"
        if files and k % 4 == 1:
            return Asked(files, {}, error="no integer", request_id=request_id, file=client.secret.text.encode())
        if files and k % 2:
            whole = client.secret.whole + k
            expected = {"value": np.array([whole]), "status": np.zeros(1, np.int32)}
            return Asked(files, {}, expected, request_id=request_id, file=str(whole).encode())
        x = secret_rows(client, k, width=3 + k % 2)
        expected = {given: x} | ({"TOLD": told(cell.batched, "", {})} if cell.place == PYTHON else {})
        return Asked(model, {named: x[0] if cell.batched else x}, expected, request_id=request_id)

    await cell.ask_both(make)


@way("several files of a request", protocols=(PREDICT,), batchings=(BATCHED,), places=IN_PROCESSES)
async def several_files(cell: Cell) -> None:
    """Each request has four files, which share batches with those of others. One is none that the model can read."""
    model = cell.model("numbers", models.numbers)

    def make(client: Client, k: int) -> Asked:
        wholes = [client.secret.whole + 4 * k + j for j in range(4)]
        files = [str(whole).encode() for whole in wholes]
        files[k % 4] = client.secret.text.encode()
        del wholes[k % 4]
        expected = {"value": np.array(wholes), "status": np.zeros(3, np.int32), "broken": np.array(1)}
        return Asked(model, {}, expected, request_id=f"{client.secret.name}-f{k}", files=tuple(files))

    await cell.ask_both(make)


@way("statuses of rows", batchings=(BATCHED,))
async def row_statuses(cell: Cell) -> None:
    model = cell.model("numbers", models.numbers)

    def make(client: Client, k: int) -> Asked:
        bad = (k + cell.clients.index(client)) % 2
        text = client.secret.text if bad else str(client.secret.whole + k)
        x = np.frombuffer(text.encode(), np.uint8)[None]
        id = f"{client.secret.name}-{k}"
        if bad:
            return Asked(model, {"data": x}, error="no integer", id=id)
        expected = {"value": np.array([[client.secret.whole + k]]), "status": np.zeros((1, 1), np.int32)}
        return Asked(model, {"data": x}, expected, id=id)

    await cell.ask_both(make)


@way("errors of a batch")
async def errors_of_a_batch(cell: Cell) -> None:
    """The engine refuses the run of a batch, and names an index of one client."""
    model = cell.model("picking", models.picking)

    def make(client: Client, k: int) -> Asked:
        bad = (k + cell.clients.index(client)) % 2
        x, i = np.full((1, 1), client.secret.whole + k), np.full((1, 1), client.secret.whole if bad else k % 8)
        id = f"{client.secret.name}-{k}"
        if bad:
            return Asked(model, {"x": x, "i": i}, error=str(client.secret.whole), id=id)
        return Asked(model, {"x": x, "i": i}, {"y": x, "z": i}, id=id)

    await cell.ask_both(make)


@way("errors of model.py", places=(PYTHON,))
async def errors_of_python(cell: Cell) -> None:
    model = cell.python("fails", models.FAILS)

    def make(client: Client, k: int) -> Asked:
        asked = echoed(cell, model, client, k)
        asked.id = f"{client.secret.name}-{k}"
        how = ({}, {"fails": True}, {"raises": True}, {})[(k + 2 * cell.clients.index(client)) % 4]
        asked.parameters = {"text": client.secret.text, **how}
        asked.expected["TOLD"] = told(cell.batched, asked.id, asked.parameters, rows=len(asked.inputs["X"]))
        asked.error = f"{client.secret.text} of [{float(k)}, {client.secret.number}" if how else ""
        return asked

    await cell.ask_both(make)


@way("classification")
async def classification(cell: Cell) -> None:
    """Each client has a model with its own labels, and both share one."""
    labels = ("shared", *[client.secret.text for client in cell.clients])
    stated = f"""input [ {models.tensor("x", "FP32", *([4] if cell.batched else [1, 4]))} ] output [
        {{ name: "y" data_type: TYPE_FP32 dims: {[4] if cell.batched else [1, 4]} label_filename: "labels.txt" }} ]"""

    def write(index: int, folder: Path, name: str, config: str) -> None:
        shape: tuple[Any, ...] = ("batch", 4) if cell.batched else (1, 4)
        place = identity(folder, name, "FP32", shape, config)
        (place / "labels.txt").write_text("".join(f"{labels[index]}{i}\n" for i in range(4)))

    names = [cell.model(f"labels{i}", lambda *where, i=i: write(i, *where), extra=stated) for i in range(3)]

    def make(client: Client, k: int) -> Asked:
        index = (0, 1 + cell.clients.index(client))[k % 2]
        x = np.array([[k, client.secret.number, -1, 0.5]], np.float32)
        count = 1 + k % 3
        order = np.argsort(-x[0], kind="stable")[:count]
        classes = [f"{x[0, i]:f}:{i}:{labels[index]}{i}".encode() for i in order]
        found = np.array([classes] if cell.batched else classes, np.object_)
        return Asked(
            names[index], {"x": x}, {"y": found}, id=id_of(client, k), outputs={"y": {"classification": count}}
        )

    await cell.ask_both(make)


@way("ids and parameters in the log", places=(GATEWAY, WORKER, PYTHON))
async def ids_in_the_log(cell: Cell) -> None:
    """Each line of the log has the names of one request, also those of requests that fail."""
    model = cell.echo() if cell.place == PYTHON else cell.rows()
    named = "X" if cell.place == PYTHON else "x"

    def make(client: Client, k: int) -> Asked:
        x = secret_rows(client, k)
        own = {"mine": client.secret.text}
        id, request_id = f"{client.secret.name}-{k}", f"{client.secret.name}-x{k}"
        names: dict[str, Any] = {"id": id, "request_id": request_id, "parameters": own}
        if k % 4 == 0:
            return Asked(model, {named: x, "none": x}, error="none", **names)
        if k % 4 == 1:
            return Asked(f"{model}_none", {named: x}, error="unknown model", **names)
        expected = {"Y": x, "TOLD": told(cell.batched, id, own)} if cell.place == PYTHON else {"y": x}
        return Asked(model, {named: x}, expected, traceparent=client.secret.trace, **names)

    await cell.ask_both(make)
    lines = [json.loads(line) for line in cell.read_log() if '"opgate.access"' in line]
    if cell.protocol != STREAM:  # whose calls are one line
        for client in cell.clients:
            served = {line.get("id") for line in lines if line.get("traceparent") == client.secret.trace}
            assert served == {f"{client.secret.name}-{k}" for k in range(COUNT) if k % 4 > 1}


@way("outputs that an op does not fill")
async def unfilled_outputs(cell: Cell) -> None:
    """One client has many boxes and the other few: the rest of a row is zeros."""
    model = cell.model("boxes", models.boxes)

    def make(client: Client, k: int) -> Asked:
        count = models.MOST if (k + cell.clients.index(client)) % 2 else 1 + k % 3
        rows = range(1 + k % 2)
        boxes = np.zeros((len(rows), models.MOST, 4), np.float32)
        scores = np.zeros((len(rows), 1, models.MOST), np.float32)
        for at in range(count):
            boxes[:, at] = [client.secret.number, 100 * at, client.secret.number + 50, 100 * at + 50]
            scores[:, 0, at] = 1 - at / 64
        expected = {"kept": boxes.copy(), "kept_scores": scores[:, 0].copy()}
        return Asked(
            model,
            {"boxes": boxes, "scores": scores},
            expected,
            id=id_of(client, k),
            outputs={key: {} for key in expected},
        )

    await cell.ask_both(make)


# The tests


def run_cell(cell: Cell, work: Callable[[Cell], Awaitable[None]]) -> None:
    """Runs a cell with two clients, and searches in all that came."""

    async def run() -> None:
        cell.clients = tuple(Client(cell.serving.server, secret, cell.protocol) for secret in SECRETS)
        try:
            await asyncio.wait_for(_as_coroutine(work(cell)), 15)
        finally:
            await together(client.close() for client in cell.clients)

    try:
        asyncio.run(run())
    except BaseException:
        cell.serving.new_lines()  # they are of this cell
        raise
    cell.search()


async def _as_coroutine(work: Awaitable[None]) -> None:
    await work


@contextmanager
def served(folder: Path, libraries: tuple[Path, ...], *options: str) -> Iterator[Serving]:
    """Runs a gateway that logs all that it can."""
    env = {
        "OPGATE_OPS_PATH": ":".join(str(library.parent) for library in libraries),
        "OPGATE_ACCESS_LOG": "1",
        "OPGATE_LOG_LEVEL": "debug",
    }
    with running(folder, "--model-control-mode", "explicit", *options, env=env) as server:
        yield Serving(server, folder)
        # No metric is ever taken back, so those of all cells are here.
        metrics = server.get("/metrics").encode()
        assert not [found for secret in SECRETS for found in secret.in_bytes(metrics)]


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory, library: Path, fixture_library: Path) -> Iterator[Serving]:
    """A gateway."""
    with served(tmp_path_factory.mktemp("others"), (fixture_library, library), "--allow-python-models") as gateway:
        yield gateway


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory, library: Path, fixture_library: Path) -> Iterator[Serving]:
    """A gateway of two processes."""
    with served(tmp_path_factory.mktemp("processes"), (fixture_library, library), "--workers", "2") as gateway:
        yield gateway


def chosen(number: int, name: str) -> list[tuple[str, str, str, str]]:
    """Returns the cells of a way in which each of its protocols, and each pair of a batching and a place, is once."""
    cells = [cell for cell in CELLS if cell[0] == name]
    protocols = list(dict.fromkeys(cell[1] for cell in cells))
    pairs = list(dict.fromkeys(cell[2:] for cell in cells))
    fewer = min(len(protocols), len(pairs))
    return [c for c in cells if (protocols.index(c[1]) + number) % fewer == pairs.index(c[2:]) % fewer]


#: About a third of the cells. `make test-all` runs all.
CHOSEN = CELLS if ALL else [cell for number, name in enumerate(WAYS) for cell in chosen(number, name)]


@pytest.mark.parametrize(("name", "protocol", "batching", "place"), CHOSEN, ids=["-".join(cell) for cell in CHOSEN])
def test_nobody_gets_anothers(
    request: pytest.FixtureRequest, name: str, protocol: str, batching: str, place: str
) -> None:
    serving = request.getfixturevalue("two_processes" if place == PROCESSES else "serving")
    run_cell(Cell(name, protocol, batching, place, serving), WAYS[name])


@pytest.mark.parametrize("secret", SECRETS, ids=lambda secret: secret.name)
def test_the_search_finds_each_form(secret: Secret) -> None:
    assert not secret.in_bytes(bytes(range(256)) * 9)
    for form in secret.forms.values():
        assert secret.in_bytes(b"\0x" + form + b"y\xff")
    (other,) = (one for one in SECRETS if one is not secret)
    assert not [form for form in secret.forms.values() if other.in_bytes(form)]
    for at in range(5):
        assert secret.in_bytes(base64.b64encode(b"ab-1."[:at] + secret.text.encode() + b"c"))


@pytest.mark.parametrize("how", ["numbers", "texts", "error", "log"])
@pytest.mark.parametrize("protocol", INFER)
def test_a_model_that_leaks_is_caught(serving: Serving, protocol: str, how: str) -> None:
    """The same functions, which pass everywhere else, find what this model gives from one client to the next."""

    async def leaks(cell: Cell) -> None:
        model = cell.python("leaks", models.LEAKS)
        for k in range(3):
            for client in cell.clients:
                asked = Asked(model, {"X": secret_rows(client, k)}, id=f"{client.secret.name}-{k}")
                asked.parameters = {"how": how}
                with pytest.raises(AssertionError):
                    await client.ask(asked)

    cell = Cell("leaks", protocol, ALONE, PYTHON, serving)
    said = {"numbers": "as (<f|text)", "texts": "the name", "error": "as text", "log": "in the log"}[how]
    with pytest.raises(AssertionError, match=said):
        run_cell(cell, leaks)
    serving.new_lines()


def table() -> str:
    """Returns the matrix: in how many answers was searched, with requests that share runs and with others."""
    protocols = (*INFER, GENERATE, EVENTS, PREDICT)
    lines = ["| way | in | " + " | ".join(protocols) + " |", "|---|---|" + "---|" * len(protocols)]
    for name, place in dict.fromkeys((name, place) for name, _, _, place in CELLS):
        counts = [
            " + ".join(f"{SEARCHED[cell]}" for cell in CELLS if (cell[0], cell[1], cell[3]) == (name, protocol, place))
            for protocol in protocols
        ]
        lines.append(f"| {name} | {place} | " + " | ".join(counts) + " |")
    return "\n".join(lines)


def main() -> int:
    """Runs all cells and prints the matrix."""
    status = pytest.main([__file__, "-q"])
    # What pytest has imported is another module than this one, __main__.
    print(importlib.import_module("tests.system.test_others_data").table())
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
