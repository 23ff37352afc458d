"""Metrics of the GPUs with Triton's names, from NVIDIA's management library (NVML)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

logger = logging.getLogger("opgate.metrics")

#: The name of a metric, its text, and how to read its value. NVML gives milliwatts, millijoules and percent.
_METRICS: tuple[tuple[str, str, Callable[[Any, Any], float]], ...] = (
    (
        "nv_gpu_utilization",
        "GPU utilization rate [0.0 - 1.0)",
        lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,
    ),
    (
        "nv_gpu_memory_total_bytes",
        "GPU total memory, in bytes",
        lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).total,
    ),
    ("nv_gpu_memory_used_bytes", "GPU used memory, in bytes", lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).used),
    (
        "nv_gpu_power_usage",
        "GPU power usage in watts",
        lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
    ),
    (
        "nv_gpu_power_limit",
        "GPU power management limit in watts",
        lambda nvml, gpu: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000,
    ),
    (
        "nv_energy_consumption",
        "GPU energy consumption in joules since the driver started",
        lambda nvml, gpu: nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1000,
    ),
)


#: Seconds between two readings. A driver may take long to answer, so a thread reads, and not the event loop.
INTERVAL = 2.0


class GpuCollector(Collector):
    """Has the latest readings of NVML. A GPU that doesn't measure a value has no line for it."""

    def __init__(self) -> None:
        self._readings: dict[str, list[tuple[str, float]]] = {}  # the UUID and the value of each GPU, by metric
        try:
            import pynvml as nvml
        except ImportError:
            return  # opgate[gpu] installs it
        try:
            nvml.nvmlInit()
            gpus = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
            self._gpus = [(nvml.nvmlDeviceGetUUID(gpu), gpu) for gpu in gpus]
        except nvml.NVMLError as error:
            logger.info("there are no metrics of GPUs: %s", error)
            return
        self._read(nvml)
        threading.Thread(target=self._read_often, args=(nvml,), name="gpu-metrics", daemon=True).start()

    def collect(self) -> Iterator[Metric]:
        """Yields each metric with the values of all GPUs, nothing if there is no GPU or NVML can't be used."""
        for name, text, _ in _METRICS if self._readings else ():
            family = GaugeMetricFamily(name, text, labels=["gpu_uuid"])
            if name == "nv_energy_consumption":
                family.type = "counter"
            for uuid, value in self._readings[name]:
                family.add_metric([uuid], value)
            yield family

    def _read_often(self, nvml: Any) -> None:
        while True:
            time.sleep(INTERVAL)
            self._read(nvml)

    def _read(self, nvml: Any) -> None:
        readings: dict[str, list[tuple[str, float]]] = {}
        for name, _, read in _METRICS:
            values = readings[name] = []
            for uuid, gpu in self._gpus:
                try:
                    values.append((uuid, read(nvml, gpu)))
                except nvml.NVMLError as error:
                    logger.debug("%s of %s: %s", name, uuid, error)
        self._readings = readings
