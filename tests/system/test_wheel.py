"""The wheel: what is in it, that it serves on a machine without a compiler, and that it builds a user's own ops."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import urllib.request
import zipfile
from pathlib import Path

import pytest

from opgate.ops_build.building.build import Build
from tests.conftest import ALL, thorough
from tests.ops_build.conftest import op_of_ones_own
from tests.system.running import ROOT, Server, running

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

TWICE = """
OPGATE_OP(Twice, "Twice(x: f32[n]) -> (y: f32[n])", "2 * x.")

struct TwiceCpu {
  opgate::Status operator()(opgate::Context&, const opgate::Inputs& in, const opgate::Attributes&,
                            opgate::Outputs& out) const {
    const float* x = in["x"].data<float>();
    float* y = out["y"].data<float>();
    for (std::int64_t i = 0; i < in["x"].size(); ++i) y[i] = 2 * x[i];
    return {};
  }
};

OPGATE_CPU_KERNEL(Twice, TwiceCpu)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory, built: Build) -> Path:
    # `built` has compiled the same sources, and the compiler's cache has what it made.
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    command += [] if ALL else ["--no-build-isolation"]  # the tests have the packages that build a wheel
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    finished = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    (made,) = folder.glob("*.whl")
    return made


class Installed:
    """A fresh virtual environment with the wheel. The packages that it depends on are those of this interpreter."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
        self.bin = folder / "venv" / "bin"
        self.python = str(self.bin / "python")
        pip = [sys.executable, "-m", "pip", "--python", self.python, "install", "--quiet", "--no-deps", "--no-index"]
        subprocess.run([*pip, str(wheel)], check=True)
        self.site = folder / "venv" / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
        # A path in such a file is appended. The .pth files in it, that of the editable install too, are not read.
        (self.site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
        self.folder = folder / "elsewhere"
        self.folder.mkdir()
        # Without a compiler, without cmake, and with a home of its own.
        self.env = {"PATH": str(self.bin), "HOME": str(folder / "home"), "PYTHONDONTWRITEBYTECODE": "1"}

    def run(self, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.python, *command], cwd=self.folder, env=self.env | env, capture_output=True, text=True, timeout=600
        )

    def opgate(self, *arguments: str, **env: str) -> str:
        finished = self.run("-m", "opgate", *arguments, **env)
        assert finished.returncode == 0, finished.stdout + finished.stderr
        return finished.stdout

    def files(self) -> dict[str, str]:
        """Returns the hashes of the files in site-packages."""
        files = (path for path in self.site.rglob("*") if path.is_file())
        return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("installed"), wheel)


def test_it_owns_one_name_and_says_where_it_runs(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0] for name in names} == {"opgate", "opgate.libs", f"opgate-{VERSION}.dist-info"}
    page = [name for name in names if name.startswith("opgate/service/console/files/")]
    assert {Path(name).suffix for name in page} >= {".html", ".js", ".css"}
    native = [name for name in names if name.startswith("opgate/") and name.endswith(".so")]
    assert wheel.name.startswith(f"opgate-{VERSION}-cp311-abi3-manylinux_2_")
    assert sorted(native) == sorted(
        [
            "opgate/lib/libnone_onnxruntime.so",
            "opgate/lib/libopgate_onnxruntime.so",
            *(f"opgate/service/native/{name}.abi3.so" for name in ("engine_strings", "json_tensors")),
            *(f"opgate/service/native/{name}.abi3.so" for name in ("process", "protobuf")),
            "opgate/service/rpc/connection.abi3.so",
        ]
    )
    shown = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", "--json", str(wheel)], capture_output=True, text=True
    )
    assert shown.returncode == 0, shown.stderr
    tag = re.search(r"manylinux_2_(\d+)_(\w+)\.whl$", wheel.name)
    found = re.search(r"manylinux_2_(\d+)_(\w+)", json.loads(shown.stdout)["overall_tag"])
    assert tag and found, (wheel.name, shown.stdout)
    assert int(found[1]) <= int(tag[1]) == 28 and found[2] == tag[2]


def interpreter(version: str) -> str:
    """Returns this version of Python, of the system or of pyenv. Skips the test if it is not there."""
    places = [*map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin")), os.environ["PATH"]]
    found = shutil.which(f"python{version}", path=os.pathsep.join(places))
    # pyenv puts a program on the path that fails if it isn't told to have this version.
    if found is None or subprocess.run([found, "-c", ""], capture_output=True).returncode:
        pytest.skip(f"python{version} is not installed")
    return found


#: Loads the native modules alone and calls them.
CALLS = """
import importlib.machinery, importlib.util, sys
loaded = {}
for path in sys.argv[1:]:
    name = path.rpartition("/")[2].partition(".")[0]
    loader = importlib.machinery.ExtensionFileLoader(name, path)
    module = loaded[name] = importlib.util.module_from_spec(importlib.util.spec_from_file_location(name, path, loader=loader))
    loader.exec_module(module)
body = b'{"inputs": [{"data": [[1, 2.5], [3, 4]]}, {"data": ["a", "\\u00e4"]}]}'
rest, values = loaded["json_tensors"].split(body, len(body), False, 9, 99, 9)
begin, end, shape = values[0]
numbers = bytearray(16)
loaded["json_tensors"].fill(body, begin, end, "FP32", numbers, 4)
print(shape, loaded["json_tensors"].strings(body, values[1][0], values[1][1], 9))
print(loaded["json_tensors"].format(numbers, "FP32", 0, 4, (2, 2)))
try:
    loaded["json_tensors"].fill(b"[x]", 0, 3, "FP32", numbers, 1)
except loaded["json_tensors"].Refused as refused:
    print(refused.args)
print(loaded["protobuf"].split(bytes([10, 1, 109, 58, 2, 7, 7]), 99, 9))
loaded["process"].set_running("a model")
connection = loaded["connection"]
budget = connection.Budget(1000)
server = connection.Connection({"/a/b": 0}, budget, 100, 100, 10, 1000)
answers = server.output(1 << 20)
try:
    server.receive(b"GET / HTTP/1.1\\r\\n\\r\\n")
except connection.ProtocolError as error:
    print(type(error).__name__)
del server
print(budget.used, len(b"".join(answers)) > 9, loaded["engine_strings"].has_layout.__name__)
"""


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
def test_its_modules_work_in_every_python(wheel: Path, version: str, tmp_path: Path) -> None:
    python = interpreter(version)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    modules = sorted(map(str, tmp_path.glob("opgate/service/*/*.abi3.so")))
    done = subprocess.run([python, "-c", CALLS, *modules], capture_output=True, text=True)
    assert len(modules) == 5 and done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "(2, 2) ['a', 'ä']",
        "b'[[1.0,2.5],[3.0,4.0]]'",
        "('kind', 1, 2)",
        "(b'\\n\\x01m', [(5, 2)], [])",
        "ProtocolError",
        "0 True has_layout",
    ]


@thorough("it installs the packages that opgate depends on")
@pytest.mark.parametrize("version", ["3.12", "3.13", "3.14"])
def test_it_serves_in_every_python(wheel: Path, version: str, tmp_path: Path) -> None:
    subprocess.run([interpreter(version), "-m", "venv", str(tmp_path / "venv")], check=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", f"{wheel}[cpu]"], check=True)
    environment = {"PATH": f"{tmp_path}/venv/bin", "HOME": str(tmp_path)}
    with running(ROOT / "model_repository", python=python, folder=tmp_path, env=environment) as server:
        assert labels_of_picture(server)


def test_an_op_in_python_needs_no_compiler(installed: Installed) -> None:
    installed.opgate("new", "plain_ops/halves", "--python", "--signature", "Halves(x: f32[n]) -> (y: f32[n])")
    file = installed.folder / "plain_ops" / "halves" / "op.py"
    text = file.read_text()
    file.write_text(text[: text.index("    n = ")] + "    return x / 2\n" + text[text.index("\n\n@halves.cases") :])
    assert "left out torch: cmake is not installed" in installed.opgate("build", "plain_ops")
    # JAX and OpenVINO run it too if they are installed.
    assert re.search(r"\b[1-3] passed, 0 failed", installed.opgate("verify", "--folder", "plain_ops"))
    code = (
        "import numpy, opgate.numpy\n"
        "ops = opgate.numpy.load('plain_ops/build/libplain_ops_onnxruntime.so')\n"
        "print(ops.halves(numpy.ones(2, 'f4')).tolist())"
    )
    done = installed.run("-c", code)
    assert done.stdout == "[0.5, 0.5]\n", done.stderr


def test_it_builds_in_one_folder_whatever_environment_runs_it(installed: Installed, tmp_path: Path) -> None:
    told = "from opgate import folders; print(folders.builds())"
    (tmp_path / "opgate").symlink_to(installed.site / "opgate")
    borrowed = f"import sys; sys.path.append({str(tmp_path)!r}); {told}"
    own, other = installed.run("-c", told), installed.run("-I", "-S", "-c", borrowed)
    assert own.stdout and own.stdout == other.stdout, (own, other)


def test_each_library_in_it_has_its_license(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        licenses = [name for name in names if "/licenses/" in name and name.endswith(".txt")]
        libraries = [name for name in names if name.startswith("opgate.libs/") and ".so" in name]
        own = [name for name in libraries if name.endswith("libopgate-old-glibc.so")]
        compiled_in = [name for name in licenses if re.search(r"/(nlohmann-json3|libstdc\+\+-\d+)-dev\.txt$", name)]
        assert len(own) == 1 and len(compiled_in) == 2
        assert len(licenses) == len(libraries) - len(own) + len(compiled_in)
        assert not any("cross" in name for name in licenses)
        assert all(b"opyright" in archive.read(name) for name in licenses)
        assert b"MIT" in archive.read("opgate/include/onnxruntime/LICENSE")


def test_what_is_in_it_is_listed(wheel: Path) -> None:
    """Its lists of components have every library that is linked, and the headers that are compiled in."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        lists = [json.loads(archive.read(name)) for name in names if name.endswith(".cdx.json") and "/sboms/" in name]
        licenses = {Path(name).stem for name in names if "/licenses/" in name and name.endswith(".txt")}
    assert len(lists) == 2 and all(each["bomFormat"] == "CycloneDX" for each in lists)
    components = [component for each in lists for component in each["components"] if component["name"] != "opgate"]
    assert {component["name"] for component in components} == licenses
    for component in components:
        assert re.fullmatch(r"pkg:deb/debian/[\w.+-]+@[\w.%+~:-]+", component["purl"]), component


@thorough("it compiles all ops once more")
def test_another_folder_gives_the_same_bytes(wheel: Path, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere" / "sources"
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    for name in tracked:
        if (ROOT / name).is_file() and not name.startswith(("tests/", "docs/", "benchmarks/", "models/")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    environment = os.environ | {"CCACHE_DISABLE": "1", "OPGATE_TOOLCHAIN": str(ROOT / "build" / "toolchain")}
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(folder)]
    subprocess.run(command, check=True, env=environment)
    (again,) = tmp_path.glob("*.whl")
    assert again.name == wheel.name
    assert hashlib.sha256(again.read_bytes()).digest() == hashlib.sha256(wheel.read_bytes()).digest()


def test_the_archive_of_the_sources_is_enough(tmp_path: Path) -> None:
    """It has each file once, and makes a wheel where there is no checkout."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as members:
        names = {name.partition("/")[2] for name in members.getnames()}
        assert not any(member.issym() for member in members.getmembers())
    tracked = subprocess.run(["git", "ls-files", "opgate"], cwd=ROOT, capture_output=True, text=True)
    wanted = set(tracked.stdout.split())
    assert wanted and wanted <= names
    assert not any(name.startswith(("service/", "ops_build/", "tests/")) or name.endswith(".so") for name in names)
    if ALL:
        wheel = [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-deps",
            "--wheel-dir",
            str(tmp_path),
            str(archive),
        ]
        subprocess.run(wheel, check=True)
        assert len(list(tmp_path.glob("*manylinux*.whl"))) == 1


def test_serving_needs_no_compiler_and_writes_nothing(installed: Installed) -> None:
    before = installed.files()
    how = {"python": installed.python, "folder": installed.folder, "env": installed.env}
    with running(ROOT / "model_repository", **how) as server:
        index = urllib.request.Request(server.url + "/v2/repository/index", data=b"{}", method="POST")
        with urllib.request.urlopen(index) as answer:
            assert {model["state"] for model in json.loads(answer.read())} == {"READY"}
        labels = labels_of_picture(server)
        maps = Path(f"/proc/{server.process.pid}/maps").read_text()
    expected = json.loads((ROOT / "docs" / "examples" / "digits.json").read_text())["objects"]
    assert sorted(labels) == sorted(found["label"] for found in expected)
    # The libraries are those of the wheel, and nothing comes from the checkout.
    libraries = ("libjpeg", "libonig", "libsndfile", "libwebp")
    assert str(installed.site.parent) in maps and all(f"opgate.libs/{name}" in maps for name in libraries)
    assert str(ROOT / "opgate") not in maps and str(ROOT / "build") not in maps
    assert "KNNQuery" in installed.opgate("ops")
    assert installed.opgate("--version") == f"{VERSION}\n"
    assert re.search(r"[1-9]\d* passed, 0 failed", installed.opgate("verify", "KNNQuery"))
    program = "import numpy, opgate.numpy; print(opgate.numpy.mish(numpy.zeros(2, numpy.float32)))"
    assert installed.run("-c", program).stdout == "[0. 0.]\n"
    with running(
        ROOT / "model_repository",
        "--isolation=process",
        "--model-control-mode=explicit",
        "--load-model=digit_detector",
        **how,
    ) as server:
        assert labels_of_picture(server) == labels
    assert installed.files() == before


def labels_of_picture(server: Server) -> list[str]:
    data = (ROOT / "docs" / "examples" / "digits.jpg").read_bytes()
    request = urllib.request.Request(server.url + "/predict/digit_detector", data, {"Content-Type": "image/jpeg"})
    with urllib.request.urlopen(request) as answer:
        return [found["label"] for found in json.loads(answer.read())["predictions"]]


def test_the_names_of_the_checkout_are_not_taken(installed: Installed) -> None:
    """Another package may have one of them, such as a folder of tests that it should not have installed."""
    for name in ("service", "ops_build", "models", "tests"):
        program = f"import importlib.util as u; s = u.find_spec({name!r}); print(*(s.submodule_search_locations if s else ()))"
        finished = installed.run("-c", program)
        assert finished.returncode == 0, finished.stderr
        for place in map(Path, finished.stdout.split()):
            assert not place.is_relative_to(installed.site) and place != ROOT / name


@thorough("the core compiles once more")
def test_ops_of_ones_own_are_built_with_what_the_wheel_brings(installed: Installed, tmp_path: Path) -> None:
    if not shutil.which("g++") or not shutil.which("cmake"):
        pytest.skip("there is no compiler")
    before = installed.files()
    folder = tmp_path / "own"
    folder.mkdir()
    op_of_ones_own(folder, "twice", TWICE)
    # How the tests compile, see tests/conftest.py.
    of_builds = ("PATH", "OPGATE_ARCH", "OPGATE_BATCH", "CCACHE_", "CMAKE_")
    path = {name: value for name, value in os.environ.items() if name.startswith(of_builds)}
    told = installed.opgate("build", str(folder), "--engine", "onnxruntime", "--cuda", "", **path)
    assert "from opgate's wheel" in told
    assert (folder / "build" / "libown_onnxruntime.so").is_file()
    assert "Twice(x: f32[n]) -> (y: f32[n])" in installed.opgate("ops", "--folder", str(folder))
    assert installed.files() == before
    # Without a compiler the message says what to install.
    refused = installed.run("-m", "opgate", "build", str(folder))
    assert refused.returncode == 1 and "is not installed" in refused.stderr


def test_builds_of_opgates_ops_go_to_the_cache(installed: Installed) -> None:
    program = "from opgate.ops_build.building.options import BuildOptions as O; print(O().target(), O().library())"
    target, library = installed.run("-c", program).stdout.split()
    place = re.escape(f"{installed.env['HOME']}/.cache/opgate/{VERSION}-")
    assert re.fullmatch(place + "[0-9a-f]{8}/ops/libopgate_onnxruntime.so", target)
    assert library == str(installed.site / "opgate" / "lib" / "libopgate_onnxruntime.so")
    program = (
        "import opgate, onnxruntime; options = onnxruntime.SessionOptions();"
        "options.register_custom_ops_library(str(opgate.op_library())); print('registered')"
    )
    assert installed.run("-c", program).stdout == "registered\n"


@pytest.mark.parametrize("name", ["service", "ops_build"])
def test_a_checkout_has_one_import_name_too(name: str) -> None:
    finished = subprocess.run([sys.executable, "-c", f"import {name}"], cwd=ROOT, capture_output=True, text=True)
    assert f"ImportError: import opgate.{name}, not {name}" in finished.stderr
