"""How a gateway process starts to serve, without a process of its own."""

from __future__ import annotations

import asyncio
import socket

import pytest

from opgate.service import app
from tests.service.onnx_models import double


class Place:
    """What a gateway process knows of the others: nothing but the socket on which it shall listen."""

    grpc = None

    def __init__(self, bound):
        self.http = bound
        self.listened = False

    async def join(self, gateway):
        """Waits for nobody."""

    def listening(self, listeners):
        self.listened = True


def test_who_cannot_listen_does_not_say_so(repository, load):
    double(repository, "double")
    gateway = load(grpc=False)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as bound:  # nobody can listen on such a socket
        bound.bind(("127.0.0.1", 0))
        place = Place(bound)

        async def start():
            await asyncio.wait_for(app.serve(gateway, None, place), 30)

        with pytest.raises((OSError, ValueError)) as caught:
            asyncio.run(start())
    assert not isinstance(caught.value, TimeoutError) and not place.listened
