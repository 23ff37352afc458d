"""Decides on which devices the instances of a model run, and with which options of ONNX Runtime's providers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from service.execution.gpus import NoGpu, usable_gpus
from service.repository.config import ConfigError

logger = logging.getLogger("opgate.repository")

#: Options of the providers that the gateway sets. A plugin library is native code, which only a manifest makes trusted.
RESERVED = frozenset({"device_id", "user_compute_stream", "has_user_compute_stream", "trt_extra_plugin_lib_paths"})


def place(config: ModelConfig, gpus: Callable[[], int] = usable_gpus) -> list[int | None]:
    """Returns the device of each instance: the number of a GPU, or None for the CPU. Completes the instance groups.

    As in Triton, a group of KIND_GPU has `count` instances on each of its `gpus`, and without `gpus` on every GPU.
    KIND_AUTO is KIND_GPU if ONNX Runtime can use a GPU or if the group names `gpus`, otherwise KIND_CPU.

    `gpus` returns the number of GPUs or raises NoGpu. Raises ConfigError that names the field.
    """
    if not config.instance_group:
        config.instance_group.add()
    devices: list[int | None] = []
    for i, group in enumerate(config.instance_group):
        group.name = group.name or f"{config.name}_{i}"
        group.count = group.count or 1
        chosen = _gpus_of(group, f"instance_group[{i}]", config.name, gpus)
        group.kind = ModelInstanceGroup.KIND_GPU if chosen else ModelInstanceGroup.KIND_CPU
        del group.gpus[:]
        group.gpus.extend(chosen)
        devices += [*chosen, *([] if chosen else [None])] * group.count
    return devices


def _gpus_of(group: ModelInstanceGroup, where: str, model: str, gpus: Callable[[], int]) -> list[int]:
    """Returns the GPUs of a group. An empty list means the CPU."""
    if group.kind == ModelInstanceGroup.KIND_CPU:
        return []
    try:
        count = gpus()
    except NoGpu as error:
        if group.kind == ModelInstanceGroup.KIND_GPU or group.gpus:
            raise ConfigError(f"{where}.kind KIND_GPU: {error}") from error
        if error.broken:
            logger.warning("model '%s' runs on the CPU: %s", model, error)
        return []
    chosen = list(group.gpus) or list(range(count))
    for gpu in chosen:
        if not 0 <= gpu < count:
            raise ConfigError(f"{where}.gpus {gpu}: expected 0 to {count - 1}, which are the GPUs here")
    return chosen


@dataclass(frozen=True, slots=True)
class Accelerators:
    """Options of ONNX Runtime's providers for a GPU. `tensorrt` is None if the config doesn't ask for TensorRT."""

    cuda: Mapping[str, str]
    tensorrt: Mapping[str, str] | None


def accelerators(config: ModelConfig) -> Accelerators:
    """Reads optimization.execution_accelerators. Raises ConfigError that names what can't be used.

    The names and parameters are those of Triton's ONNX Runtime backend. Parameters with the name of an option of the
    provider are passed on to it.
    """
    block = config.optimization.execution_accelerators
    field = "optimization.execution_accelerators.gpu_execution_accelerator"
    options: dict[str, dict[str, str]] = {}
    for accelerator in block.gpu_execution_accelerator:
        where = f"{field} '{accelerator.name}'"
        if accelerator.name not in ("cuda", "tensorrt"):
            raise ConfigError(f"{where}: expected cuda or tensorrt")
        if not any(group.kind == ModelInstanceGroup.KIND_GPU for group in config.instance_group):
            raise ConfigError(f"{where}: no instance runs on a GPU")
        given = dict(accelerator.parameters)
        if reserved := RESERVED.intersection(given):
            raise ConfigError(f"{where}: the gateway itself sets {', '.join(sorted(reserved))}")
        options[accelerator.name] = given if accelerator.name == "cuda" else dict(_tensorrt_options(given, where))
    return Accelerators(options.get("cuda", {}), options.get("tensorrt"))


def _tensorrt_options(given: Mapping[str, str], where: str) -> Iterator[tuple[str, str]]:
    precisions = {"FP32": None, "FP16": "trt_fp16_enable", "BF16": "trt_bf16_enable", "INT8": "trt_int8_enable"}
    for key, value in given.items():
        if key == "precision_mode":
            if value not in precisions:
                raise ConfigError(f"{where}: precision_mode '{value}': expected one of {', '.join(precisions)}")
            if option := precisions[value]:
                yield option, "True"
        elif key == "max_workspace_size_bytes":
            yield "trt_max_workspace_size", value
        elif key.startswith("trt_"):
            yield key, value
        else:
            raise ConfigError(
                f"{where}: parameter '{key}': expected precision_mode, max_workspace_size_bytes or an option of "
                "ONNX Runtime's TensorRT provider, which begins with trt_"
            )
