"""The folders that opgate reads and writes, in a checkout and where a wheel installed it.

A checkout keeps what it builds in its folder build/. An installed package never writes into site-packages: it builds
into the user's cache, and brings an op library of its own.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import distributions
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
#: What a wheel brings: the op library for ONNX Runtime on the CPU with its manifest, and ONNX Runtime's header. A
#: checkout has neither folder.
SHIPPED_OPS = PACKAGE / "lib"
SHIPPED_HEADERS = PACKAGE / "include"


def checkout() -> Path | None:
    """Returns the root of the checkout that this package runs from, None if a wheel installed it."""
    return PACKAGE.parent if (PACKAGE.parent / "service").is_symlink() else None


def user_cache() -> Path:
    """Returns opgate's folder in the user's cache: in XDG_CACHE_HOME, else in ~/.cache. Without a home it is in
    /var/cache."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 (Path's raises)
    return Path("/var/cache" if base.startswith("~") else base) / "opgate"


def builds() -> Path:
    """Returns the folder of everything that is built or downloaded: build/ in a checkout, else one for this wheel in
    the user's cache."""
    if root := checkout():
        return root / "build"
    # Another environment may run the package from here. What describes it lies beside it, and not in that environment.
    described = next(iter(distributions(name="opgate", path=[str(PACKAGE.parent)])), None)
    if described is None:  # a wheel is made from the archive of the sources
        return user_cache() / "sources"
    # Two wheels of a version may differ. What was built from one must not go before the other's library.
    manifest = SHIPPED_OPS / "manifest.json"
    digest = hashlib.sha256(manifest.read_bytes()).hexdigest()[:8] if manifest.is_file() else "bare"
    return user_cache() / f"{described.version}-{digest}"


def prepared_models() -> Path:
    """Returns the folder of the cache of prepared models: in build/ in a checkout, else in the user's cache."""
    root = checkout()
    return user_cache() / "models" if root is None else root / "build" / "prepared"


@cache
def load_shipped_dependencies() -> None:
    """Loads the libraries, such as libjpeg, that the wheel brings for its op library. A checkout has none.

    The op library finds them from its own place. A copy, or an image in memory, lies elsewhere, but a library that is
    loaded already is found by its name.
    """
    for path in sorted((PACKAGE.parent / "opgate.libs").glob("*.so*")):
        ctypes.CDLL(str(path))


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Locks a folder for this process, and makes it if there is none. Another process waits."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
