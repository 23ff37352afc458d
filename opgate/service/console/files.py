"""The files of the page. They hold no data of the gateway, so everybody may have them."""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
from dataclasses import dataclass
from pathlib import Path

from fastapi import Request, Response

from opgate.service.core.errors import Kind, ServingError

FILES = Path(__file__).parent / "files"
# The page may load what this gateway serves and nothing else, runs no inline script, and no other page may frame it.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; media-src 'self' blob:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Vary": "Accept-Encoding",
}
_YEAR = "public, max-age=31536000, immutable"
_LEAST_PACKED = 512


@dataclass(frozen=True, slots=True)
class _File:
    data: bytes
    packed: bytes  # by gzip, empty if that brings nothing
    media: str
    tag: str


class Files:
    """The files, in memory."""

    def __init__(self, folder: Path = FILES) -> None:
        self._files = {path.name: _read(path) for path in sorted(folder.glob("*")) if path.is_file()}

    @property
    def icon(self) -> str:
        """The name of the page's icon."""
        return next((name for name in self._files if name.endswith(".svg")), "icon.svg")

    def respond(self, name: str, request: Request) -> Response:
        """Returns a file. Only the page itself is asked for anew: the names of the others change with what they hold.

        Raises ServingError (NOT_FOUND).
        """
        file = self._files.get(name)
        if file is None:
            raise ServingError(Kind.NOT_FOUND, f"the console has no file '{name[:80]}'")
        headers = {**_HEADERS, "ETag": file.tag, "Cache-Control": "no-cache" if name == "index.html" else _YEAR}
        if request.headers.get("if-none-match") == file.tag:
            return Response(status_code=304, headers=headers)
        packed = file.packed and "gzip" in request.headers.get("accept-encoding", "")
        if packed:
            headers["Content-Encoding"] = "gzip"
        return Response(file.packed if packed else file.data, headers=headers, media_type=file.media)


def _read(path: Path) -> _File:
    data = path.read_bytes()
    packed = gzip.compress(data, 9, mtime=0) if len(data) >= _LEAST_PACKED else b""
    media = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return _File(data, packed if len(packed) < len(data) else b"", media, f'"{hashlib.sha256(data).hexdigest()[:32]}"')
