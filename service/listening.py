"""Opens the sockets on which the gateway listens."""

from __future__ import annotations

import errno
import socket


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
