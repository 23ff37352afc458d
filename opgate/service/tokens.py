"""The tokens that groups of endpoints need, over HTTP and gRPC alike. The groups are those of Triton."""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass

GROUPS = (
    "health", "metadata", "inference", "shared-memory", "model-config", "model-repository", "statistics", "trace",
    "logging", "metrics",
)  # fmt: skip
#: The group of what everybody may have. No token can be set for it.
OPEN = "open"
#: How the metadata of a gRPC call names the key.
GRPC_PREFIX = "triton-grpc-protocol-"

_FORM = re.compile(r"([^:]+):([^=\s]+)=(.+)")
_RPCS = {
    "ServerLive": "health", "ServerReady": "health", "ModelReady": "health", "ServerMetadata": "metadata",
    "ModelMetadata": "metadata", "ModelInfer": "inference", "ModelStreamInfer": "inference",
    "ModelConfig": "model-config", "ModelStatistics": "statistics", "TraceSetting": "trace", "LogSettings": "logging",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Token:
    """What a client must send: a header of this name with this value."""

    name: str  # in lower case
    value: str

    def is_in(self, find: Callable[[str], str | None]) -> bool:
        """Returns whether the client sent it. `find` returns the value of a header. The time tells nothing of it."""
        given = find(self.name) or ""
        return hmac.compare_digest(given.encode("utf-8", "replace"), self.value.encode())

    def refusal(self, what: str) -> str:
        """Returns the text for a client that did not send it."""
        return f"This {what} is restricted, expecting header '{self.name}'"


def read_tokens(text: str, prefix: str = "") -> dict[str, Token]:
    """Reads "group,group:key=value", joined by semicolons, and returns the token of each group.

    `prefix` comes before the key in the name of the header. Raises ValueError that says what is wrong.
    """
    tokens: dict[str, Token] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        match = _FORM.fullmatch(part)
        if match is None:
            raise ValueError("expected <group>[,<group>...]:<key>=<value>")  # the part may have a secret in it
        if not match[3].isascii():
            raise ValueError("the value of a header must be ASCII")
        for group in (name.strip() for name in match[1].split(",")):
            if group not in GROUPS:
                raise ValueError(f"'{group}' is no group of endpoints: expected one of {', '.join(GROUPS)}")
            if group in tokens:
                raise ValueError(f"group '{group}' is restricted twice")
            tokens[group] = Token(prefix + match[2].lower(), match[3])
    return tokens


def group_of_rpc(name: str) -> str:
    """Returns the group of an RPC of the inference service."""
    if "SharedMemory" in name:
        return "shared-memory"
    return "model-repository" if name.startswith("Repository") else _RPCS[name]
