"""The site that `make docs` builds: what must be in it, and that every link within leads somewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from opgate import cli
from opgate.ops_build.op_table import read_table, snake_case
from opgate.service import app
from opgate.service.gateway import Gateway
from opgate.service.settings import Settings
from tests import PROJECT
from tests.skips import need
from tests.system.running import running

#: What a page loads when it is opened: the elements and the attributes that name it.
LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src", "object": "data"}


class Page(HTMLParser):
    """The anchors of a page, where its links lead, what it loads, and its text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.words: list[str] = []
        self.feed(path.read_text())
        self.text = "".join(self.words)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.anchors.update(given[name] for name in ("id", "name") if given.get(name))
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        # Other links of the head name pages, and load nothing.
        if tag in LOADED and (tag != "link" or given.get("rel") in ("stylesheet", "preload", "icon", "modulepreload")):
            self.loads.append(given.get(LOADED[tag]) or "")

    def handle_data(self, data):
        self.words.append(data)


@pytest.fixture(scope="module")
def site(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built with warnings as errors."""
    need("furo", "myst_parser", "sphinx")
    folder = tmp_path_factory.mktemp("site") / "1.2"
    command = [sys.executable, "docs/site/build.py", str(folder), "--library", str(library)]
    paths = os.pathsep.join([str(PROJECT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "DOCS_VERSIONS": "1.2"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=PROJECT, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Page]:
    """The pages by their paths."""
    return {str(path.relative_to(site)): Page(path) for path in site.rglob("*.html") if "_static" not in path.parts}


def test_every_page_and_every_op_is_there(pages, library):
    docs = PROJECT / "docs"
    wanted = {str(path.relative_to(docs).with_suffix(".html")) for path in docs.rglob("*.md")}
    wanted |= {f"ops/{snake_case(op.name)}.html" for op in read_table(library)}
    assert len(wanted) > 100 and wanted - pages.keys() == set()


def test_a_page_of_an_op_has_its_engines_and_its_functions(pages, library):
    for op in read_table(library):
        text = pages[f"ops/{snake_case(op.name)}.html"].text
        assert all(part in text for part in ("ONNX Runtime", "PyTorch", "TensorRT", "OpenVINO", *op.dtypes)), op.name
        assert f"\n{snake_case(op.name)}(" in text and op.signature in text, op.name


def test_each_op_has_its_figure(pages, site, library):
    table = read_table(library)
    for op in table:
        name = snake_case(op.name)
        (figure,) = [load for load in pages[f"ops/{name}.html"].loads if load.endswith(f"{name}_tensors.svg")]
        picture = (site / "ops" / figure).read_text()
        assert all(f">{tensor.name}" in picture for tensor in (*op.inputs, *op.outputs)), name
    curves = [
        op.name for op in table if any("_curve.svg" in load for load in pages[f"ops/{snake_case(op.name)}.html"].loads)
    ]
    assert {"Mish", "MishBackward", "Asinh", "LeakyRelu"} < set(curves) and "MyAdd" not in curves


def test_links_and_anchors_lead_somewhere(pages, site):
    checked = 0
    for name, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (site / name).parent / unquote(parts.path) if parts.path else site / name
            assert target.is_file(), f"{name}: {link}"
            if parts.fragment and target.suffix == ".html":
                there = pages[str(target.resolve().relative_to(site))].anchors
                assert unquote(parts.fragment) in there, f"{name}: {link}"
                checked += 1
    assert checked > 1000


def test_each_page_leads_to_the_other_versions(pages, site):
    for name, page in pages.items():
        (link,) = [link for link in page.links if link.endswith("../1.2/index.html")]
        assert (site / name).parent.joinpath(link).resolve() == site / "index.html", name


def test_no_page_loads_anything_from_elsewhere(pages, site):
    loads = [(name, load) for name, page in pages.items() for load in page.loads]
    assert len(loads) > 1000
    for name, load in loads:
        assert (not urlsplit(load).netloc and not urlsplit(load).scheme) or load.startswith("data:"), (name, load)
    for sheet in site.rglob("*.css"):
        assert "@import" not in sheet.read_text() and "url(http" not in sheet.read_text(), sheet


def options() -> Iterator[str]:
    """Yields every command, and the options of `opgate serve`."""
    yield from (f"opgate {name}" for name in cli.COMMANDS)
    yield from (Settings.option(name) for name in Settings.flags())


def test_the_reference_has_every_command_setting_route_and_metric(pages, library, tmp_path):
    def reference(name):
        return pages[f"reference/{name}.html"].text

    assert [option for option in options() if option not in reference("cli")] == []
    missing = [name for name in Settings.model_fields if Settings.variable(name) not in reference("settings")]
    assert missing == []
    gateway = Gateway(Settings(model_repository=tmp_path))
    routes = [
        route for route in app.create_app(gateway).routes if getattr(route, "path", "").startswith(("/v2", "/predict"))
    ]
    assert len(routes) > 20 and [r.path for r in routes if r.path not in reference("http")] == []
    for method in ("ModelInfer", "ModelStreamInfer", "CudaSharedMemoryRegister", "LogSettings"):
        assert method in reference("grpc")
    with running(PROJECT / "model_repository", "--model-control-mode=explicit", "--load-model=my_add") as server:
        names = [line.split()[2] for line in server.get("/metrics").splitlines() if line.startswith("# HELP ")]
    assert len(names) > 40 and [name for name in names if name not in reference("metrics")] == []


def test_python_functions_have_their_docstrings(pages):
    text = pages["reference/python.html"].text
    for name in ("opgate.op_library", "opgate.torch.load", "opgate.jax", "opgate.tvm_ffi", "opgate.openvino.node"):
        assert name in text
    assert "\nop(signature" in text
    assert "Raises FileNotFoundError that says what to do if it was not built" in text
