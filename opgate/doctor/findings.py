"""What `opgate doctor` says: where something is wrong, what it is, and how to mend it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong. An error keeps a model or a library from serving, a warning doesn't. A note is about
    what is right and could be better."""

    where: str
    what: str
    mend: str
    is_error: bool = True
    is_note: bool = False

    @property
    def kind(self) -> str:
        """What it is: an error, a warning or a note."""
        return "note" if self.is_note else "error" if self.is_error else "warning"


#: What the loader, ONNX Runtime and opgate say of a library, and how to mend it. The first that matches counts.
_MENDS: Sequence[tuple[str, str]] = (
    (
        r"undefined symbol: OrtGetApiBase",
        "compile it with -DORT_API_MANUAL_INIT, and take the API from the argument of RegisterCustomOps: nothing "
        "exports that symbol to a library that Python loads",
    ),
    (
        r"undefined symbol: (?P<symbol>\w+)",
        "link it with the library that defines {symbol}, or build it with the versions of this machine",
    ),
    (
        r"version [`'](?P<version>\w+_[\d.]+)' not found",
        "it was built on a newer system ({version}): build it on this machine, or on the oldest that it shall run on",
    ),
    (
        r"(?P<file>[\w.+-]+\.so[\w.]*): cannot open shared object file",
        "install the package that has {file}, or put its folder on LD_LIBRARY_PATH",
    ),
    (r"wrong ELF class|cannot execute|Exec format", "it was built for another processor: build it on this machine"),
    (
        r"invalid ELF header|file too short",
        "it is no shared library: copy or build it again (`git lfs pull` if Git has it)",
    ),
    (
        r"requested API version \[(?P<version>\d+)\]",
        "it wants version {version} of ONNX Runtime's API: install an onnxruntime of at least 1.{version}, or build it "
        "with headers of this machine's version or an earlier one",
    ),
    (r"RegisterCustomOps", 'export `extern "C" OrtStatus* RegisterCustomOps(OrtSessionOptions*, const OrtApiBase*)`'),
)


def mend_of(message: str, otherwise: str) -> str:
    """Returns how to mend what a message says, `otherwise` if no known one matches."""
    for pattern, mend in _MENDS:
        if match := re.search(pattern, message):
            return mend.format(**match.groupdict())
    return otherwise
