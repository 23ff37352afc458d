"""The folder of a gateway's temporary files. What a gateway that was killed has left is removed by the next one."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "opgate-gateway-"


class TemporaryFolder:
    """A folder in which `tempfile` makes the files of this process from now on. Its lock says that somebody uses it."""

    def __init__(self) -> None:
        """Raises OSError if there is no room for it."""
        for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
            _remove_if_unused(left)
        self.folder, self._lock = _locked_folder()
        tempfile.tempdir = str(self.folder)

    def remove(self) -> None:
        """Removes the folder and what is in it."""
        shutil.rmtree(self.folder, ignore_errors=True)
        tempfile.tempdir = None


def _locked_folder() -> tuple[Path, int]:
    """Returns a new folder and the descriptor of its lock. Raises OSError."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        lock = -1
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if folder.is_dir():
                return folder, lock
        except (FileNotFoundError, BlockingIOError):  # another gateway that starts has taken it for one that is left
            pass
        except OSError as error:
            if error.errno in (errno.EBADF, errno.ENOLCK, errno.ENOTSUP):  # a file system without locks
                return folder, lock
            raise
        if lock >= 0:
            os.close(lock)


def _remove_if_unused(folder: Path) -> None:
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:  # it is another user's, or gone
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except OSError:  # a gateway uses it
        return
    finally:
        os.close(lock)
