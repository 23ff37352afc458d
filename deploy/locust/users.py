"""The users. Each class sends one kind of request to the gateway and checks every answer."""

from __future__ import annotations

import itertools
import json
import random
import struct
import time
from collections.abc import Callable, Mapping
from typing import ClassVar
from urllib.parse import urlsplit

import grpc
import grpc.experimental.gevent
from arrivals import Arrivals, Tally
from locust import FastHttpUser, User, task
from locust.contrib.fasthttp import FastResponse
from locust.env import Environment
from locust.exception import CatchResponseError, StopTest, StopUser
from pictures import Picture
from tritonclient.grpc import service_pb2, service_pb2_grpc

# locust has made the standard library's sockets and threads those of gevent. This does it for gRPC.
grpc.experimental.gevent.init_gevent()

WRONG = "y is not 2a + b"


class LoadUser(User):
    """Sends its next request when it is due in an open loop, otherwise as soon as it has the answer of the last one."""

    abstract = True
    #: The requests of all users of this process, in an open loop.
    tally: ClassVar[Tally] = Tally()

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        rate = environment.parsed_options.user_arrival_rate
        self._arrivals = Arrivals(rate, time.perf_counter()) if rate else None
        self._stopped = False

    def on_start(self) -> None:
        if self._arrivals:
            self.wait()

    def on_stop(self) -> None:
        if self._arrivals:
            self.tally.dropped += self._arrivals.drop(time.perf_counter())

    def stop(self, force: bool = False) -> bool:
        self._stopped = True
        return super().stop(force)

    def wait_time(self) -> float:
        return self._arrivals.wait(time.perf_counter()) if self._arrivals else 0.0

    @task
    def next_request(self) -> None:
        if self._stopped:  # woke up before locust ended its sleep, and a new request would be cut off
            raise StopUser
        lateness = 0.0
        if self._arrivals:
            lateness = self._arrivals.start(time.perf_counter())
            self.tally.start(lateness)
        self.send(1000 * lateness)

    def send(self, late_ms: float) -> None:
        """Sends a request and reports it to locust. The time to report is longer by so many milliseconds."""
        raise NotImplementedError


class HttpLoadUser(LoadUser, FastHttpUser):
    """Sends requests over HTTP."""

    abstract = True

    def __init__(self, environment: Environment) -> None:
        self.network_timeout = self.connection_timeout = environment.parsed_options.request_timeout
        super().__init__(environment)

    def post(
        self,
        path: str,
        name: str,
        body: bytes,
        headers: Mapping[str, str],
        problem_of: Callable[[FastResponse], str | None],
        late_ms: float,
    ) -> None:
        """Posts a body. The request fails if the status is not 200 or if `problem_of` names a problem of the answer."""
        with self.client.post(path, data=body, headers=headers, name=name, catch_response=True) as answer:
            answer.request_meta["response_time"] += late_ms
            if answer.status_code not in (0, 200):
                answer.failure(f"HTTP {answer.status_code}: {(answer.text or '')[:200]}")
            elif not answer.request_meta["exception"]:
                try:
                    problem = problem_of(answer)
                except (ValueError, TypeError, LookupError) as error:
                    problem = f"the answer can't be read: {error!r}"
                if problem:
                    answer.failure(problem)


def operands() -> tuple[list[float], list[float], list[float]]:
    """Returns inputs a and b of my_add and its output 2a + b, four random numbers each that FP32 has exactly."""
    a, b = ([float(random.randrange(1 << 16)) for _ in range(4)] for _ in "ab")
    return a, b, [2 * x + y for x, y in zip(a, b, strict=True)]


def holds(raw: bytes, y: list[float]) -> bool:
    """Says whether the bytes of a raw FP32 tensor are these numbers."""
    return raw == struct.pack("<4f", *y)


class JsonUser(HttpLoadUser):
    """Sends JSON tensors to my_add."""

    def send(self, late_ms: float) -> None:
        a, b, y = operands()
        inputs = [
            {"name": name, "shape": [1, 4], "datatype": "FP32", "data": data}
            for name, data in zip("ab", (a, b), strict=True)
        ]

        def problem_of(answer: FastResponse) -> str | None:
            (output,) = json.loads(answer.content)["outputs"]
            return None if output["name"] == "y" and output["data"] == y else WRONG

        body = json.dumps({"inputs": inputs}).encode()
        headers = {"Content-Type": "application/json"}
        self.post("/v2/models/my_add/infer", "my_add, JSON", body, headers, problem_of, late_ms)


class BinaryUser(HttpLoadUser):
    """Sends binary tensors to my_add, with Triton's binary tensor extension of KServe v2."""

    HEAD = json.dumps(
        {
            "inputs": [
                {"name": name, "shape": [1, 4], "datatype": "FP32", "parameters": {"binary_data_size": 16}}
                for name in "ab"
            ],
            "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
        }
    ).encode()
    LENGTH = "Inference-Header-Content-Length"

    def send(self, late_ms: float) -> None:
        a, b, y = operands()

        def problem_of(answer: FastResponse) -> str | None:
            length = int(answer.headers[self.LENGTH])
            (output,) = json.loads(answer.content[:length])["outputs"]
            return None if output["name"] == "y" and holds(answer.content[length:], y) else WRONG

        body = self.HEAD + struct.pack("<8f", *a, *b)
        headers = {"Content-Type": "application/octet-stream", self.LENGTH: str(len(self.HEAD))}
        self.post("/v2/models/my_add/infer", "my_add, binary tensors", body, headers, problem_of, late_ms)


class PictureUser(HttpLoadUser):
    """Sends JPEGs of several sizes to the digit detector, one size after the other."""

    #: locustfile.py fills this in when locust starts.
    pictures: ClassVar[list[Picture]]

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._turns = itertools.cycle(random.sample(self.pictures, len(self.pictures)))

    def send(self, late_ms: float) -> None:
        picture = next(self._turns)
        self.post(
            "/predict/digit_detector",
            f"digit_detector, {picture.size} picture",
            picture.jpeg,
            {"Content-Type": "image/jpeg"},
            lambda answer: picture.problem(json.loads(answer.content)["predictions"]),
            late_ms,
        )


class GrpcUser(LoadUser):
    """Sends raw tensors to my_add over gRPC. Each user has a connection of its own."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._timeout = environment.parsed_options.request_timeout
        target = environment.parsed_options.grpc_host or self._default_target()
        self._channel = grpc.insecure_channel(target, options=[("grpc.use_local_subchannel_pool", 1)])
        self._infer = service_pb2_grpc.GRPCInferenceServiceStub(self._channel).ModelInfer

    def _default_target(self) -> str:
        """Returns port 8001 of the host of --host. Ends the test if there is no --host."""
        if not self.host or not (name := urlsplit(self.host).hostname):
            raise StopTest("GrpcUser needs --grpc-host HOST:PORT or --host http://HOST:PORT")
        return f"[{name}]:8001" if ":" in name else f"{name}:8001"

    def on_stop(self) -> None:
        super().on_stop()
        self._channel.close()

    def send(self, late_ms: float) -> None:
        a, b, y = operands()
        request = service_pb2.ModelInferRequest(model_name="my_add")
        for name, data in zip("ab", (a, b), strict=True):
            request.inputs.add(name=name, datatype="FP32", shape=[1, 4])
            request.raw_input_contents.append(struct.pack("<4f", *data))
        begin = time.perf_counter()
        answer = None
        try:
            answer = self._infer(request, timeout=self._timeout)
        except grpc.RpcError as error:
            problem = f"gRPC {error.code().name}: {error.details()}"
        elapsed_ms = 1000 * (time.perf_counter() - begin)
        if answer is not None:
            raw = b"".join(answer.raw_output_contents)
            problem = None if [o.name for o in answer.outputs] == ["y"] and holds(raw, y) else WRONG
        self.environment.events.request.fire(
            request_type="gRPC",
            name="my_add, gRPC",
            response_time=elapsed_ms + late_ms,
            response_length=answer.ByteSize() if answer is not None else 0,
            exception=CatchResponseError(problem) if problem else None,
            context=self.context(),
        )
