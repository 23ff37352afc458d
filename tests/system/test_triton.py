"""`opgate triton`: a real Triton server with our op library, and the same requests to it and to the gateway."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from opgate import folders, triton
from tests.conftest import ALL
from tests.service.onnx_models import batching, double, identity, labelled, pick, ragged_sum, write_config
from tests.system.conftest import PIPELINE
from tests.system.differential import (
    OUTPUT_AT,
    REGION_BYTES,
    Case,
    Target,
    bad_cases,
    configs,
    control_cases,
    generate_cases,
    good_cases,
    http_body,
    other_cases,
    settings_cases,
    shared_memory_cases,
)
from tests.system.running import ROOT, free_port, running
from tests.system.shared_files import shared_file

FOLDER = ROOT / "build/triton"
GOOD = ("200", "OK")


@pytest.fixture(scope="module")
def models(tmp_path_factory, library):
    """The repository of the project, and models of other datatypes whose configs Triton must complete."""
    folder = tmp_path_factory.mktemp("triton") / "models"
    shutil.copytree(ROOT / "model_repository", folder)
    double(folder, "double", config=batching(max_batch_size=16))
    double(folder, "plain", config='backend: "onnxruntime"', shape=("a", "b"))
    pick(folder, "pick", batching())
    ragged_sum(folder, "ragged")
    for name in ("BOOL", "INT8", "UINT64", "FP16", "FP64", "BYTES"):
        identity(folder, f"identity_{name}", name, config=batching())
    write_config(folder, "pipeline", PIPELINE)
    labelled(folder)
    return folder


def installed():
    """Installs Triton, or skips the test."""
    try:
        triton.install(FOLDER, print)
    except triton.TritonError as error:
        pytest.skip(f"Triton can't be installed: {error}")


class Triton:
    """A process of `opgate triton`."""

    def __init__(self, repository, *options, http=0, grpc=0):
        self.http, self.grpc = http or free_port(), grpc or free_port()
        ports = ["--http-port", self.http, "--grpc-port", self.grpc, "--metrics-port", free_port()]
        command = [sys.executable, "-m", "opgate", "triton", "--model-repository", repository, "--install-into", FOLDER]
        command = [str(part) for part in (*command, *ports, *options)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        self.log: list[str] = []
        self.listens = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stderr:
            self.log.append(line)
            if "listens on" in line:
                self.listens.set()
        self.listens.set()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        finally:
            self.process.kill()
            self._reader.join(10)

    def regions(self):
        """Returns its regions of shared memory."""
        return list(Path("/dev/shm").glob(f"opgate_triton_{self.process.pid}_*"))


def serving(started, again):
    """Returns a server that listens. Triton's Python backend may end at its start with an exception of Boost's locks:
    then `again` starts another one."""
    for _ in range(3):
        assert started.listens.wait(300), "".join(started.log)
        if started.process.poll() is None:
            return started
        assert "lock_exception" in "".join(started.log), "".join(started.log)
        started = again()
    raise AssertionError("".join(started.log))


@pytest.fixture(scope="module")
def server(models):
    """A Triton server that has loaded all models."""
    installed()
    started = serving(Triton(models), lambda: Triton(models))
    yield started
    assert started.regions()
    assert started.stop() == 0, "".join(started.log)
    assert not started.regions()


@pytest.fixture(scope="module", params=["alone", "in front of Triton"])
def targets(request, server, models):
    """Triton, and the gateway that runs the models itself or lets Triton run them."""
    options = [] if request.param == "alone" else ["--backend", "triton", "--triton-url", f"127.0.0.1:{server.grpc}"]
    with running(models, *options) as gateway:
        yield Target("Triton", server.http, server.grpc), Target("opgate", gateway.http, gateway.grpc)


def listed(heading):
    """Returns the rows of a table of docs/triton-differences.md, which follows this line."""
    text = (ROOT / "docs/triton-differences.md").read_text()
    table = text.partition(f"\n{heading}\n")[2].lstrip().partition("\n\n")[0]
    rows = re.findall(r"^\| (http|grpc) \| ([^|]+) \| (\w+) \| (\w+) \|", table, re.MULTILINE)
    assert rows
    return set(rows)


OF_MODELS, OF_SHARED_MEMORY = "These requests are about models:", "These requests use shared memory:"
OF_CONTROL = "These requests load models, change settings or generate:"


def difference(case, ours, theirs):
    """Returns the row of the table for a case whose status differs."""
    unknown = " of an unknown model" if "unknown" in case.id and case.kind.startswith(("model", "Model")) else ""
    return case.protocol, case.kind + unknown, theirs.status, ours.status


def test_good_requests(targets):
    """Both answer every good request, with the same tensors to the byte."""
    theirs_at, ours_at = targets
    cases = list(good_cases(configs(ours_at)))
    assert len(cases) > 250
    first = {case.kind: case for case in reversed(cases)}
    for case in cases if ALL else (*cases[::3], *first.values()):
        theirs, ours = case.ask(theirs_at), case.ask(ours_at)
        assert theirs.status in GOOD and ours.status in GOOD, (case.id, theirs, ours)
        assert ours.tensors and ours.tensors == theirs.tensors, case.id
        assert ours.facts == theirs.facts, case.id
        only_triton = {"parameters"} if theirs.keys - ours.keys else set()
        assert theirs.keys == ours.keys | only_triton, case.id
        assert not only_triton or "pipeline" in case.id or "picture" in case.id, case.id


def test_bad_requests(targets):
    """Both refuse every bad request. The codes differ where docs/triton-differences.md says so, and nowhere else."""
    theirs_at, ours_at = targets
    cases = list(bad_cases(configs(ours_at)))
    assert len(cases) > 300
    found = set()
    for case in cases:
        theirs, ours = case.ask(theirs_at), case.ask(ours_at)
        assert ours.status not in GOOD and ours.text, (case.id, ours)
        row = difference(case, ours, theirs)
        assert theirs.status not in GOOD or row in listed(OF_MODELS), (case.id, theirs)
        if theirs.status != ours.status:
            found.add(row)
    assert found == {row for row in listed(OF_MODELS) if "unknown model" not in row[1]}


def test_shared_memory(targets):
    """Regions and tensors in them. What Triton writes there the gateway writes too."""
    theirs_at, ours_at = targets
    texts = b"".join(len(text).to_bytes(4, "little") + text for text in (b"a", b"bcd", b"", b"xyz"))
    found, said = set(), {}
    content = np.arange(16, dtype=np.float32).tobytes() + texts + bytes(REGION_BYTES - 64 - len(texts))
    with shared_file(content) as file, shared_file(bytes(8)) as short:
        cases = list(shared_memory_cases(file.key, short.key))
        assert len(cases) > 50
        for case in cases:
            answers, written = [], []
            for target in (theirs_at, ours_at):
                file.put(OUTPUT_AT, bytes(1024))
                answers.append(case.ask(target))
                written.append(file.get(OUTPUT_AT, 1024))
            theirs, ours = answers
            if theirs.status != ours.status:
                found.add(difference(case, ours, theirs))
            said[case.id] = theirs.status, theirs.text
            assert case.good == (ours.status in GOOD), (case.id, theirs, ours)
            if case.good:
                assert theirs.status in GOOD, (case.id, theirs)
                assert ours.tensors == theirs.tensors and ours.keys == theirs.keys, case.id
                assert written[0] == written[1], case.id
                assert any(written[0]) == (case.kind == "tensors in shared memory"), case.id
    unexpected = {kind for _, kind, *_ in found ^ listed(OF_SHARED_MEMORY)}
    assert not unexpected, "\n".join(
        f"{name}: {answer}" for name, answer in said.items() if any(kind in name for kind in unexpected)
    )


def test_a_picture_that_is_none(targets):
    """The row's status is an error of the request in the gateway, in every model that looks at the picture."""
    _, ours_at = targets
    for model in ("digit_detector", "digit_detector_pipeline", "digit_detector_picture", "digit_preprocess"):
        bad = {"data": ("UINT8", np.zeros((1, 100), np.uint8))}
        for body, headers in (http_body(bad, True), (b"", {})):
            ours = Case(model, "bad picture", False, "http", f"/v2/models/{model}/infer", headers, body).ask(ours_at)
            assert ours.status == "400" and "not a JPEG, PNG, WebP, BMP or GIF" in ours.text, (model, ours)


def test_requests_about_models(targets):
    """Facts about the server and its models have the same keys."""
    theirs_at, ours_at = targets
    cases = list(other_cases(configs(ours_at)))
    assert len(cases) > 150
    found = set()
    for case in cases:
        theirs, ours = case.ask(theirs_at), case.ask(ours_at)
        if theirs.status != ours.status:
            found.add(difference(case, ours, theirs))
        else:
            assert ours.keys == theirs.keys, case.id
        assert case.good == (ours.status in GOOD) == (theirs.status in GOOD), (case.id, theirs, ours)
    assert found == {row for row in listed(OF_MODELS) if "unknown model" in row[1]}


def test_requests_that_change_the_server(request, tmp_path):
    """Models that are loaded and unloaded, the settings of traces and logs, and text that is generated."""
    installed()
    folders = tmp_path / "theirs", tmp_path / "ours"
    for folder in folders:
        for name in ("double", "later"):
            double(folder, name, config=batching())
        double(folder, "single", config='backend: "onnxruntime"', shape=("n",))
        identity(folder, "text", "BYTES", ("batch", 1), batching())
        double(folder, "broken", config=batching())
        (folder / "broken/1/model.onnx").write_bytes(b"broken")
    explicit = ["--model-control-mode=explicit", *(f"--load-model={name}" for name in ("double", "single", "text"))]
    traces = [[f"--trace-config=triton,file={tmp_path / name}", "--trace-config=level=OFF"] for name in ("t", "o")]
    triton = Triton(folders[0], "--", *explicit, *traces[0])
    request.addfinalizer(triton.stop)
    assert triton.listens.wait(300) and triton.process.poll() is None, "".join(triton.log)
    file = (folders[0] / "later/1/model.onnx").read_bytes()
    found, count = set(), 0
    with running(folders[1], *explicit, *traces[1]) as gateway:
        theirs_at, ours_at = Target("Triton", triton.http, triton.grpc), Target("opgate", gateway.http, gateway.grpc)
        for case in (*control_cases(file), *settings_cases(), *generate_cases()):
            theirs, ours = case.ask(theirs_at), case.ask(ours_at)
            assert case.good == (ours.status in GOOD), (case.id, theirs, ours)
            if case.good:
                assert theirs.status in GOOD and ours.keys == theirs.keys, (case.id, theirs, ours)
                assert ours.facts == theirs.facts, case.id
            if theirs.status != ours.status:
                found.add((case.protocol, case.kind, theirs.status, ours.status))
            count += 1
    assert count > 130
    assert found == listed(OF_CONTROL)


class TestCommand:
    def test_a_repository_that_is_not_there(self, tmp_path):
        started = Triton(tmp_path / "none")
        assert started.process.wait(60) == 1
        assert "is not a directory: name one with --model-repository" in "".join(started.log)

    def test_a_start_that_takes_too_long(self, server, models):
        started = Triton(models, "--start-timeout", "0.3")
        assert started.process.wait(60) == 1
        started._reader.join(10)
        assert "opgate: the server has not started in 0.3 s (--start-timeout)\n" in started.log
        assert not started.regions()

    def test_options_of_the_server(self, server, models):
        started = Triton(models, "--", "--no-such-option")
        assert started.process.wait(60) == 1
        started._reader.join(10)
        assert "no-such-option" in "".join(started.log)

    def test_a_port_that_is_taken(self, server, models):
        started = Triton(models, http=server.http)
        assert started.process.wait(60) == 1
        started._reader.join(10)
        assert f"another server answers at http://127.0.0.1:{server.http}" in "".join(started.log)

    def test_an_installation_that_fails(self, tmp_path, monkeypatch):
        monkeypatch.setattr(triton, "PACKAGE", "0.0.404")
        (tmp_path / "triton").mkdir()
        (tmp_path / "triton/precious").write_text("kept")
        with pytest.raises(triton.TritonError, match=r"pip download .*0\.0\.404 failed"):
            triton.install(tmp_path / "triton", lambda line: None)
        assert not (tmp_path / "triton/installed.txt").exists()
        assert (tmp_path / "triton/precious").read_text() == "kept"

    def test_a_start_beside_another(self):
        """A server that starts reads the whole backend, also while another start brings a changed one."""
        installed()
        backend = FOLDER / "backends/onnxruntime/model.py"
        current = backend.read_text()
        backend.write_text("# another version\n" + current)
        with backend.open() as reader:
            triton.install(FOLDER, print)
            assert reader.read() == "# another version\n" + current
        assert backend.read_text() == current
        assert not list(backend.parent.glob(".*"))
        inode = backend.stat().st_ino
        triton.install(FOLDER, print)
        assert backend.stat().st_ino == inode

    def test_an_installation_beside_another(self):
        """The second waits for the first."""
        installed()
        second = threading.Thread(target=triton.install, args=(FOLDER, print))
        with folders.locked(FOLDER):
            second.start()
            second.join(0.3)
            assert second.is_alive()
        second.join(10)
        assert not second.is_alive()
