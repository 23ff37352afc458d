"""The console in a real browser, before a real gateway."""

from __future__ import annotations

import io
import shutil
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from PIL import Image

from tests import skips
from tests.service.onnx_models import batching, double, write_config
from tests.system.running import ROOT, Server, running

skips.need("playwright", "axe_playwright_python")

from axe_playwright_python.sync_playwright import Axe  # noqa: E402
from playwright.sync_api import Browser, Page, expect, sync_playwright  # noqa: E402

WIDE, NARROW = (1280, 800), (360, 740)
Open = Callable[..., Page]

expect.set_options(timeout=10_000)


@pytest.fixture(scope="package")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models of this project, one that streams, and one that can't be loaded."""
    folder = tmp_path_factory.mktemp("console") / "repository"
    shutil.copytree(ROOT / "model_repository", folder)
    double(folder, "each", config=batching(max_batch_size=4, extra="model_transaction_policy { decoupled: true }"))
    write_config(folder, "broken", 'backend: "onnxruntime"\nmax_batch_size: 4\n')
    (folder / "broken" / "1" / "model.onnx").write_bytes(b"no model")
    return folder


@pytest.fixture(scope="package")
def gateway(repository: Path, library: Path) -> Iterator[Server]:
    """A gateway whose models can be loaded and unloaded, and that shows the beginnings of inputs and outputs."""
    with running(
        repository, "--model-control-mode", "explicit", "--load-model", "*", "--console-bodies", "--no-strict-readiness"
    ) as server:
        yield server


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is not installed")
    with sync_playwright() as playwright:
        # Without a GPU the browser draws WebGL with the processor.
        with_microphone = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
        started = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--enable-unsafe-swiftshader", *with_microphone]
        )
        yield started
        started.close()


@pytest.fixture
def open_page(browser: Browser, gateway: Server) -> Iterator[Open]:
    """Opens a page of the console. At the end it must have reported no error of its own."""
    with pages(browser, gateway.url) as opened:
        yield opened


@contextmanager
def pages(browser: Browser, base: str) -> Iterator[Open]:
    """Yields what opens pages of a gateway, by the part of their address behind `#/`."""
    contexts, errors = [], []

    def opened(address: str = "", size: tuple[int, int] = WIDE, scheme: str = "light", **how: object) -> Page:
        context = browser.new_context(
            viewport={"width": size[0], "height": size[1]}, color_scheme=scheme, reduced_motion="reduce", **how
        )
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if "Content Security" in message.text else None)
        page.goto(f"{base}/#/{address}")
        return page

    try:
        yield opened
    finally:
        for context in contexts:
            context.close()
    assert errors == []


def faults(page: Page) -> list[str]:
    """Returns the serious and critical findings of axe on a page."""
    found = Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {each['help']}: {[node['target'] for node in each['nodes']][:4]}"
        for each in found
        if each["impact"] in ("serious", "critical")
    ]


def predict(gateway: Server, model: str, body: bytes, media: str = "application/json") -> bytes:
    """Sends a request, and returns the answer."""
    request = urllib.request.Request(f"{gateway.url}/predict/{model}", body, {"Content-Type": media})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return bytes(answer.read())


def add(gateway: Server) -> None:
    predict(gateway, "my_add", b'{"a": [1, 2, 3, 4], "b": [10, 20, 30, 40]}')


def picture(page: Page, path: Path, most: int) -> int:
    """Writes a picture of what a page shows, with as many colours as fit into so many bytes. Returns its bytes."""
    shot = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    for colours in (128, 64, 40, 24, 16):
        shot.quantize(colours, dither=Image.Dither.NONE).save(path, optimize=True)
        if path.stat().st_size < most:
            break
    return path.stat().st_size
