"""How long ops take, as the console shows it."""

from __future__ import annotations

import re

from tests import skips

skips.need("playwright", "axe_playwright_python")

from playwright.sync_api import expect  # noqa: E402

from tests.console.browsing import faults, predict  # noqa: E402
from tests.system.running import ROOT  # noqa: E402

DIGITS = ROOT / "docs" / "examples" / "digits.jpg"


def test_the_time_of_each_op(open_page, gateway):
    predict(gateway, "digit_detector", DIGITS.read_bytes(), "image/jpeg")
    page = open_page("models/digit_detector/1")
    mish = page.get_by_role("row", name="Mish 22 nodes")
    expect(mish).to_contain_text("%")
    page.get_by_role("button", name="By node").click()
    expect(page.get_by_role("row", name="Mish stem.mish")).to_contain_text(re.compile(" [µm]s"))
    assert faults(page) == []
    page.get_by_role("row", name="ImagePreprocess image").get_by_role("link").click()
    expect(page.get_by_role("heading", name="ImagePreprocess")).to_be_visible()


def test_every_operator_of_one_request(open_page):
    page = open_page("models/digit_detector/1/graph")
    page.get_by_role("button", name="Measure every operator").click()  # nothing was tried: it sends an example
    table = page.get_by_role("table", name="Operators in the order in which they ran")
    expect(table.get_by_role("rowheader", name="ImagePreprocess")).to_have_count(1)
    expect(table.get_by_role("rowheader", name="Conv").first).to_be_visible()
    page.get_by_role("button", name="List").click()
    expect(page.get_by_role("row", name="Mish custom stem.mish")).to_contain_text(re.compile(" [µm]s"))
    assert faults(page) == []


def test_ops_of_a_request(open_page, gateway):
    page = open_page("requests")
    expect(page.get_by_role("heading", name="Requests")).to_be_visible()
    page.wait_for_timeout(1500)  # ops are recorded while somebody watches
    before = page.get_by_role("link", name="Request to digit_detector at").count()
    predict(gateway, "digit_detector", DIGITS.read_bytes(), "image/jpeg")
    expect(page.get_by_role("link", name="Request to digit_detector at")).to_have_count(before + 1)
    page.get_by_role("link", name="Request to digit_detector at").first.click()
    table = page.get_by_role("table", name="Where the time went, from the arrival of the request")
    expect(table.get_by_role("rowheader", name="DetectionPostprocess boxes")).to_be_visible()
