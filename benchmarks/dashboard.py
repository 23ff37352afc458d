"""Draws what the Grafana dashboard shows while locust sends load: docs/dashboard.png.

    python benchmarks/dashboard.py [--seconds 60]

The services of docker-compose.yml run on this machine as tests/system/stack.py runs them: the gateway, Prometheus, and
locust with two workers. After the run each query of the dashboard is asked for the whole time, and drawn.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.system.stack import Stack, images, missing, stack  # noqa: E402

DASHBOARD = ROOT / "deploy/grafana/dashboards/opgate.json"
STEP = 2
UNITS = {"s": "s", "bytes": "bytes", "µs": "µs", "reqps": "1/s", "ops": "1/s"}
SKIPPED = {"Failures by model and reason", "Load time", "Waiting requests", "Held bytes"}
SKIPPED |= {"Memory of models", "Models in memory", "Coming and going"}


def ask(expression: str, begin: float, end: float) -> list[dict[str, Any]]:
    """Returns the series of a query between two times."""
    query = urllib.parse.urlencode({"query": expression, "start": begin, "end": end, "step": STEP})
    with urllib.request.urlopen(f"http://127.0.0.1:9090/api/v1/query_range?{query}", timeout=20) as answer:
        result: list[dict[str, Any]] = json.loads(answer.read())["data"]["result"]
        return result


def run(services: Stack, seconds: float) -> tuple[float, float]:
    """Sends load with locust. Returns when the run began and ended."""
    for name in ("gateway", "prometheus", "locust"):
        services.start(name)
    for number in range(2):
        services.start("locust-worker", number=number)
    time.sleep(5)
    begin = time.time()
    form = urllib.parse.urlencode({"user_count": 8, "spawn_rate": 1, "host": "http://gateway:8000"}).encode()
    services.call(urllib.request.urlopen, "http://127.0.0.1:8089/swarm", form)
    time.sleep(seconds)
    services.call(urllib.request.urlopen, "http://127.0.0.1:8089/stop", b"")
    time.sleep(10)
    return begin - 5, time.time()


_COLUMNS = 3


def draw(panels: list[dict[str, Any]], services: Stack, begin: float, end: float, file: Path) -> None:
    """Draws a plot for each panel with lines."""
    rows = -(-len(panels) // _COLUMNS)
    figure, all_axes = plt.subplots(rows, _COLUMNS, figsize=(15, 3 * rows), layout="constrained")
    for axes in all_axes.flat[len(panels) :]:
        axes.set_axis_off()
    for axes, panel in zip(all_axes.flat, panels, strict=False):
        for target in panel["targets"]:
            expression = target["expr"].replace("$instance", ".*").replace("$model", ".*")
            expression = expression.replace("$__rate_interval", "20s")
            for series in services.call(ask, expression, begin, end):
                label = target["legendFormat"]
                for key, value in series["metric"].items():
                    label = label.replace("{{" + key + "}}", value)
                points = [(float(at) - begin, float(value)) for at, value in series["values"] if value != "NaN"]
                if points and any(value for _, value in points):
                    axes.plot(*zip(*points, strict=True), label=label.replace("gateway:8000", "gateway"), linewidth=1)
        axes.set_title(panel["title"], fontsize=10)
        axes.set_ylabel(UNITS.get(panel["fieldConfig"]["defaults"]["unit"], ""))
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=6, loc="best")
    for axes in all_axes[-1]:
        axes.set_xlabel("seconds")
    figure.savefig(file, dpi=80)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--output", type=Path, default=ROOT / "docs/dashboard.png")
    arguments = parser.parse_args()
    if reason := missing():
        sys.exit(f"the stack can't run here: {reason}")
    panels = [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] == "timeseries"]
    panels = [panel for panel in panels if panel["title"] not in SKIPPED]
    with stack(images(), {}) as services:
        begin, end = run(services, arguments.seconds)
        draw(panels, services, begin, end, arguments.output)


if __name__ == "__main__":
    main()
