"""The clients of both protocols, unmodified."""

from __future__ import annotations

import tritonclient.grpc as grpc_client
import tritonclient.http as http_client

CLIENTS = {"http": http_client, "grpc": grpc_client}


def connect(server, protocol):
    """A client of a gateway."""
    port = server.http if protocol == "http" else server.grpc
    return CLIENTS[protocol].InferenceServerClient(f"127.0.0.1:{port}")
