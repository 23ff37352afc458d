"""The console in a real browser, before a real gateway."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.service.onnx_models import batching, double, identity, write_config
from tests.system.running import ROOT, Server, running

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.console.browsing import Open


@pytest.fixture(scope="package")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models of this project, some that take a text, take a number and stream, and one that can't be loaded."""
    folder = tmp_path_factory.mktemp("console") / "repository"
    shutil.copytree(ROOT / "model_repository", folder)
    double(folder, "each", config=batching(max_batch_size=4, extra="model_transaction_policy { decoupled: true }"))
    identity(folder, "texts", "BYTES", shape=("batch", 1), config=batching())
    identity(folder, "number", "FP32", shape=("batch", 1), config=batching())
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
    from playwright.sync_api import sync_playwright

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
    from tests.console.browsing import pages

    with pages(browser, gateway.url) as opened:
        yield opened
