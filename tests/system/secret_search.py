"""Looks for the secrets of clients in bytes, in each form that they could have there, and in the lines of a log."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

#: The fields of a line of the log that name the request that it is about.
NAMING = ("id", "request_id", "traceparent")


@dataclass(frozen=True)
class Secret:
    """What only one client knows: a number of FP32, one of INT64, a text, and the name that its requests have.

    The numbers are so long that they appear nowhere by chance. Models give them back as they are, or doubled.
    """

    name: str
    number: float
    whole: int
    text: str
    trace: str

    @cached_property
    def forms(self) -> dict[str, bytes]:
        """What to look for: each form with what it is."""
        found = {"the name": self.name.encode(), "the text": self.text.encode(), "the trace": self.trace.encode()}
        for number in (self.number, 2 * self.number):
            decimal = f"{number:.1f}".removesuffix(".0")
            found |= {f"{decimal} as text": decimal.encode(), f"{number:e} as text": f"{number:e}".encode()}
            found |= {f"{decimal} as {kind}": struct.pack(kind, number) for kind in ("<f", "<d", ">f", ">d")}
        for whole in (self.whole, 2 * self.whole):
            found[f"{whole} as text"] = str(whole).encode()
            found |= {f"{whole} as {kind}": struct.pack(kind, whole) for kind in ("<q", ">q")}
        numbers = {"numbers": struct.pack("<3f", *[self.number] * 3), "integers": struct.pack("<2q", *[self.whole] * 2)}
        for what, data in {"the name": self.name.encode(), "the text": self.text.encode(), **numbers}.items():
            found |= {f"{what} in base64 at {at}": _base64(data, at) for at in range(3)}
        found["the text in hexadecimal"] = self.text.encode().hex().encode()
        return found

    def in_bytes(self, data: bytes) -> list[str]:
        """Returns which forms are in some bytes."""
        return [what for what, form in self.forms.items() if form in data]


def _base64(data: bytes, at: int) -> bytes:
    """Returns the characters that bytes have in base64 wherever `at` others are before them, three by three."""
    return base64.b64encode(bytes(at) + data)[(at * 8 + 5) // 6 : (at + len(data)) * 8 // 6]


def in_log(lines: Iterable[str], secrets: Iterable[Secret], errors: Iterable[tuple[Secret, str]] = ()) -> list[str]:
    """Returns what is wrong in the lines of a log.

    A line may have the name and the trace of one client, in the fields that name its request. Its message may be an
    error that this client has got, with whatever the error says. Nothing else of any client may be in it.
    """
    of_client = {(secret.name, text[:1000]) for secret, text in errors}
    return [wrong for line in lines for wrong in _in_line(line, list(secrets), of_client)]


def _in_line(line: str, secrets: list[Secret], errors: set[tuple[str, str]]) -> Iterator[str]:
    fields: dict[str, Any] = json.loads(line) if line.startswith("{") else {"message": line}
    named = [str(fields.pop(name, "")).encode() for name in NAMING]
    owners = [secret for secret in secrets if any(secret.in_bytes(name) for name in named)]
    if len(owners) > 1:
        yield f"a line names the requests of two clients: {line}"
    if any((owner.name, fields.get("message")) in errors for owner in owners):
        del fields["message"]
    rest = json.dumps(fields).encode()
    for secret in secrets:
        if found := secret.in_bytes(rest):
            yield f"{', '.join(found)} of {secret.name} in the log: {line}"
