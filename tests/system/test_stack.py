"""docker-compose.yml: what it states, and its services as they run on this machine."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from tritonclient.utils import np_to_triton_dtype

from opgate import triton
from tests.conftest import thorough
from tests.service.onnx_models import batching, double, endless, fragile
from tests.system.conftest import wait_until
from tests.system.differential import http_body
from tests.system.running import ROOT
from tests.system.stack import built, compose, images, missing, stack, triton_image
from tests.system.test_plan import check_repository

DASHBOARD = json.loads((ROOT / "deploy/grafana/dashboards/opgate.json").read_text())
BINARIES = Path(sys.prefix) / "bin"


def needs(program):
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not installed")


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read()


def post(path, body, **headers):
    """Returns the status of the gateway's answer."""
    request = urllib.request.Request(f"http://127.0.0.1:8000{path}", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            answer.read()
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def infer(model, **arrays):
    inputs = {name: (np_to_triton_dtype(array.dtype), array) for name, array in arrays.items()}
    body, headers = http_body(inputs)
    return post(f"/v2/models/{model}/infer", body, **headers)


def query(expression):
    """Returns the samples that Prometheus has for a query."""
    answer = get("http://127.0.0.1:9090/api/v1/query?" + urllib.parse.urlencode({"query": expression}))
    return json.loads(answer)["data"]["result"]


def alerts():
    """Returns the names of the alerts that fire."""
    found = json.loads(get("http://127.0.0.1:9090/api/v1/alerts"))["data"]["alerts"]
    return {alert["labels"]["alertname"] for alert in found if alert["state"] == "firing"}


class TestFiles:
    def test_the_compose_file_follows_the_specification(self):
        schema = [BINARIES / "check-jsonschema", "--builtin-schema", "vendor.compose-spec"]
        assert subprocess.run([*schema, ROOT / "docker-compose.yml"]).returncode == 0

    def test_the_schema_finds_a_mistake(self, tmp_path):
        stated = compose({})
        stated["services"]["gateway"]["prots"] = []
        (tmp_path / "docker-compose.yml").write_text(yaml.safe_dump(stated))
        schema = [BINARIES / "check-jsonschema", "--builtin-schema", "vendor.compose-spec"]
        assert subprocess.run([*schema, tmp_path / "docker-compose.yml"], capture_output=True).returncode == 1

    def test_every_service_is_confined(self):
        for name, service in compose({})["services"].items():
            assert service["read_only"], name
            assert service["cap_drop"] == ["ALL"] and service["security_opt"] == ["no-new-privileges:true"], name
            assert set(service["deploy"]["resources"]["limits"]) == {"cpus", "memory"}, name
            assert re.search(r":v?\d+\.\d+\.\d+$", service["image"]), f"{name}: the version of the image is not stated"
            for volume in service.get("volumes", []):
                assert volume.endswith(":ro") or not volume.startswith("."), f"{name} can write to {volume}"
            for port in service.get("ports", []):
                assert port.startswith("127.0.0.1:"), name

    def test_every_volume_of_a_service_is_declared(self):
        """An engine refuses the whole file otherwise."""
        stated = compose({})
        used = {
            volume.split(":")[0] for service in stated["services"].values() for volume in service.get("volumes", [])
        }
        assert {name for name in used if not name.startswith((".", "/"))} == set(stated["volumes"])

    def test_the_gateway_keeps_prepared_models_in_the_volume_for_them(self):
        """An engine gives a container the home of its user, which isn't there."""
        folder = built("deploy/gateway.Dockerfile", {}).environment["OPGATE_MODEL_CACHE"]
        volumes = dict(volume.split(":")[:2] for volume in compose({})["services"]["gateway"]["volumes"])
        assert Path(folder).is_relative_to(volumes["prepared-models"])

    def test_published_images_are_pulled_and_all_can_be_built(self):
        """Compose builds an image that it can't pull if the service states how. NVIDIA's parts are not published."""
        services = {name: service for name, service in compose({})["services"].items() if "opgate" in service["image"]}
        assert all("build" in service for service in services.values())
        version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
        published = {name for name, service in services.items() if service.get("pull_policy") != "never"}
        assert published == {"gateway", "locust", "locust-worker"}
        for name, service in services.items():
            registry, _, image = service["image"].rpartition("/")
            assert registry == ("ghcr.io/opgate" if name in published else ""), name
            assert image.endswith(f":{version}"), f"{name}: expected the version {version}, got {image}"
        (elsewhere, *_) = compose({"REGISTRY": "registry.example.com/us", "VERSION": "1.2.3"})["services"].values()
        assert elsewhere["image"] == "registry.example.com/us/opgate:1.2.3"

    def test_the_example_of_settings_has_every_variable_and_its_default(self):
        example = re.findall(r"^# (\w+)=(.*)$", (ROOT / ".env.example").read_text(), re.MULTILINE)
        used = re.findall(r"\$\{(\w+):-([^}]*)\}", (ROOT / "docker-compose.yml").read_text())
        assert dict(example) == dict(used)

    def test_a_stop_has_the_time_that_the_gateway_promises(self):
        from opgate.service.settings import Settings

        grace = float(compose({})["services"]["gateway"]["stop_grace_period"].removesuffix("s"))
        assert grace > Settings().shutdown_timeout + 1

    @pytest.mark.parametrize("name", ["gateway", "locust", "triton", "triton-gpu"])
    def test_the_dockerfiles(self, name):
        file = ROOT / f"deploy/{name}.Dockerfile"
        linted = subprocess.run([BINARIES / "hadolint", "-c", ROOT / "deploy/hadolint.yaml", file], capture_output=True)
        assert linted.returncode == 0, linted.stdout.decode()
        text = file.read_text()
        last = text[text.rindex("\nFROM ") :]
        assert re.search(r"^USER \d+:\d+$", last, re.MULTILINE)
        assert not re.search(r"g\+\+|cmake|pip|-dev\b|system-packages", last), "the last stage has no build tools"
        stages = re.findall(r" AS (\w+)$", text, re.MULTILINE)
        bases = {base.split(" AS ")[0] for base in re.findall(r"^FROM (.*)$", text, re.MULTILINE)}
        assert all(re.match(r"\S+:\d+\.\d+\S*$", base) for base in bases.difference(stages))

    def test_the_builder_gets_what_the_dockerfiles_copy(self):
        sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
        copied = set()
        for file in (ROOT / "deploy").glob("*.Dockerfile"):
            for line in re.findall(r"^COPY (?!--from)(.*)$", file.read_text(), re.MULTILINE):
                copied |= set(line.split()[:-1])
        assert sent == copied and all((ROOT / path).exists() for path in sent)

    @needs("promtool")
    @pytest.mark.parametrize(
        "arguments", [("check", "config", "prometheus.yml"), ("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")]
    )  # fmt: skip
    def test_promtool(self, arguments):
        checked = subprocess.run(
            ["promtool", *arguments], cwd=ROOT / "deploy/prometheus", capture_output=True, text=True
        )
        assert checked.returncode == 0, checked.stdout + checked.stderr

    def test_every_alert_has_a_unit_test(self):
        rules = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())["groups"][0]["rules"]
        tests = yaml.safe_load((ROOT / "deploy/prometheus/alerts_test.yml").read_text())["tests"]
        tested = {case["alertname"] for test in tests for case in test.get("alert_rule_test", []) if case["exp_alerts"]}
        assert tested == {rule["alert"] for rule in rules}

    @needs("systemd-analyze")
    def test_the_unit_of_systemd(self, tmp_path):
        from opgate.service.settings import Settings

        text = (ROOT / "deploy/systemd/opgate.service").read_text()
        unit = tmp_path / "opgate.service"
        unit.write_text(text.replace("/opt/opgate/venv/bin", str(BINARIES)))
        checked = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
        assert checked.returncode == 0 and "opgate.service" not in checked.stderr, checked.stderr
        unit.write_text(text + "[Service]\nProtectEverything=yes\n")
        assert (
            "ProtectEverything"
            in subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True).stderr
        )
        assert int(re.findall(r"TimeoutStopSec=(\d+)", text)[0]) > Settings().shutdown_timeout + 1
        known = {Settings.variable(name) for name in Settings.model_fields}
        assert set(re.findall(r"(OPGATE_\w+)=", text)) <= known


def expressions():
    """Yields the title of each panel of the dashboard, and each of its queries without its variables."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            text = target["expr"].replace("$instance", ".*").replace("$model", ".*")
            yield panel["title"], text.replace("$__rate_interval", "20s")


@pytest.fixture(scope="module")
def known(library):
    """The images of the stack."""
    if reason := missing():
        pytest.skip(f"the stack can't run here: {reason}")
    return images()


@thorough("it takes half a minute")
def test_the_stack_under_load(known):
    """Every service that this machine has the program of works as stated, and each panel of the dashboard shows data
    that moves."""
    picture = (ROOT / "docs/examples/digits.jpg").read_bytes()
    with stack(known, {}) as services:
        gateway = services.start("gateway", environment={"OPGATE_MODEL_MEMORY": "1GiB"})
        services.start("prometheus")
        rights = Path(f"/proc/{gateway.process.pid}/status").read_text()
        assert re.search(r"CapBnd:\s+0+\n", rights) and re.search(r"NoNewPrivs:\s+1\n", rights)
        for place in ("/new", "/models/new", "/opt/opgate/new"):
            assert "Read-only file system" in gateway.run("touch", place).stderr
        values = services.call(get, "http://127.0.0.1:8000/metrics").decode()
        assert "opgate_memory_limit_bytes 4.294967296e+09\n" in values  # the limit that docker-compose.yml states
        end = time.monotonic() + 30

        def load(i):
            while time.monotonic() < end:
                ones = np.ones((1, 4), np.float32)
                assert infer("my_add", a=ones, b=ones) == 200
                assert post("/predict/digit_detector_pipeline", picture, **{"Content-Type": "image/jpeg"}) == 200
                assert infer("my_add", a=ones) == 400
                time.sleep(0.02 * (i + 1))

        moved, seen = set(), {}
        running = [services.submit(load, i) for i in range(2)]
        queries = list(expressions())
        while time.monotonic() < end:
            time.sleep(3)
            for title, text in queries:
                values = {json.dumps(s["metric"], sort_keys=True): s["value"][1] for s in services.call(query, text)}
                if (title, text) in seen and values != seen[title, text]:
                    moved.add((title, text))
                seen[title, text] = values
        for thread in running:
            thread.result()
        without = [title for (title, _), values in seen.items() if not any(v != "NaN" for v in values.values())]
        assert not without, f"no data: {without}"
        still = {"Models ready", "Errors of the server", "Waiting", "Waiting requests", "Load time", "Ready", "Alerts"}
        still |= {"Memory of models", "Models in memory", "Coming and going"}
        assert {title for title, text in queries if (title, text) not in moved} <= still | {"Memory", "Connections"}
        for service in reversed(services.running.values()):
            assert service.stop() == 0, "".join(service.output)


def test_the_models_for_triton_on_a_gpu(known, trtexec):
    """The profile gpu: its first service compiles a model, by TensorRT-RTX where there is no GPU, and ends."""
    image = known["opgate-plan"]
    here = replace(image, content={**image.content, "/usr/src/tensorrt/bin": trtexec.parent})
    with stack({**known, "opgate-plan": here}, {}) as services:
        compiler = services.start("plan")
        assert compiler.process.wait(300) == 0, "".join(compiler.output)
        check_repository(services.folder / "plans")


@thorough("tests/deploy/test_locust.py has a master with two workers, too")
def test_locust_with_two_workers(known):
    """The profile load: its web page starts users of every class, and none of their requests fails."""
    assert compose({})["services"]["locust-worker"]["deploy"]["replicas"] == 2
    with stack(known, {}) as services:
        services.start("gateway")
        services.start("locust")
        for i in range(2):
            services.start("locust-worker", number=i)
        page = "http://127.0.0.1:8089"
        stats = lambda: json.loads(services.call(get, f"{page}/stats/requests"))  # noqa: E731
        wait_until(lambda: services.answers(page) and len(stats()["workers"]) == 2, 30)
        form = urllib.parse.urlencode({"user_count": 4, "spawn_rate": 4, "host": "http://gateway:8000"}).encode()
        services.call(urllib.request.urlopen, f"{page}/swarm", form)
        wait_until(lambda: len([s for s in stats()["stats"] if s["num_requests"] > 10]) >= 5, 60)
        assert stats()["fail_ratio"] == 0, stats()["errors"]
        services.call(urllib.request.urlopen, f"{page}/stop", b"")


@thorough("tests/system/test_triton.py sends requests through the gateway too")
def test_triton_behind_the_gateway(known, library, tmp_path):
    """The profile triton, with the server that nvidia-pytriton carries."""
    try:
        installed = triton.install(ROOT / "build/triton", print)
    except triton.TritonError as error:
        pytest.skip(f"Triton can't be installed: {error}")
    picture = (ROOT / "docs/examples/digits.jpg").read_bytes()
    (tmp_path / "bin").mkdir()
    everything = {**known, "opgate-triton": triton_image(library.parent, installed, tmp_path / "bin")}
    with stack(everything, {"BACKEND": "triton"}) as services:
        services.start("triton")
        services.start("gateway")
        status = services.call(post, "/predict/digit_detector", picture, **{"Content-Type": "image/jpeg"})
        assert status == 200
        metrics = services.call(get, "http://127.0.0.1:8000/metrics").decode()
        assert 'opgate_triton_calls_total{code="OK",server="triton:8011"} 1.0' in metrics
        start_prometheus(services, tmp_path)
        assert services.running["triton"].stop() == 0
        wait_until(lambda: "TritonServerDown" in services.call(alerts), 30)
        for service in reversed(services.running.values()):
            assert service.stop() == 0, "".join(service.output)


def start_prometheus(services, folder):
    """Starts Prometheus. The durations for which a fault must last are taken out of the rules: promtool tests them."""
    rules = folder / "prometheus"
    shutil.copytree(ROOT / "deploy/prometheus", rules)
    text = (rules / "alerts.yml").read_text()
    (rules / "alerts.yml").write_text(re.sub(r"^ +for: .*\n", "", text, flags=re.MULTILINE))
    services.services["prometheus"]["volumes"][0] = f"{rules}:/etc/prometheus:ro"
    services.start("prometheus")


def test_every_alert_fires(known, tmp_path):
    """But the one for Triton, see above, the one that compares with what was six hours ago, and the one for models that
    come and go, whose metric test_residency.py sees."""
    repository = tmp_path / "models"
    double(repository, "good", config=batching())
    endless(repository, "slow", config='backend: "onnxruntime"', times=None)
    fragile(repository, "fragile", config=batching())
    (repository / "broken/1").mkdir(parents=True)
    (repository / "broken/1/model.onnx").write_bytes(b"no model")
    rules = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())["groups"][0]["rules"]
    everything = {rule["alert"] for rule in rules} - {"TritonServerDown", "SlowerOp", "ModelsComeAndGo"}
    settings = {"OPGATE_RUN_TIMEOUT": "8", "OPGATE_STRICT_READINESS": "0"}
    with stack(known, {"MODEL_REPOSITORY": str(repository), "MEMORY": "100m"}) as services:
        services.start("gateway", environment=settings)
        start_prometheus(services, tmp_path)
        assert services.call(infer, "good", x=np.ones((1, 4), np.float32)) == 200
        fired = set()

        def fires(*names):
            fired.update(services.call(alerts))
            return fired >= set(names)

        def wait(*names):
            wait_until(lambda: fires(*names), 40)

        def slow(times):
            return services.submit(infer, "slow", x=np.ones((1, 1), np.float32), times=np.array([times]))

        wait("ModelNotReady", "MemoryNearlyFull")
        assert not fired & {"GatewayDown", "ManyErrors", "SlowModel", "StuckRun"}
        slow(1).result(30)
        begin = time.monotonic()
        assert slow(100_000).result(30) == 200
        a_second = int(100_000 / (time.monotonic() - begin))
        runs = [slow(int(1.5 * a_second)) for _ in range(4)]  # one after another, so most of them wait

        def fail():
            assert services.call(infer, "fragile", n=np.array([[1]])) == 500
            return fires("ManyErrors")

        wait_until(fail, 40)
        assert [run.result(60) for run in runs] == [200] * 4
        wait("SlowModel", "LongQueue")
        overdue = slow(60 * a_second)  # however busy the machine was at the measurement
        wait("StuckRun")
        assert overdue.result(60) == 500
        services.running["gateway"].stop()
        wait(*everything)
