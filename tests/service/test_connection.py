"""The undocumented members of uvicorn that the gateway's connection uses."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import logging
from pathlib import Path

import pytest
import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from opgate.service.api import connection
from opgate.service.api.connection import UVICORN_MEMBERS
from opgate.service.api.lingering import LingeringTransport

#: Only uvicorn's connection uses these members of the request cycle, so InferCycle must have them.
USED_BY_UVICORN = {"disconnected", "message_event"}

#: The methods of a protocol that asyncio documents, and those that httptools' parser calls.
DOCUMENTED = {
    "__init__", "connection_made", "connection_lost", "data_received", "eof_received", "pause_writing", "resume_writing",
    "on_message_begin", "on_header", "on_headers_complete", "on_body", "on_message_complete",
}  # fmt: skip


@pytest.fixture(scope="module")
def uvicorn_parts():
    """The names of the members of each part of a connection of the installed uvicorn, in the middle of a request."""

    async def main():
        arrived, held = asyncio.Event(), asyncio.Event()

        async def application(scope, receive, send):
            arrived.set()
            await held.wait()

        config = uvicorn.Config(application, log_config=None, lifespan="off")
        connections = []

        def connect():
            connections.append(HttpToolsProtocol(config, ServerState(), {}))
            return connections[-1]

        server = await asyncio.get_running_loop().create_server(connect, "127.0.0.1", 0)
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\n{")
        await arrived.wait()
        (one,) = connections
        parts = {"connection": one, "flow": one.flow, "server_state": one.server_state, "cycle": one.cycle}
        members = {name: set(dir(part)) for name, part in parts.items()}
        writer.close()
        held.set()
        await asyncio.gather(*one.tasks)
        server.close()
        return members

    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    return asyncio.run(main())


@pytest.mark.parametrize("part", UVICORN_MEMBERS)
def test_uvicorn_has_every_member_that_is_used(uvicorn_parts, part):
    missing = UVICORN_MEMBERS[part] - uvicorn_parts[part]
    assert not missing, f"uvicorn {uvicorn.__version__} has no {', '.join(sorted(missing))} in its {part}"


def test_the_list_of_members_is_what_the_code_uses(uvicorn_parts):
    tree = ast.parse(Path(connection.__file__).read_text())
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    used = {part: set() for part in UVICORN_MEMBERS}
    for name, owner in (("InferConnection", "self"), ("InferCycle", "owner")):
        for node in ast.walk(classes[name]):
            if isinstance(node, ast.Attribute):
                part = ast.unparse(node.value).removeprefix("self.")
                used.get("connection" if part == owner else part, set()).add(node.attr)
    used["connection"] |= {node.name for node in classes["InferConnection"].body if isinstance(node, ast.FunctionDef)}
    used["connection"] -= DOCUMENTED
    used["cycle"] |= USED_BY_UVICORN
    for part, members in UVICORN_MEMBERS.items():
        assert used[part] & uvicorn_parts[part] == members


@pytest.mark.parametrize("end", ["close", "abort", "lost"])
def test_what_is_written_after_the_end_is_dropped(end):
    """The application may answer a client that has left a moment ago."""

    class Owner(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport = LingeringTransport(transport, self)

    async def main():
        owner = Owner()
        server = await asyncio.get_running_loop().create_server(lambda: owner, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"a")
        await asyncio.sleep(0.05)
        owner.transport.write(b"before")
        assert await reader.readexactly(6) == b"before"
        if end == "lost":
            writer.transport.abort()
            await asyncio.sleep(0.05)
        else:
            getattr(owner.transport, end)()
        owner.transport.write(b"after")
        owner.transport.writelines([b"after", memoryview(b"after")])
        assert owner.transport.is_closing()
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        server.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
