"""Decides on which devices the instances of a model run, and with which options of ONNX Runtime's providers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from opgate.service.core.triton_messages import ModelConfig, ModelInstanceGroup
from opgate.service.execution.gpus import NoGpu, usable_gpus
from opgate.service.execution.rate_limiter import Demand, Resource
from opgate.service.repository.config import CUDA_PARAMETERS, ConfigError, on_gpu, parameter

logger = logging.getLogger("opgate.repository")

#: The options of ONNX Runtime's providers that a config may set. Left out are those that load native code or take
#: addresses, those that the gateway sets, and CUDA graphs, which need the same memory in every run.
CUDA_OPTIONS = frozenset({
    "arena_extend_strategy", "cudnn_conv1d_pad_to_nc1d", "cudnn_conv_algo_search", "cudnn_conv_use_max_workspace",
    "do_copy_in_default_stream", "enable_skip_layer_norm_strict_mode", "fuse_conv_bias", "gpu_mem_limit", "prefer_nhwc",
    "sdpa_kernel", "tunable_op_enable", "tunable_op_max_tuning_duration_ms", "tunable_op_tuning_enable",
    "use_ep_level_unified_stream", "use_tf32",
})  # fmt: skip
TENSORRT_OPTIONS = frozenset({
    "trt_auxiliary_streams", "trt_bf16_enable", "trt_build_heuristics_enable", "trt_builder_optimization_level",
    "trt_context_memory_sharing_enable", "trt_detailed_build_log", "trt_dla_core", "trt_dla_enable",
    "trt_engine_cache_enable", "trt_engine_cache_path", "trt_engine_cache_prefix", "trt_engine_hw_compatible",
    "trt_force_sequential_engine_build", "trt_force_timing_cache", "trt_fp16_enable", "trt_int8_calibration_table_name",
    "trt_int8_enable", "trt_int8_use_native_calibration_table", "trt_layer_norm_fp32_fallback",
    "trt_max_partition_iterations", "trt_max_workspace_size", "trt_min_subgraph_size", "trt_op_types_to_exclude",
    "trt_profile_max_shapes", "trt_profile_min_shapes", "trt_profile_opt_shapes", "trt_sparsity_enable",
    "trt_tactic_sources", "trt_timing_cache_enable", "trt_timing_cache_path",
})  # fmt: skip
#: Triton's names of options of the TensorRT provider.
TRITON_NAMES = {
    "int8_calibration_table_name": "trt_int8_calibration_table_name",
    "int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
    "max_workspace_size_bytes": "trt_max_workspace_size",
}
PRECISIONS = {"FP32": "", "FP16": "trt_fp16_enable", "BF16": "trt_bf16_enable", "INT8": "trt_int8_enable"}
#: The numbers that some of CUDA_PARAMETERS have, and what the CUDA provider calls them.
_NUMBERED = {
    "arena_extend_strategy": ("kNextPowerOfTwo", "kSameAsRequested"),
    "cudnn_conv_algo_search": ("EXHAUSTIVE", "HEURISTIC", "DEFAULT"),
}


class Instance(NamedTuple):
    """An instance of a model. `kind` is CPU, GPU or MODEL, and `gpu` is the number of its GPU."""

    name: str
    kind: str
    gpu: int | None


def place(config: ModelConfig, gpus: Callable[[], int] = usable_gpus) -> list[int | None]:
    """Returns the device of each instance: the number of a GPU, or None for the CPU. Completes the instance groups.

    As in Triton, a group of KIND_GPU has `count` instances on each of its `gpus`, and without `gpus` on every GPU.
    KIND_AUTO is KIND_GPU if ONNX Runtime can use a GPU or if the group names `gpus`, otherwise KIND_CPU. KIND_MODEL
    stays: a model in Python places itself, and ONNX Runtime runs on the CPU.

    `gpus` returns the number of GPUs or raises NoGpu. Raises ConfigError that names the field.
    """
    if not config.instance_group:
        config.instance_group.add(name=config.name)
    for i, group in enumerate(config.instance_group):
        group.name = group.name or f"{config.name}_{i}"
        group.count = group.count or 1
        chosen = _gpus_of(group, f"instance_group[{i}]", config.name, gpus)
        if group.kind != ModelInstanceGroup.KIND_MODEL:
            group.kind = ModelInstanceGroup.KIND_GPU if chosen else ModelInstanceGroup.KIND_CPU
        del group.gpus[:]
        group.gpus.extend(chosen)
    return [instance.gpu for instance in instances(config)]


def instances(config: ModelConfig) -> list[Instance]:
    """Returns the instances of a model in the order of its groups. `place` has completed the config.

    As in Triton, the n-th instance of a group on each of its GPUs has the name of the group and the number n.
    """
    found: list[Instance] = []
    for group in config.instance_group:
        kind = ModelInstanceGroup.Kind.Name(group.kind).removeprefix("KIND_")
        for number in range(group.count):
            found += [Instance(f"{group.name}_{number}", kind, gpu) for gpu in list(group.gpus) or [None]]
    return found


def demands(config: ModelConfig) -> list[Demand]:
    """Returns what each instance needs of the rate limiter, those on GPUs first. `place` has completed the config.

    As in Triton, an instance on the CPU uses the resources of device 0.
    """
    found = []
    for group in sorted(config.instance_group, key=lambda group: not group.gpus):
        limiter = group.rate_limiter
        for device in [*(group.gpus or [0])] * group.count:
            resources: dict[Resource, int] = {}
            for needed in limiter.resources:
                resource = Resource(needed.name.lower(), None if getattr(needed, "global") else device)
                resources[resource] = needed.count
            found.append(Demand(resources, max(1, limiter.priority)))
    return found


def _gpus_of(group: ModelInstanceGroup, where: str, model: str, gpus: Callable[[], int]) -> list[int]:
    """Returns the GPUs of a group. An empty list means the CPU."""
    if group.kind in (ModelInstanceGroup.KIND_CPU, ModelInstanceGroup.KIND_MODEL):
        return []
    try:
        count = gpus()
    except NoGpu as error:
        if group.kind == ModelInstanceGroup.KIND_GPU or group.gpus:
            instead = "say KIND_CPU, or KIND_AUTO" + (" without gpus" if group.gpus else "")
            raise ConfigError(f"{where}.kind KIND_GPU: {error}: {instead}") from error
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
    """Reads optimization.execution_accelerators and CUDA_PARAMETERS. Raises ConfigError that names what can't be used.

    The names and parameters are those of Triton's ONNX Runtime backend, or options of the provider by their names. As
    in Triton they mean nothing if no instance runs on a GPU. `place` has completed the config.
    """
    if not on_gpu(config):
        return Accelerators({}, None)
    block = config.optimization.execution_accelerators
    field = "optimization.execution_accelerators.gpu_execution_accelerator"
    options: dict[str, dict[str, str]] = {}
    for accelerator in block.gpu_execution_accelerator:
        where = f"{field} '{accelerator.name}'"
        if accelerator.name not in ("cuda", "tensorrt"):
            raise ConfigError(f"{where}: expected cuda or tensorrt")
        of_provider = CUDA_OPTIONS if accelerator.name == "cuda" else TENSORRT_OPTIONS
        given = dict(accelerator.parameters)
        if accelerator.name == "tensorrt":
            given = dict(_by_the_providers_names(given, where))
        if unknown := sorted(given.keys() - of_provider):
            raise ConfigError(f"{where}: parameter '{unknown[0]}': expected one of {', '.join(sorted(of_provider))}")
        options[accelerator.name] = given
    return Accelerators({**_cuda_parameters(config), **options.get("cuda", {})}, options.get("tensorrt"))


def _cuda_parameters(config: ModelConfig) -> dict[str, str]:
    """Returns the options of the CUDA provider that are among the parameters of the model."""
    options: dict[str, str] = {}
    for key in sorted(CUDA_PARAMETERS):
        value, names = parameter(config, key), _NUMBERED.get(key, ())
        if value.isdecimal() and names:
            if int(value) >= len(names):
                raise ConfigError(f"parameter '{key}': expected 0 to {len(names) - 1}, got {value}")
            value = names[int(value)]
        if value:
            options[key] = value
    return options


def _by_the_providers_names(given: Mapping[str, str], where: str) -> Iterator[tuple[str, str]]:
    for key, value in given.items():
        if key != "precision_mode":
            yield TRITON_NAMES.get(key, key), value
        elif value not in PRECISIONS:
            raise ConfigError(f"{where}: precision_mode '{value}': expected one of {', '.join(PRECISIONS)}")
        elif option := PRECISIONS[value]:
            yield option, "True"
