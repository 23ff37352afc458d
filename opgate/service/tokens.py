"""The tokens that groups of endpoints need, over HTTP and gRPC alike. The groups are those of Triton."""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

GROUPS = (
    "health", "metadata", "inference", "shared-memory", "model-config", "model-repository", "statistics", "trace",
    "logging", "metrics",
)  # fmt: skip
#: How the metadata of a gRPC call names the key.
GRPC_PREFIX = "triton-grpc-protocol-"

_FORM = re.compile(r"([^:]+):([^=\s]+)=(.+)")
_MODEL = r"/v2/models/[^/]+(?:/versions/[^/]+)?"
# The first that fits decides.
_ROUTES = tuple(
    (re.compile(pattern), group)
    for pattern, group in (
        (rf"(?:/v2/health/.*|{_MODEL}/ready)", "health"),
        (rf"(?:{_MODEL}/(?:infer|generate|generate_stream)|/predict/.*)", "inference"),
        (rf"(?:{_MODEL}/stats|/v2/models/stats)", "statistics"),
        (rf"{_MODEL}/config", "model-config"),
        (rf"(?:{_MODEL}/trace/.*|/v2/trace/.*)", "trace"),
        (r"/v2/logging.*", "logging"),
        (r"/v2/repository/.*", "model-repository"),
        (r"/v2/(?:system|cuda)sharedmemory.*", "shared-memory"),
        (r"/metrics", "metrics"),
        (rf"(?:/v2|{_MODEL}|/|/docs|/docs/oauth2-redirect|/openapi\.json|/static-offline-docs(?:/.*)?)", "metadata"),
    )
)
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


def group_of_route(path: str) -> str:
    """Returns the group of an HTTP path, "" if it belongs to none."""
    return next((group for pattern, group in _ROUTES if pattern.fullmatch(path)), "")


def refusal_of_route(path: str, tokens: Mapping[str, Token], find: Callable[[str], str | None]) -> str:
    """Returns why a client may not have an HTTP path, "" if it may. `find` returns the value of a header.

    A path that belongs to no group needs one of the tokens, so that a route without a group isn't open to everybody.
    """
    if not path.isprintable():  # the router's patterns and those of the groups needn't agree about line ends
        return "the path has a character that can't be printed"
    group = group_of_route(path)
    if not group:
        known = any(token.is_in(find) for token in tokens.values())
        return (
            "" if known else "the path belongs to no group of endpoints and is restricted, expecting one of the tokens"
        )
    token = tokens.get(group)
    return "" if token is None or token.is_in(find) else token.refusal("API")


def group_of_rpc(name: str) -> str:
    """Returns the group of an RPC of the inference service."""
    if "SharedMemory" in name:
        return "shared-memory"
    return "model-repository" if name.startswith("Repository") else _RPCS[name]
