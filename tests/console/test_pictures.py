"""The pictures of docs/console.md. OPGATE_CONSOLE_PICTURES names a folder that gets new ones."""

from __future__ import annotations

import os
from pathlib import Path

from tests import skips

skips.need("playwright", "axe_playwright_python")

from playwright.sync_api import expect  # noqa: E402

from tests.console.browsing import add, picture, predict  # noqa: E402
from tests.system.running import ROOT  # noqa: E402

DIGITS = ROOT / "docs" / "examples" / "digits.jpg"
#: Bytes of a picture.
MOST = 120_000


def test_pictures(open_page, gateway, repository, library, tmp_path):
    folders = [str(repository.parent), str(library.parents[2]), str(ROOT)]
    folder = Path(os.environ.get("OPGATE_CONSOLE_PICTURES") or tmp_path)
    page = open_page()
    expect(page.get_by_role("link", name="my_add")).to_be_visible()
    seconds = 20 if "OPGATE_CONSOLE_PICTURES" in os.environ else 1
    for second in range(seconds):
        for _ in range(1 + second % 4):
            add(gateway)
            predict(gateway, "digit_detector", DIGITS.read_bytes(), "image/jpeg")
            predict(gateway, "digit_detector_pipeline", DIGITS.read_bytes(), "image/jpeg")
        page.wait_for_timeout(1000)
    take(page, folder, "models", folders)

    go(page, "models/digit_detector/1")
    expect(page.get_by_role("heading", name="How it runs")).to_be_visible()
    take(page, folder, "model", folders)

    go(page, "models/digit_detector/1/graph")
    canvas = page.get_by_role("application")
    expect(canvas).to_be_visible()
    canvas.get_by_text("ImagePreprocess").click()
    take(page, folder, "graph", folders)

    go(page, "models/digit_detector/1/try")
    page.get_by_role("button", name="digits").click()
    expect(page.get_by_role("img", name="The picture with 8 things")).to_be_visible()
    take(page, folder, "try", folders)

    go(page, "models/pointcloud_segmenter/1/try")
    page.get_by_role("button", name="room").click()
    expect(page.get_by_role("application", name="616 points")).to_be_visible()
    take(page, folder, "points", folders)

    go(page, "requests")
    page.get_by_role("link", name="Request to digit_detector_pipeline").first.click()
    expect(page.get_by_role("heading", name="Request of")).to_be_visible()
    take(page, folder, "requests", folders)

    go(page, "ops/opgate/ImagePreprocess")
    expect(page.get_by_role("heading", name="Signature")).to_be_visible()
    take(page, folder, "ops", folders)

    page.get_by_label("Theme").select_option("dark")
    go(page, "server")
    expect(page.get_by_role("heading", name="Processes")).to_be_visible()
    take(page, folder, "server", folders)


def go(page, address):
    page.evaluate("address => location.hash = '#/' + address", address)


#: Puts folders that everybody may have in the place of this machine's.
NO_PATHS = """folders => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) for (const folder of folders) {
    const text = texts.currentNode.data;
    if (text.includes(folder)) texts.currentNode.data = text.replaceAll(folder, "/srv/opgate");
  }
}"""


def take(page, folder, name, folders):
    page.evaluate("document.activeElement.blur()")
    page.wait_for_timeout(400 if "OPGATE_CONSOLE_PICTURES" in os.environ else 50)
    page.evaluate(NO_PATHS, folders)
    assert 5_000 < picture(page, folder / f"{name}.png", MOST) < MOST
