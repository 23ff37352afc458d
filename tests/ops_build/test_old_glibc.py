"""Libraries that were linked with this machine's C library and run with an older one."""

import ctypes
import os
import platform
import re
import shutil
import subprocess

import pytest

from opgate.ops_build.building.old_glibc import HELPER, compile_helper, lower, patchelf, version_of
from opgate.ops_build.building.options import BuildError
from tests.skips import need

need("elftools")
pytestmark = pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is not installed")
GLIBC = tuple(map(int, re.findall(r"\d+", platform.libc_ver()[1])))

SOURCE = """
#include <dlfcn.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
extern char __libc_single_threaded;
double power(double a, double b) { return pow(a, b) + exp2(log(a)) - exp2(log(a)); }
static void* run(void* x) { *(int*)x = 7; return 0; }
int threaded(void) {
  int value = 0;
  pthread_t thread;
  pthread_attr_t attributes;
  cpu_set_t processors;
  CPU_ZERO(&processors);
  CPU_SET(0, &processors);
  pthread_getaffinity_np(pthread_self(), sizeof processors, &processors);
  pthread_attr_init(&attributes);
  pthread_attr_setaffinity_np(&attributes, sizeof processors, &processors);
  if (pthread_create(&thread, &attributes, run, &value) != 0) return -1;
  pthread_join(thread, 0);
  return value;
}
long size_of(const char* path) { struct stat s; return stat(path, &s) == 0 ? (long)s.st_size : -1; }
int opens(const char* path) { return dlopen(path, RTLD_NOW) != 0; }
int opens_another(const char* path) { return dlmopen(LM_ID_NEWLM, path, RTLD_NOW) != 0; }
int shares(const char* name) {
  const int file = shm_open(name, O_CREAT | O_RDWR, 0600);
  return file < 0 || close(file) != 0 ? -1 : shm_unlink(name);
}
int alone(void) { return __libc_single_threaded; }
"""


def compiled(folder, source, *flags):
    target = folder / "libtried.so"
    command = ["gcc", "-D_GNU_SOURCE", "-O0", "-fPIC", "-shared", "-o", str(target), "-x", "c", "-"]
    subprocess.run([*command, "-lm", *flags], input=source, text=True, check=True)
    return target


def needs(library):
    """Returns the symbols that a library needs a version of glibc for, with the version."""
    from elftools.elf.elffile import ELFFile

    with library.open("rb") as file:
        elf = ELFFile(file)
        listed = elf.get_section_by_name(".gnu.version_r").iter_versions()
        versions = {part["vna_other"]: part.name for _, parts in listed for part in parts}
        numbers = elf.get_section_by_name(".gnu.version")
        symbols = enumerate(elf.get_section_by_name(".dynsym").iter_symbols())
        found = {symbol.name: versions.get(numbers.get_symbol(number)["ndx"]) for number, symbol in symbols}
        return found, set(versions.values())


def test_a_library_asks_for_older_versions_and_does_the_same(tmp_path):
    if GLIBC < (2, 34):
        pytest.skip(f"glibc 2.34 is not installed, but {GLIBC}")
    library = compiled(tmp_path, SOURCE)
    before, _ = needs(library)
    assert version_of(before["pow"]) == (2, 29) and version_of(before["pthread_create"]) == (2, 34)
    compile_helper(tmp_path)
    assert lower(library, (2, 28))
    symbols, versions = needs(library)
    assert max(map(version_of, versions)) <= (2, 28)
    # The loader before glibc 2.30 finds a versioned symbol only in the library that the list of versions names.
    for name in (
        "stat",
        "__libc_single_threaded",
        "pthread_create",
        "pthread_attr_setaffinity_np",
        "dlopen",
        "dlmopen",
        "shm_open",
    ):
        assert symbols[name] is None, name
    assert symbols["pow"] in ("GLIBC_2.2.5", "GLIBC_2.17")
    shown = patchelf("--print-needed", str(library))
    assert {"libpthread.so.0", "libdl.so.2", "librt.so.1", HELPER} <= set(shown.split())
    patchelf("--set-rpath", "$ORIGIN", str(library))
    loaded = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL | 2)  # RTLD_NOW: every symbol must be there
    loaded.power.restype, loaded.power.argtypes = ctypes.c_double, [ctypes.c_double] * 2
    loaded.size_of.restype = ctypes.c_long
    assert loaded.power(2, 10) == 1024 and loaded.threaded() == 7
    assert loaded.size_of(str(library).encode()) == library.stat().st_size
    assert loaded.opens(b"libm.so.6") == loaded.opens_another(b"libm.so.6") == 1 and loaded.alone() in (0, 1)
    assert loaded.shares(f"/{tmp_path.name}-{os.getpid()}".encode()) == 0


def test_a_library_that_needs_nothing_newer_stays_as_it_is(tmp_path):
    library = compiled(tmp_path, "#include <string.h>\nlong f(const char* s) { return strlen(s); }")
    before = library.read_bytes()
    assert not lower(library, (2, 28)) and library.read_bytes() == before


def test_what_an_older_version_lacks_is_refused_by_name(tmp_path):
    if GLIBC < (2, 36):
        pytest.skip(f"glibc 2.36 is not installed, but {GLIBC}")
    source = "#include <stdlib.h>\n#include <math.h>\nunsigned f(double x) { return arc4random_uniform(9) + (unsigned)log(x); }"
    library = compiled(tmp_path, source)
    before = library.read_bytes()
    with pytest.raises(BuildError, match=r"libtried\.so needs arc4random_uniform@GLIBC_2\.36, which glibc 2\.28 lacks"):
        lower(library, (2, 28))
    assert library.read_bytes() == before
    assert not lower(library, (2, 36))


def test_the_helper_does_what_the_functions_of_the_c_library_do(tmp_path):
    helper = ctypes.CDLL(str(compile_helper(tmp_path)))
    here, there = (ctypes.create_string_buffer(256) for _ in range(2))
    file = tmp_path / "file"
    file.write_text("some text")
    system = ctypes.CDLL(None)
    for name, argument in (
        ("stat", str(file).encode()),
        ("stat", str(tmp_path).encode()),
        ("fstat", 0),
        ("fstat64", 0),
    ):
        if not hasattr(system, name):
            pytest.skip("glibc 2.33 is not installed")
        assert getattr(helper, name)(argument, here) == getattr(system, name)(argument, there) == 0
        assert here.raw == there.raw
    assert helper.stat(b"/none", here) == -1
    assert len({helper.arc4random() for _ in range(9)}) > 7
