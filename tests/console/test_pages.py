"""What people see and do on the pages of the console."""

from __future__ import annotations

import contextlib
import io
import json
import re
import socket
import threading
import urllib.error
import urllib.request

import pytest

from tests import skips

skips.need("playwright", "axe_playwright_python")

from playwright.sync_api import expect  # noqa: E402

from tests.conftest import ALL  # noqa: E402
from tests.console.browsing import NARROW, WIDE, add, faults, pages, predict  # noqa: E402
from tests.service.onnx_models import batching, double  # noqa: E402
from tests.system.running import ROOT, Server, running  # noqa: E402

DIGITS = ROOT / "docs" / "examples" / "digits.jpg"


def row(page, name):
    return page.get_by_role("row").filter(has=page.get_by_role("link", name=name, exact=True))


class TestModels:
    def test_shows_each_model_and_what_it_does(self, open_page, gateway):
        page = open_page()
        expect(row(page, "my_add")).to_contain_text("Ready")
        for _ in range(30):
            add(gateway)
        expect(row(page, "my_add").get_by_role("cell").nth(1)).not_to_have_text("0")
        expect(row(page, "my_add").get_by_role("cell").nth(4)).to_contain_text("s")  # p50, with its unit
        expect(row(page, "my_add").get_by_role("img")).to_have_accessible_name(
            re.compile("my_add: requests per second in the last minute")
        )

    def test_says_why_a_model_is_not_ready(self, open_page):
        page = open_page()
        banner = page.get_by_role("region", name="1 model is not ready")
        expect(banner).to_contain_text("broken")
        expect(banner).to_contain_text("model.onnx")

    def test_filters(self, open_page):
        page = open_page()
        page.get_by_label("Filter models").fill("digit pipe")
        expect(page.get_by_role("row")).to_have_count(2)
        expect(row(page, "digit_detector_pipeline")).to_be_visible()
        page.get_by_label("Filter models").fill("nothing like this")
        expect(page.get_by_text("No model fits the filter.")).to_be_visible()

    def test_unloads_when_asked_twice_and_loads_again(self, open_page):
        page = open_page()
        page.get_by_role("button", name="Unload leaky_relu").click()
        asked = page.get_by_role("group", name="Unload leaky_relu? Its clients get errors.")
        asked.get_by_role("button", name="Cancel").click()
        expect(row(page, "leaky_relu")).to_contain_text("Ready")
        page.get_by_role("button", name="Unload leaky_relu").click()
        asked.get_by_role("button", name="Unload").click()
        unloaded = page.get_by_role("row").filter(has_text="leaky_relu")
        expect(unloaded).not_to_contain_text("Ready")
        page.get_by_role("button", name="Load leaky_relu", exact=True).click()
        expect(unloaded).to_contain_text("Ready")

    def test_shows_a_new_model_without_a_reload(self, open_page, gateway, repository):
        page = open_page()
        expect(row(page, "my_add")).to_be_visible()
        double(repository, "late", config=batching())
        load(gateway, "late")
        expect(row(page, "late")).to_contain_text("Ready")


def load(gateway, model):
    request = urllib.request.Request(f"{gateway.url}/v2/repository/models/{model}/load", b"{}")
    urllib.request.urlopen(request, timeout=20).close()


class TestOneModel:
    def test_overview(self, open_page, gateway):
        add(gateway)
        page = open_page("models/my_add/1")
        expect(page.get_by_role("heading", name="my_add")).to_be_visible()
        expect(page.get_by_role("img", name="Phases of a request: queue")).to_be_visible()
        expect(page.get_by_text("up to 64 rows of several requests")).to_be_visible()
        expect(page.get_by_role("row", name="a FP32 [-1, 4] input")).to_be_visible()
        expect(page.get_by_text("libopgate_onnxruntime.so")).to_be_visible()

    def test_graph_as_a_picture_and_a_list(self, open_page):
        page = open_page("models/digit_detector/1/graph")
        picture = page.get_by_role("application", name="Picture of the graph with 73 nodes")
        picture.focus()
        page.keyboard.press("n")
        details = page.get_by_role("complementary", name="The chosen node")
        expect(details.get_by_role("heading")).to_have_text("ImagePreprocess")
        expect(details).to_contain_text("custom op")
        before = picture.locator("g").first.get_attribute("transform")
        page.keyboard.press("+")
        expect(picture.locator("g").first).not_to_have_attribute("transform", before)
        page.get_by_role("button", name="List").click()
        page.get_by_role("button", name="Mish").first.click()
        expect(details).to_contain_text("stem.mish")
        details.get_by_role("link", name="What it does").click()
        expect(page.get_by_role("heading", name="Mish")).to_be_visible()

    def test_steps_of_a_pipeline_are_its_graph(self, open_page):
        page = open_page("models/digit_detector_pipeline/1/graph")
        page.get_by_role("button", name="List").click()
        page.get_by_role("button", name="digit_network").click()
        page.get_by_role("link", name="Open the model").click()
        expect(page.get_by_role("heading", name="digit_network")).to_be_visible()

    def test_config_marks_what_was_added(self, open_page):
        page = open_page("models/digit_detector/1/config")
        config = page.get_by_label("The config as JSON")
        expect(config).to_contain_text('+   "platform": "onnxruntime_onnx"')
        page.get_by_role("button", name="config.pbtxt").click()
        expect(page.get_by_label("config.pbtxt", exact=True)).to_contain_text("max_batch_size: 16")

    def test_a_model_that_is_not_there(self, open_page):
        page = open_page("models/nobody/1")
        expect(page.get_by_text("The gateway serves no version 1 of nobody.")).to_be_visible()


class TestTryIt:
    def test_a_picture_and_boxes(self, open_page):
        page = open_page("models/digit_detector/1/try")
        page.get_by_role("button", name="digits").click()
        expect(page.get_by_text("Status 200")).to_be_visible()
        shown = page.get_by_role("img", name="The picture with 8 things marked: 2, 7, 2, 6, 4, 5, 1, 8")
        expect(shown).to_be_visible()
        expect(page.get_by_role("cell", name="0.9198")).to_be_visible()
        # The edge of the first record's box has the colour of its label.
        pixel = "canvas => [...canvas.getContext('2d').getImageData(447, 130, 1, 1).data].slice(0, 3)"
        assert shown.evaluate(pixel) == [0xE6, 0x19, 0x4B]

    def test_a_chosen_file(self, open_page):
        page = open_page("models/digit_detector/1/try")
        page.get_by_label("data").set_input_files(DIGITS)
        expect(page.get_by_role("img", name="The chosen picture")).to_be_visible()
        page.get_by_label("Answer with the picture that the model draws").check()
        page.get_by_role("button", name="Send").click()
        drawn = page.get_by_role("img", name="The picture that the model drew")
        expect(drawn).to_be_visible()
        assert drawn.evaluate("picture => picture.decode().then(() => picture.naturalWidth)") > 500
        expect(page.get_by_label("the request in code", exact=True)).to_contain_text("Accept: image/*")

    def test_several_pictures_and_a_map(self, open_page):
        page = open_page("models/bev_segmenter/1/try")
        page.get_by_role("button", name="street").click()
        expect(page.get_by_role("img", name="occupancy as a map of 32 rows and 32 columns")).to_be_visible()
        expect(page.get_by_label("the request in code", exact=True)).to_contain_text("-F 'front=@front.jpg'")

    def test_a_sound(self, open_page):
        page = open_page("models/keyword_spotter/1/try")
        page.get_by_role("button", name="yes").click()
        expect(page.get_by_role("img", name="Waveform of 1.00 s")).to_be_visible()
        expect(page.get_by_role("listitem").filter(has_text="yes")).to_contain_text("0.9")

    def test_a_recorded_sound(self, open_page):
        page = open_page("models/keyword_spotter/1/try", permissions=["microphone"])
        page.get_by_role("button", name="Record").click()
        page.wait_for_timeout(700)
        page.get_by_role("button", name="Stop recording").click()
        expect(page.get_by_text("recording.wav")).to_be_visible()
        page.get_by_role("button", name="Send").click()
        expect(page.get_by_text("Status 200")).to_be_visible()

    @pytest.mark.parametrize("kind", ["ply", "rows"])
    def test_points(self, open_page, kind, tmp_path):
        page = open_page("models/pointcloud_segmenter/1/try")
        if kind == "ply":
            page.get_by_role("button", name="room").click()
            number = "616 points"
        else:
            rows = tmp_path / "cloud.xyz"
            rows.write_text("\n".join(f"{i % 7} {i % 5} {i % 3}" for i in range(64)))
            page.get_by_label("data").set_input_files(rows)
            page.get_by_role("button", name="Send").click()
            number = "64 points"
        cloud = page.get_by_role("application", name=f"{number}. Arrows turn the cloud")
        expect(cloud).to_be_visible()
        before = cloud.screenshot()
        cloud.focus()
        page.keyboard.press("ArrowLeft")
        assert cloud.screenshot() != before

    def test_tensors(self, open_page):
        page = open_page("models/my_add/1/try")
        page.get_by_label("a FP32, shape [4]").fill("[1, 2, 3, 4]")
        page.get_by_label("b FP32, shape [4]").fill("[10, 20, 30, 40]")
        page.get_by_role("button", name="Send").click()
        expect(page.get_by_text("[12, 24, 36, 48]", exact=True)).to_be_visible()

    def test_an_error_as_clients_get_it(self, open_page):
        page = open_page("models/my_add/1/try")
        page.get_by_label("a FP32, shape [4]").fill("[1, 2")
        page.get_by_role("button", name="Send").click()
        expect(page.get_by_role("alert")).to_contain_text("Input a: expected JSON such as")
        page.get_by_label("a FP32, shape [4]").fill("[1, 2]")
        page.get_by_role("button", name="Send").click()
        expect(page.get_by_text("Status 400")).to_be_visible()
        expect(page.get_by_text("input 'a': expected FP32 of shape [4], got shape [2]")).to_be_visible()

    def test_a_large_tensor_is_made_by_the_console(self, open_page):
        page = open_page("models/digit_network/1/try")
        page.get_by_label("Values of image").select_option("zeros")
        page.get_by_role("button", name="Send").click()
        expect(page.get_by_role("img", name="head as a map of 14 rows and 2000 columns")).to_be_visible()

    def test_a_text(self, open_page):
        page = open_page("models/texts/1/try")
        page.get_by_label("x BYTES, shape [1]").fill('Zwölf "Eier"')
        page.get_by_role("button", name="Send").click()
        expect(page.get_by_role("definition").filter(has_text='[Zwölf "Eier"]')).to_be_visible()
        page.get_by_role("button", name="Python, tritonclient").click()
        assert r"Zw\xc3\xb6lf" in run(page.get_by_label("the request in code", exact=True).text_content())

    def test_a_number(self, open_page):
        page = open_page("models/number/1/try")
        page.get_by_label("x FP32, shape [1]").fill("2.5")
        page.get_by_role("button", name="Send").click()
        expect(page.get_by_role("definition").filter(has_text="[2.5]")).to_be_visible()

    def test_rows_of_a_table(self, open_page, tmp_path):
        rows = tmp_path / "rows.csv"
        rows.write_text("x\n1.5\n2.5\n")
        page = open_page("models/number/1/try")
        page.get_by_text("Rows from a CSV file").click()
        page.get_by_label("The first line names the inputs.").set_input_files(rows)
        expect(page.get_by_role("row", name="2 [2.5]")).to_be_visible()
        expect(page.get_by_label("the request in code", exact=True)).to_contain_text("Content-Type: text/csv")

    def test_a_stream(self, open_page):
        page = open_page("models/each/1/try")
        page.get_by_label("x FP32, shape [4]").fill("[1, 2, 3, 4]")
        page.get_by_role("button", name="Send").click()
        expect(page.get_by_text("4 responses")).to_be_visible()
        expect(page.get_by_role("listitem").filter(has_text='"y":8')).to_be_visible()

    def test_code_that_runs(self, open_page, gateway, tmp_path):
        page = open_page("models/my_add/1/try")
        page.get_by_role("button", name="four numbers").click()
        code = page.get_by_label("the request in code", exact=True)
        expect(code).to_contain_text("curl")
        page.get_by_role("button", name="Python, tritonclient").click()
        output = run(code.text_content())
        assert "y [[12. 24. 36. 48.]]" in output
        page.get_by_role("button", name="Python, requests").click()
        assert "[12.0, 24.0, 36.0, 48.0]" in run(code.text_content())

    def test_copies_code(self, open_page):
        page = open_page("models/my_add/1/try", permissions=["clipboard-read", "clipboard-write"])
        page.get_by_role("button", name="four numbers").click()
        page.get_by_role("button", name="Copy the request in code").click()
        expect(page.get_by_text("Copied")).to_be_visible()
        assert page.evaluate("navigator.clipboard.readText()").startswith("curl 'http://127.0.0.1:")


def run(code):
    """Runs a program in Python, and returns what it prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {})
    return printed.getvalue()


class TestRequests:
    def test_waterfall(self, open_page, gateway):
        page = open_page("requests")
        predict(gateway, "digit_detector_pipeline", DIGITS.read_bytes(), "image/jpeg")
        page.get_by_role("link", name="Request to digit_detector_pipeline").first.click()
        table = page.get_by_role("table", name="Where the time went, from the arrival of the request")
        for part in ("read", "digit_preprocess", "digit_network", "digit_postprocess", "write"):
            expect(table.get_by_role("rowheader", name=part).first).to_be_visible()
        expect(page.get_by_role("heading", name="Request of")).to_be_focused()
        page.get_by_role("link", name="Close").click()
        expect(page.get_by_role("heading", name="Requests", exact=True)).to_be_focused()

    def test_bodies(self, open_page, gateway):
        page = open_page("requests")
        add(gateway)
        page.get_by_role("link", name="Request to my_add").first.click()
        expect(page.get_by_label("inputs a", exact=True)).to_contain_text("float32[1, 4] 1 2 3 4")
        expect(page.get_by_label("outputs y", exact=True)).to_contain_text("float32[1, 4] 12 24 36 48")

    def test_filters_and_pause(self, open_page, gateway):
        add(gateway)
        with pytest.raises(urllib.error.HTTPError):
            predict(gateway, "my_add", b'{"a": [1], "b": [1]}')
        page = open_page("requests")
        page.get_by_label("Status").select_option("failed")
        rows = page.get_by_role("row")
        expect(rows.nth(1)).to_contain_text("400")
        page.get_by_label("Status").select_option("succeeded")
        page.get_by_label("Model").select_option("my_add")
        expect(rows.nth(1)).to_contain_text("my_add")
        page.get_by_role("button", name="Pause").click()
        before = rows.count()
        add(gateway)
        expect(page.get_by_text(re.compile(r"Paused. [1-9]\d* requests? came since."))).to_be_visible()
        assert rows.count() == before
        page.get_by_role("button", name="Continue").click()

    def test_slowest(self, open_page, gateway):
        add(gateway)
        predict(gateway, "digit_detector", DIGITS.read_bytes(), "image/jpeg")
        page = open_page("requests")
        page.get_by_role("button", name="The slowest of each model").click()
        expect(page.get_by_role("link", name="Request to my_add")).to_have_count(1)
        expect(page.get_by_role("link", name="Request to digit_detector at")).to_have_count(1)


class TestOps:
    def test_search_and_one_op(self, open_page):
        page = open_page("ops")
        page.get_by_label("Search ops").fill("imagepre")
        page.get_by_role("link", name="ImagePreprocess").click()
        expect(page.get_by_label("signature", exact=True)).to_contain_text("ImagePreprocess(data: u8[total]")
        expect(page.get_by_role("row", name="pad int 114")).to_be_visible()
        expect(page.get_by_text("manifest.json")).to_be_visible()
        page.get_by_role("link", name="digit_detector version 1").click()
        expect(page.get_by_role("heading", name="digit_detector")).to_be_visible()

    def test_an_op_that_is_not_there(self, open_page):
        page = open_page("ops/opgate/Nothing")
        expect(page.get_by_text("No trusted library has the op opgate.Nothing.")).to_be_visible()


class TestServer:
    def test_processes_and_limits(self, open_page, gateway):
        page = open_page("server")
        expect(page.get_by_role("row", name=f"{gateway.process.pid} gateway")).to_contain_text("MB")
        expect(page.get_by_role("meter", name="Requests under way")).to_have_attribute("aria-valuenow", "0")
        expect(page.get_by_text("Largest body of a request")).to_be_visible()

    def test_log(self, open_page, gateway):
        page = open_page("server")
        log = page.get_by_role("log")
        expect(log).to_contain_text("listening")
        with pytest.raises(urllib.error.HTTPError):
            predict(gateway, "my_add", b'{"a": [1], "b": [7]}')
        expect(log).to_contain_text("expected FP32 of shape [4]")
        page.get_by_label("Filter lines").fill("no line has this")
        expect(log).to_have_text("No line fits the filter.")


class TestAnyPage:
    @pytest.mark.parametrize(
        ("size", "scheme"),
        [(WIDE, "light"), (NARROW, "dark"), *([(WIDE, "dark"), (NARROW, "light")] if ALL else [])],
        ids=lambda value: value if isinstance(value, str) else str(value[0]),
    )
    def test_is_accessible_and_fits(self, open_page, gateway, size, scheme):
        add(gateway)
        page = open_page("models", size, scheme)
        texts = {
            "models": "my_add",
            "models/digit_detector/1": "How it runs",
            "models/digit_detector/1/graph": "73 nodes",
            "models/digit_detector/1/try": "Drop a picture",
            "models/my_add/1/try": "Send a request",
            "models/digit_detector/1/config": "onnxruntime_onnx",
            "ops": "BallQuery",
            "ops/opgate/ImagePreprocess": "Signature",
            "server": "How near the limits are",
            "requests": "/predict/{model}",
        }
        for address, text in texts.items():
            page.evaluate("address => location.hash = '#/' + address", address)
            expect(page.get_by_text(text).first).to_be_visible()
            assert faults(page) == [], address
            assert page.evaluate("document.documentElement.scrollWidth") <= size[0], address
        page.get_by_role("link", name="Request to my_add").first.click()
        expect(page.get_by_role("heading", name="Request of")).to_be_visible()
        assert faults(page) == []
        page.evaluate("location.hash = '#/models/digit_detector/1/try'")
        page.get_by_role("button", name="digits").click()
        expect(page.get_by_role("img", name="The picture with 8 things")).to_be_visible()
        assert faults(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0]

    def test_keyboard_alone(self, open_page):
        page = open_page()
        expect(row(page, "my_add")).to_be_visible()
        page.keyboard.press("Tab")
        expect(page.get_by_text("Skip to the content")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.get_by_role("main")).to_be_focused()
        page.keyboard.press("Tab")
        expect(page.get_by_label("Filter models")).to_be_focused()
        page.keyboard.type("my_add")
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="my_add")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="my_add")).to_be_focused()
        page.get_by_role("navigation", name="Parts of my_add").get_by_role("link", name="Try it").focus()
        page.keyboard.press("Enter")
        page.get_by_role("button", name="four numbers").focus()
        page.keyboard.press("Enter")
        expect(page.get_by_text("[12, 24, 36, 48]", exact=True)).to_be_visible()

    def test_menu_of_a_phone(self, open_page):
        page = open_page(size=NARROW)
        expect(page.get_by_role("link", name="Server")).to_be_hidden()
        page.get_by_role("button", name="Menu").click()
        page.get_by_role("link", name="Server").click()
        expect(page.get_by_role("heading", name="Server")).to_be_focused()
        expect(page.get_by_role("link", name="Ops")).to_be_hidden()

    def test_theme_is_kept(self, open_page):
        page = open_page()
        page.get_by_label("Theme").select_option("dark")
        page.reload()
        expect(page.get_by_label("Theme")).to_have_value("dark")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(16, 20, 26)"

    def test_loads_from_this_gateway_alone(self, open_page, gateway):
        page = open_page("about:blank")
        loaded = []
        page.on("request", lambda request: loaded.append(request.url))
        page.goto(f"{gateway.url}/#/models/digit_detector/1/graph")
        page.reload()
        expect(page.get_by_text("73 nodes")).to_be_visible()
        assert len(loaded) > 4
        assert [url for url in loaded if not url.startswith(gateway.url)] == []


@contextlib.contextmanager
def below(prefix, port):
    """Runs a proxy that takes a prefix away from the paths of requests. Yields its port."""

    def pipe(source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def serve(client):
        head = b""
        while b"\r\n\r\n" not in head:
            if not (data := client.recv(65536)):
                return client.close()
            head += data
        method, path, rest = head.split(b" ", 2)
        if not path.startswith(prefix):
            client.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            return client.close()
        line, headers = rest.split(b"\r\n", 1)
        headers = re.sub(rb"(?im)^connection:.*\r\n", b"", headers)
        gateway = socket.create_connection(("127.0.0.1", port))
        gateway.sendall(b"%b /%b %b\r\nConnection: close\r\n%b" % (method, path.removeprefix(prefix), line, headers))
        threading.Thread(target=pipe, args=(client, gateway), daemon=True).start()
        pipe(gateway, client)
        return client.close()

    def accept():
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def test_behind_a_path_prefix(browser, gateway):
    with below(b"/at/opgate/", gateway.http) as port, pages(browser, f"http://127.0.0.1:{port}/at/opgate") as open_page:
        page = open_page("models/digit_detector/1/try")
        page.get_by_role("button", name="digits").click()
        expect(page.get_by_role("img", name="The picture with 8 things")).to_be_visible()
        code = page.get_by_label("the request in code", exact=True)
        expect(code).to_contain_text(f"http://127.0.0.1:{port}/at/opgate/predict/digit_detector/versions/1")


def test_models_that_come_and_go(browser, tmp_path):
    for name in ("asked", "left"):
        double(tmp_path, name, config=batching())
    with running(tmp_path, "--model-memory", "1GiB") as server, pages(browser, server.url) as open_page:
        page = open_page("server")
        expect(page.get_by_text("Memory of models")).to_be_visible()
        expect(page.get_by_text("of 1.07 GB")).to_be_visible()
        page.evaluate("location.hash = '#/models'")
        memory = page.locator("td[data-label=Memory]")
        expect(memory).to_have_text(["none", "none"])
        infer = urllib.request.Request(
            f"{server.url}/v2/models/asked/infer",
            b'{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[1,1,1,1]}]}',
        )
        assert urllib.request.urlopen(infer).status == 200
        expect(memory).to_have_text([re.compile(r"\d+(\.\d)? [kM]?B"), "none"])
        expect(row(page, "left")).to_contain_text("not in memory")
        assert faults(page) == []


class TestTheGatewayGoes:
    def test_says_so_until_it_is_back(self, browser, tmp_path, library):
        double(tmp_path, "double", config=batching())
        server = Server(tmp_path)
        try:
            with pages(browser, server.url) as open_page:
                page = open_page()
                expect(row(page, "double")).to_contain_text("Ready")
                assert server.stop() == 0
                lost = page.get_by_text("Connection lost.")
                expect(lost).to_be_visible()
                expect(page.get_by_text("Trying again in")).to_be_visible()
                double(tmp_path, "second", config=batching())
                # The last one of two options with one name holds.
                with running(tmp_path, "--http-port", str(server.http)):
                    expect(lost).to_be_hidden(timeout=15_000)
                    expect(row(page, "second")).to_contain_text("Ready")
        finally:
            server.stop()


class TestTokens:
    @pytest.fixture(scope="class")
    @classmethod
    def guarded(cls, tmp_path_factory):
        folder = tmp_path_factory.mktemp("guarded")
        double(folder, "double", config=batching())
        groups = "statistics,model-config,model-repository,logging,inference,metadata:x-key=open sesame"
        with running(
            folder, "--http-restricted-api", groups, "--model-control-mode", "explicit", "--load-model", "*"
        ) as server:
            yield server

    def test_asks_for_a_token_and_keeps_it_in_memory(self, browser, guarded):
        with pages(browser, guarded.url) as open_page:
            page = open_page()
            dialog = page.get_by_role("dialog", name="This part of the gateway needs a token")
            expect(dialog).to_contain_text("x-key")
            assert faults(page) == []
            dialog.get_by_label("Value of x-key").fill("wrong")
            dialog.get_by_role("button", name="Continue").click()
            expect(dialog.get_by_role("alert")).to_have_text("The gateway did not accept this value.")
            dialog.get_by_label("Value of x-key").fill("open sesame")
            dialog.get_by_role("button", name="Continue").click()
            expect(row(page, "double")).to_contain_text("Ready")
            page.get_by_role("link", name="double").click()
            page.get_by_role("navigation", name="Parts of double").get_by_role("link", name="Try it").click()
            page.get_by_role("button", name="Send").click()
            expect(page.get_by_text("Status 200")).to_be_visible()
            assert "open sesame" not in json.dumps(page.context.storage_state())
            assert "open sesame" not in page.content()
            page.reload()
            expect(dialog).to_be_visible()

    def test_not_now(self, browser, guarded):
        with pages(browser, guarded.url) as open_page:
            page = open_page()
            page.get_by_role("button", name="Not now").click()
            expect(page.get_by_role("dialog")).to_be_hidden()
            expect(page.get_by_text("expecting header 'x-key'").first).to_be_visible()
