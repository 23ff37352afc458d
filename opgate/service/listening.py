"""Opens the sockets on which the gateway listens."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable

# Lets a server listen on one more socket.
Listen = Callable[[socket.socket], Awaitable[asyncio.AbstractServer]]


def listen(protocol: str, host: str, port: int, host_option: str) -> socket.socket:
    """Returns a socket that listens. Raises OSError, which names the option that says another place.

    `host_option` is the option that said the host.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        # The port may be taken or not allowed. Everything else is about the host.
        taken = error.errno in (errno.EADDRINUSE, errno.EACCES)
        option = f"--{protocol.lower()}-port" if taken else host_option
        address = f"{f'[{host}]' if ':' in host else host}:{port}"
        raise OSError(f"{protocol} can't listen on {address} ({error.strerror}): name another with {option}") from None
    listener.setblocking(False)
    return listener


def bind_shared(host: str, port: int) -> socket.socket:
    """Returns a socket that has a port together with others of this function, and doesn't listen yet.

    The system hands a new connection to one of those that listen. Raises OSError.
    """
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if bound.family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind((host, port))
    except BaseException:
        bound.close()
        raise
    bound.setblocking(False)
    return bound
