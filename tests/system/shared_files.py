"""Files in /dev/shm for the tests of shared memory."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDER = Path("/dev/shm")


class SharedFile:
    """A file in /dev/shm with a name that nobody else has."""

    def __init__(self, data: bytes) -> None:
        self.path = FOLDER / f"opgate_test_{uuid.uuid4().hex}"
        self.path.write_bytes(data)
        self.key = f"/{self.path.name}"

    def put(self, offset: int, data: bytes) -> None:
        """Changes bytes of the file."""
        with self.path.open("r+b") as file:
            file.seek(offset)
            file.write(data)

    def get(self, offset: int, size: int) -> bytes:
        """Returns bytes of the file."""
        with self.path.open("rb") as file:
            file.seek(offset)
            return file.read(size)


@contextmanager
def shared_file(data: bytes) -> Iterator[SharedFile]:
    """Makes a file, which is there until the block ends."""
    file = SharedFile(data)
    try:
        yield file
    finally:
        file.path.unlink(missing_ok=True)
