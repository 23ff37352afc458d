"""The health service and server reflection, by the clients that their authors wrote."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from opgate.service.rpc import health, reflection
from opgate.service.rpc.server import Server
from tests.rpc.test_server import channel, error_of, run

SERVING, NOT_SERVING, UNKNOWN = (
    health_pb2.HealthCheckResponse.SERVING,
    health_pb2.HealthCheckResponse.NOT_SERVING,
    health_pb2.HealthCheckResponse.SERVICE_UNKNOWN,
)


@contextlib.asynccontextmanager
async def serving():
    serves = {"now": True}
    states = health.Health(("", "other"), lambda: serves["now"])
    server = Server({**states.methods(), **reflection.methods([health.SERVICE])})
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    await server.start(listener)
    server.port, server.health, server.serves = listener.getsockname()[1], states, serves
    yield server
    await server.stop(1)


def ask(service=""):
    return health_pb2.HealthCheckRequest(service=service)


def test_check():
    async def main():
        async with serving() as server, channel(server) as client:
            stub = health_pb2_grpc.HealthStub(client)
            assert (await stub.Check(ask())).status == SERVING
            assert (await stub.Check(ask("other"))).status == SERVING
            assert await error_of(stub.Check(ask("none"))) == ("NOT_FOUND", "there is no service 'none'")
            server.serves["now"] = False  # nobody tells the service, it looks
            assert (await stub.Check(ask("other"))).status == NOT_SERVING
            garbage = client.unary_unary("/grpc.health.v1.Health/Check")(b"\xff\xff")
            assert await error_of(garbage) == ("INVALID_ARGUMENT", "the message is not a HealthCheckRequest")

    run(main())


def test_watch():
    async def main():
        async with serving() as server, channel(server) as client:
            stub = health_pb2_grpc.HealthStub(client)
            watches = [stub.Watch(ask(name)) for name in ("", "other", "other", "none")]
            assert [(await watch.read()).status for watch in watches] == [SERVING, SERVING, SERVING, UNKNOWN]
            server.health.look()  # no news
            watches[1].cancel()
            server.serves["now"] = False
            assert (await watches[2].read()).status == NOT_SERVING
            server.serves["now"] = True
            server.health.look()
            assert (await watches[2].read()).status == SERVING
            assert [(await watches[0].read()).status for _ in range(2)] == [NOT_SERVING, SERVING]
            server.health.close()
            for watch in (watches[0], watches[2]):
                assert (await watch.read()).status == NOT_SERVING
                assert await error_of(watch.read()) == ("UNAVAILABLE", "the server stops")
            assert (await stub.Check(ask())).status == NOT_SERVING

    run(main())


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection(version):
    async def main():
        async with serving() as server, channel(server) as client:
            talk = client.stream_stream(
                f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
                reflection_pb2.ServerReflectionRequest.SerializeToString,
                reflection_pb2.ServerReflectionResponse.FromString,
            )()
            await talk.write(reflection_pb2.ServerReflectionRequest(list_services=""))
            names = {service.name for service in (await talk.read()).list_services_response.service}
            assert names >= {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
            await talk.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol="grpc.health.v1.Health"))
            assert len((await talk.read()).file_descriptor_response.file_descriptor_proto) == 1
            await talk.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol="no.such.Thing"))
            assert (await talk.read()).error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
            await talk.done_writing()
            assert await talk.read() is grpc.aio.EOF

    run(main())


def test_a_client_that_knows_nothing_can_call_what_it_finds():
    async def main():
        async with serving() as server:

            def find():
                with grpc.insecure_channel(f"127.0.0.1:{server.port}") as blocking:
                    database = ProtoReflectionDescriptorDatabase(blocking)
                    service = DescriptorPool(database).FindServiceByName("grpc.health.v1.Health")
                    return sorted(method.name for method in service.methods)

            assert {"Check", "Watch"} <= set(await asyncio.get_running_loop().run_in_executor(None, find))

    run(main())


def test_the_stub_of_reflection_is_the_one_of_its_authors():
    async def main():
        async with serving() as server, channel(server) as client:
            stub = reflection_pb2_grpc.ServerReflectionStub(client)
            call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
            assert len([answer async for answer in call]) == 1

    run(main())
