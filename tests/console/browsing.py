"""Pages in a browser, and what they are held to."""

from __future__ import annotations

import io
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import Browser, Page, expect

from tests.system.running import Server

WIDE, NARROW = (1280, 800), (360, 740)
Open = Callable[..., Page]

expect.set_options(timeout=10_000)


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
