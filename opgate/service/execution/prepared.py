"""A cache of prepared models: the graph as ONNX Runtime has optimized it, and its large weights as it packs them.

ONNX Runtime maps such a file in place of reading, optimizing and packing it at every start. All processes of a machine
share the pages. A file is prepared in a process of its own, which compares what both forms give. See `preparing.py`.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import os
import pickle
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnxruntime as ort
import xxhash

from opgate.child_process import ChildProcess, cause_of_death, tied
from opgate.service.execution.session import SessionOptions

logger = logging.getLogger("opgate.prepared")

MODEL, WEIGHTS, ABOUT = "model.onnx", "weights.bin", "about.json"
# Changes when what lies in the folder means something else.
_FORMAT = 1
# Files of fewer bytes are not worth it.
_LEAST = 1 << 20
# A prepared form is about twice as large as its file, and seldom more than so many times.
_PREPARED = 2.5
# Bytes of a file that are summed up at once.
_PIECE = 1 << 20
# Files that wait to be prepared, and files of a model whose state is looked at.
_MOST_WAITING, _MOST_FILES = 4096, 10_000
# Seconds after which a file is tried again that could not be prepared: what failed may have been the disk.
_TRY_AGAIN = 86_400.0
# Seconds in which a file must have been prepared.
_PATIENCE = 1800.0
_MODULE = "opgate.service.execution.preparing"
# Entries with which a session writes such files itself.
_WRITES = re.compile(r"session\.(optimized_model_|save_|model_external_)")
# What a processor is, in /proc/cpuinfo.
_PROCESSOR = re.compile(r"^(?:flags|Features|model name)\s*:.*$", re.MULTILINE)


class PreparedModels:
    """The prepared models in a folder, at most so many bytes. Several processes may use the folder at once, and any
    thread this."""

    def __init__(self, folder: Path | None, most_bytes: int) -> None:
        """Without a folder nothing is prepared."""
        self._folder = folder
        self._most = most_bytes
        self._processor = ""
        self._seen: dict[Path, tuple[tuple[int, ...], ...]] = {}  # what was verified, with the state of its files
        self._sizes: dict[Path, int] = {}  # bytes of the prepared form, by file
        self._lock = threading.Lock()
        self._waiting: OrderedDict[str, tuple[Path, SessionOptions, tuple[str, ...]]] = OrderedDict()
        self._changed = threading.Condition(self._lock)
        self._background = False
        self._told = False  # whether the log has said why the folder can't be used

    def find(
        self, path: Path, options: SessionOptions, digests: Sequence[str], *, wait: bool = False
    ) -> tuple[Path, SessionOptions] | None:
        """Returns the prepared form of a model file and the options to open it with, None if there is none.

        `digests` are those of the op libraries. If there is none, the file is prepared later, or now with `wait`.
        Raises nothing: whatever goes wrong is no worse than a file that isn't prepared.
        """
        if self._folder is None or options.gpu is not None or options.profile is not None:
            return None
        if any(_WRITES.match(key) for key in options.entries) or self._most <= 0:
            return None
        try:
            stamp, size = _stamp(path)
            if size < _LEAST:
                return None
            name = self._name(options, digests, stamp)
            found = self._known(name)
            if found is None and self._has_size(size):
                found = self._linked(name, self._key(path, options, digests, size))
            if found is None and wait:
                found = self._made(path, options, digests)
            if found is None:
                self._later(name, path, options, digests)
                return None
            entry = self._verified(found)
            if entry is None and not found.exists():  # what it lacked may be there now
                self._later(name, path, options, digests)
        except OSError as error:
            if not self._told:
                self._told = True
                logger.warning("the cache of prepared models can't be used: %s", error)
            return None
        if entry is None:
            return None
        self._sizes[path] = sum(state[0] for state in self._seen[entry])
        return entry / MODEL, replace(options, graph_level="disabled")

    def size_of(self, path: Path) -> int:
        """Returns the bytes of the prepared form that a file was found to have, 0 if it was found to have none."""
        return self._sizes.get(path, 0)

    def start(self) -> None:
        """Prepares files that wait for it, one after the other, on a thread."""
        if self._folder is not None and not self._background:
            self._background = True
            threading.Thread(target=self._work, name="opgate-prepare", daemon=True).start()

    # Where things lie.

    def _name(self, options: SessionOptions, digests: Sequence[str], stamp: object) -> str:
        """Returns what stands for a file that has not changed, and how it is opened."""
        return hashlib.sha256(repr((self._conditions(options, digests), stamp)).encode()).hexdigest()

    def _conditions(self, options: SessionOptions, digests: Sequence[str]) -> tuple[object, ...]:
        """Returns all that decides about the prepared form, besides the file."""
        if not self._processor:
            with contextlib.suppress(OSError):
                found = dict.fromkeys(_PROCESSOR.findall(Path("/proc/cpuinfo").read_text(errors="replace")))
                self._processor = "\n".join(found)
        return _FORMAT, ort.__version__, self._processor, options.graph_level, sorted(options.entries.items()), *digests

    def _key(self, path: Path, options: SessionOptions, digests: Sequence[str], size: int) -> str:
        """Returns the name of the folder of a prepared file, from its contents."""
        found = hashlib.sha256(repr(self._conditions(options, digests)).encode())
        for file in _files(path):
            found.update(repr(str(file.relative_to(path.parent))).encode())
            with file.open("rb") as data:
                found.update(hashlib.file_digest(data, "sha256").digest())
        return f"{size:x}-{found.hexdigest()}"

    @property
    def _root(self) -> Path:
        """The folder, which only this user may change. Raises OSError."""
        assert self._folder is not None
        if not self._folder.is_dir():
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        state = self._folder.stat()
        if state.st_uid != os.geteuid() or state.st_mode & 0o022:
            raise PermissionError(f"'{self._folder}' must belong to this user, and nobody else may write there")
        return self._folder

    def _known(self, name: str) -> Path | None:
        with contextlib.suppress(FileNotFoundError):
            entry = self._root / (self._root / "names" / name).read_text()
            if (entry / ABOUT).is_file():
                return entry
        return None

    def _has_size(self, size: int) -> bool:
        return any(entry.name.startswith(f"{size:x}-") for entry in os.scandir(self._root))

    def _linked(self, name: str, key: str) -> Path | None:
        """Returns the folder of a prepared file, and lets its name lead there."""
        entry = self._root / key
        if not (entry / ABOUT).is_file():
            return None
        (self._root / "names").mkdir(exist_ok=True)
        _write(self._root / "names" / name, key)
        return entry

    # Whether they are what they were.

    def _verified(self, entry: Path) -> Path | None:
        """Returns the folder of a prepared file if its files are as they were written."""
        try:
            about = json.loads((entry / ABOUT).read_text())
        except (OSError, ValueError):
            about = {}
        if about.get("format") == _FORMAT and about.get("unusable"):
            old = time.time() - (entry / ABOUT).stat().st_mtime > _TRY_AGAIN
            if old or about.get("bytes", self._most + 1) <= self._most:
                self._remove(entry)
            return None
        try:
            state = tuple(_state(entry / file) for file in (MODEL, WEIGHTS))
            good = self._seen.get(entry) == state
            good = good or (about.get("format") == _FORMAT and about.get("files") == _sums(entry))
        except FileNotFoundError:
            good = False
        if not good:
            logger.error("a prepared model has changed on disk, and is prepared again: %s", entry.name)
            self._remove(entry)
            return None
        self._seen[entry] = state
        os.utime(entry / ABOUT)  # it was used last now
        return entry

    # How they are made.

    def _later(self, name: str, path: Path, options: SessionOptions, digests: Sequence[str]) -> None:
        with self._changed:
            if len(self._waiting) < _MOST_WAITING:
                self._waiting[name] = (path, options, tuple(digests))
                self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                name, (path, options, digests) = next(iter(self._waiting.items()))
            try:
                self._made(path, options, digests)
            except OSError as error:
                logger.warning("a model can't be prepared: %s", error)
            except Exception:
                logger.exception("a model can't be prepared")
            with self._changed:
                del self._waiting[name]

    def _made(self, path: Path, options: SessionOptions, digests: Sequence[str]) -> Path | None:
        """Prepares a file, unless another process has done it meanwhile. Returns its folder."""
        stamp, size = _stamp(path)
        name = self._name(options, digests, stamp)  # the file may have changed since somebody asked
        key = self._key(path, options, digests, size)
        (self._root / "locks").mkdir(exist_ok=True)
        with (self._root / "locks" / key).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if (found := self._linked(name, key)) is not None:
                return found
            began = time.monotonic()
            self._check_disk(size)
            for left in self._root.glob(f".{key}.*"):  # of a process that was ended
                shutil.rmtree(left, ignore_errors=True)
            made = self._root / f".{key}.{os.getpid()}.{threading.get_ident()}"
            made.mkdir()
            try:
                reason = _prepare(path, options, made)
                if _stamp(path)[0] != stamp:
                    return None  # nobody knows which file it is of
                written = sum(file.stat().st_size for file in made.iterdir())
                if reason:
                    self._check_disk(int(_PREPARED * size) - written, reason)
                about: dict[str, Any] = {"unusable": reason} if reason else {"files": _sums(made)}
                if not reason and written > self._most:
                    reason = f"its prepared form has {written} bytes, the cache may have {self._most}"
                    about = {"unusable": reason, "bytes": written}
                if reason:
                    for file in (MODEL, WEIGHTS):
                        (made / file).unlink(missing_ok=True)
                _write(made / ABOUT, json.dumps({"format": _FORMAT, "of": str(path), **about}))
                made.rename(self._root / key)
            finally:
                shutil.rmtree(made, ignore_errors=True)
            if reason:
                logger.info("'%s' is opened as it is, because it can't be prepared: %s", path, reason)
            else:
                logger.info("'%s' is prepared, which took %.1f s", path, time.monotonic() - began)
        with contextlib.suppress(OSError):
            (self._root / "locks" / key).unlink()
        self._clean(keep=key)
        return self._linked(name, key)

    def _check_disk(self, size: int, reason: str = "") -> None:
        """Raises OSError if the disk of the folder has fewer bytes left. Nothing about the file is kept then."""
        if (left := shutil.disk_usage(self._root).free) < size:
            why = f"expected a disk with {size} bytes left for it, got {left}{reason and ': '}{reason}"
            raise OSError(errno.ENOSPC, why, str(self._folder))

    def _clean(self, keep: str) -> None:
        """Removes what was not used for longest, until there are no more bytes than there may be."""
        entries: list[tuple[float, int, Path]] = []
        for entry in self._entries():
            with contextlib.suppress(OSError):
                size = sum(file.stat().st_size for file in entry.iterdir())
                entries.append(((entry / ABOUT).stat().st_mtime, size, entry))
        total = sum(size for _, size, _ in entries)
        for _, size, entry in sorted(entries, key=lambda found: (found[2].name == keep, found[0])):
            if total <= self._most:
                break
            self._remove(entry)
            total -= size
        for left in self._root.glob(".*"):
            with contextlib.suppress(OSError):
                if time.time() - left.stat().st_mtime > 2 * _PATIENCE:  # of a process that was ended
                    shutil.rmtree(left, ignore_errors=True)
        names = self._root / "names"
        for name in names.iterdir() if names.is_dir() else ():
            with contextlib.suppress(OSError):
                if not (self._root / name.read_text()).is_dir():
                    name.unlink()

    def _entries(self) -> Iterator[Path]:
        for entry in self._root.iterdir():
            if not entry.name.startswith(".") and entry.name not in ("names", "locks"):
                yield entry

    def _remove(self, entry: Path) -> None:
        """Removes a prepared file. Who has it open keeps it."""
        gone = self._root / f".gone-{os.getpid()}-{threading.get_ident()}-{entry.name}"
        with contextlib.suppress(OSError):
            entry.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


def _prepare(path: Path, options: SessionOptions, folder: Path) -> str:
    """Prepares a file in a process of its own. Returns why that can't be done, "" if it was."""
    images = [int(image.name) for image in options.libraries if image.parent == Path("/proc/self/fd")]
    asked = base64.b64encode(pickle.dumps((path, options))).decode()
    command = tied([sys.executable, "-P", "-m", _MODULE, asked, str(folder)])
    process = ChildProcess(command, images, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        told, _ = process.communicate(timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        return f"it took longer than {_PATIENCE:g} s"
    finally:
        process.end()
    try:
        reason = json.loads(told)["reason"]
    except (ValueError, KeyError, TypeError):
        return cause_of_death(process.returncode, "the process that prepares it")
    return str(reason)


def _files(path: Path) -> list[Path]:
    """Returns a model file and the files beside it, which may have its weights."""
    found = []
    for place, _, names in os.walk(path.parent):
        found += [Path(place) / name for name in names]
        if len(found) > _MOST_FILES:
            raise OSError(f"there are more than {_MOST_FILES} files in {path.parent}")
    return sorted(found)


def _stamp(path: Path) -> tuple[object, int]:
    """Returns a value that differs when a model file or one beside it has changed, and their bytes."""
    states = [(str(file), *_state(file)) for file in _files(path)]
    return (str(path), states), sum(int(size) for _, size, *_ in states)


def _state(file: Path) -> tuple[int, int, int, int]:
    state = file.stat()
    return state.st_size, state.st_ino, state.st_mtime_ns, state.st_ctime_ns


def _sums(folder: Path) -> dict[str, list[Any]]:
    """Returns the sizes and the checksums of the files of a prepared model. They tell whether a file was damaged, and
    protect from nobody: only this user can write the folder."""
    found: dict[str, list[Any]] = {}
    piece = memoryview(bytearray(_PIECE))  # a mapped file would count as the memory of the models
    for name in (MODEL, WEIGHTS):
        total = xxhash.xxh3_128()
        size = 0
        with (folder / name).open("rb", buffering=0) as file:
            while count := file.readinto(piece):
                total.update(piece[:count])
                size += count
        found[name] = [size, total.hexdigest()]
    return found


def _write(path: Path, text: str) -> None:
    """Writes a file so that others see all of it or nothing."""
    new = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    new.write_text(text)
    new.replace(path)
