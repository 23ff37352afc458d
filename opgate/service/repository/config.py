"""Reads config.pbtxt into Triton's ModelConfig message. Refuses, by name, every field that is not supported."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from google.protobuf import text_format

from opgate.service.core.errors import Kind, ServingError
from opgate.service.core.triton_messages import ModelConfig, ModelDynamicBatching, ModelQueuePolicy, model_config_pb2
from opgate.service.near import Names

# Those of ONNX Runtime, and all that a config may have.
ENGINE_PARAMETERS = frozenset({
    "intra_op_thread_count", "inter_op_thread_count", "execution_mode", "enable_mem_arena", "enable_mem_pattern",
    "memory.enable_memory_arena_shrinkage",
})  # fmt: skip
# Those that say how requests share a batch.
BATCH_PARAMETERS = frozenset({"pad_inputs", "pad_masks", "pad_outputs", "pad_buckets", "batch_by"})
PARAMETERS = ENGINE_PARAMETERS | {
    "row_status_output", "row_status_messages", "predict_count_output", "predict_fields", "predict_picture_model",
    "predict_media_types", "gateway_backend", "golden_tolerance", "max_latency_ms", "isolation",
} | BATCH_PARAMETERS  # fmt: skip
_STRING_OR_COMMENT = re.compile(r""""(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|#.*""")
# Bytes of a config.pbtxt, and characters of the text of an error about it.
MOST_CONFIG_BYTES = 1 << 20
_MOST_TEXT = 4000
SESSION_PREFIX = "session."  # passed to ONNX Runtime as session configuration entries


class ConfigError(ServingError):
    """A model can't be served in the way its config describes. The message names the field."""

    def __init__(self, message: str) -> None:
        if len(message) > _MOST_TEXT:  # a config may have names and values of any length
            message = f"{message[: _MOST_TEXT // 2]}... ...{message[-_MOST_TEXT // 4 :]}"
        super().__init__(Kind.UNAVAILABLE, message)


def read_text(path: Path, most: int) -> str:
    """Returns what a file of a model says, of at most so many bytes. Raises ConfigError if it is no file of text.

    A pipe or a device would make the loading wait.
    """
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ConfigError(f"{path.name} is no regular file")
            data = file.read(most + 1)
        if len(data) > most:
            raise ConfigError(f"{path.name}: expected at most {most} bytes, got more")
        return data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{path.name} can't be read: {reason}") from error


def read_config(path: Path) -> ModelConfig:
    """Parses a config.pbtxt. Raises ConfigError, with line and column of a syntax error."""
    text = read_text(path, MOST_CONFIG_BYTES)
    try:
        return text_format.Parse(text, ModelConfig())
    except text_format.ParseError as error:
        raise ConfigError(f"{path.name} can't be parsed: {error}") from error


def states_max_batch_size(folder: Path) -> bool:
    """Returns whether the config.pbtxt of a model's folder says what max_batch_size is. In the parsed message 0 and
    nothing are the same."""
    try:
        text = read_text(folder / "config.pbtxt", MOST_CONFIG_BYTES)
    except ConfigError:
        return False
    return "max_batch_size" in re.findall(r"(\w+)\s*:", _STRING_OR_COMMENT.sub("", text))


def refuse_unsupported(config: ModelConfig, remote: bool = False) -> None:
    """Raises ConfigError if the config sets fields that the gateway doesn't support. The message names all of them.

    `remote` says that Triton runs the model. Then it is Triton that must support most of the fields.
    """
    refused = list(_unsupported_with_triton(config) if remote else _unsupported(config))
    if refused:
        raise ConfigError("the config asks for features that this gateway doesn't support: " + "; ".join(refused))


def in_python(config: ModelConfig) -> bool:
    """Returns whether a model is one in Python."""
    return (config.backend or config.platform) == "python" and not config.HasField("ensemble_scheduling")


def _unsupported_with_triton(config: ModelConfig) -> Iterator[str]:
    if config.HasField("sequence_batching"):
        yield "sequence_batching"
    if config.model_transaction_policy.decoupled:
        yield "model_transaction_policy.decoupled"
    for key in sorted({"isolation", "max_latency_ms", *BATCH_PARAMETERS}):
        if key in config.parameters:
            yield f"parameter '{key}' of a model that Triton runs"


def _unsupported(config: ModelConfig) -> Iterator[str]:
    ensemble = config.HasField("ensemble_scheduling")
    engine = config.backend or config.platform
    if not ensemble and "ensemble" in (config.platform, config.backend):
        yield "platform 'ensemble' without ensemble_scheduling, which has its steps"
    elif not ensemble and engine not in ("", "onnxruntime", "onnxruntime_onnx", "python"):
        yield f"backend '{engine}' (only 'onnxruntime', 'python' and ensembles are served)"
    if config.backend not in ("", "onnxruntime") and ensemble:
        yield f"backend '{config.backend}' together with ensemble_scheduling"
    if ensemble and config.platform not in ("", "ensemble"):
        yield f"platform '{config.platform}' together with ensemble_scheduling"
    yield from _features(config)
    yield from _batching(config)
    yield from _instances(config)
    yield from _optimization(config)
    yield from _tensors(config)
    names = Names(PARAMETERS)
    for key in config.parameters:
        if in_python(config):
            break  # its parameters are for its model.py
        if key not in PARAMETERS and not key.startswith(SESSION_PREFIX):
            close = names.nearest(key, 0.8)
            yield f"parameter '{key}'" + (f" (is {close} meant?)" if close else "")
    if ensemble:
        yield from _ensemble(config)


def _features(config: ModelConfig) -> Iterator[str]:
    if config.response_cache.enable and config.HasField("sequence_batching"):
        yield "response_cache with sequence_batching"
    if config.response_cache.enable and config.dynamic_batching.preserve_ordering:
        yield "response_cache with dynamic_batching.preserve_ordering"
    if config.response_cache.enable and config.model_transaction_policy.decoupled:
        yield "response_cache with model_transaction_policy.decoupled"
    if config.HasField("model_repository_agents"):
        yield "model_repository_agents"
    if config.HasField("model_metrics"):
        yield "model_metrics"
    if config.metric_tags:
        yield "metric_tags"
    if config.cc_model_filenames:
        yield "cc_model_filenames"
    if config.runtime:
        yield f"runtime '{config.runtime}'"


def _batching(config: ModelConfig) -> Iterator[str]:
    if not config.HasField("dynamic_batching"):
        return
    block = config.dynamic_batching
    if config.max_batch_size < 1:
        yield "dynamic_batching with max_batch_size 0"
    for size in block.preferred_batch_size:
        if not 1 <= size <= config.max_batch_size:
            yield f"dynamic_batching.preferred_batch_size {size} outside 1 to max_batch_size {config.max_batch_size}"
    yield from _priority_levels(block)
    if block.preserve_ordering:
        yield from _contradicting_order(block)


def _priority_levels(block: ModelDynamicBatching) -> Iterator[str]:
    levels, default = block.priority_levels, block.default_priority_level
    if not levels:
        for name in ("default_priority_level", "priority_queue_policy"):
            if getattr(block, name):
                yield f"dynamic_batching.{name} without priority_levels"
        return
    if not 1 <= default <= levels:
        yield f"dynamic_batching.default_priority_level {default} outside 1 to priority_levels {levels}"
    for level in sorted(block.priority_queue_policy):
        if not 1 <= level <= levels:
            yield f"dynamic_batching.priority_queue_policy key {level} outside 1 to priority_levels {levels}"


def _contradicting_order(block: ModelDynamicBatching) -> Iterator[str]:
    """Yields what contradicts preserve_ordering, as Triton sees it."""
    if block.priority_levels > 1:
        yield f"dynamic_batching.priority_levels {block.priority_levels} with preserve_ordering"
    policies = {"default_queue_policy": block.default_queue_policy}
    policies |= {f"priority_queue_policy {level}": policy for level, policy in block.priority_queue_policy.items()}
    for name, policy in policies.items():
        if policy.default_timeout_microseconds and policy.timeout_action == ModelQueuePolicy.DELAY:
            yield f"dynamic_batching.{name}.timeout_action DELAY with preserve_ordering"


def _instances(config: ModelConfig) -> Iterator[str]:
    kinds = model_config_pb2.ModelInstanceGroup.Kind
    for i, group in enumerate(config.instance_group):
        where = f"instance_group[{i}]"
        if group.kind == kinds.Value("KIND_MODEL"):
            yield f"{where}.kind KIND_MODEL (KIND_AUTO, KIND_CPU or KIND_GPU)"
        if group.kind == kinds.Value("KIND_CPU") and group.gpus:
            yield f"{where}.gpus of KIND_CPU"
        for name in ("secondary_devices", "profile", "passive", "host_policy"):
            if getattr(group, name):
                yield f"{where}.{name}"
        if group.count < 0:
            yield f"{where}.count {group.count}"
        names = [resource.name.lower() for resource in group.rate_limiter.resources]
        for name in sorted({name for name in names if not name or names.count(name) > 1}):
            yield f"{where}.rate_limiter.resources '{name}', a name that is empty or given twice"


def _optimization(config: ModelConfig) -> Iterator[str]:
    block = config.optimization
    if block.graph.level not in (-1, 0, 1, 2):
        yield f"optimization.graph.level {block.graph.level} (one of -1, 0, 1, 2)"
    policy = model_config_pb2.ModelOptimizationPolicy
    if block.priority != policy.PRIORITY_DEFAULT:
        yield "optimization.priority"
    if block.HasField("cuda"):
        yield "optimization.cuda"
    for accelerator in block.execution_accelerators.cpu_execution_accelerator:
        yield f"optimization.execution_accelerators.cpu_execution_accelerator '{accelerator.name}'"
    if block.gather_kernel_buffer_threshold:
        yield "optimization.gather_kernel_buffer_threshold"
    if block.eager_batching:
        yield "optimization.eager_batching"


def _tensors(config: ModelConfig) -> Iterator[str]:
    for tensor in config.input:
        where = f"input '{tensor.name}'"
        if tensor.format != model_config_pb2.ModelInput.FORMAT_NONE:
            yield f"{where} format"
        if tensor.is_shape_tensor:
            yield f"{where} is_shape_tensor"
        if tensor.is_non_linear_format_io:
            yield f"{where} is_non_linear_format_io"
        if tensor.allow_ragged_batch and config.max_batch_size < 1:
            yield f"{where} allow_ragged_batch with max_batch_size 0"
    for tensor in config.output:
        where = f"output '{tensor.name}'"
        if tensor.is_shape_tensor:
            yield f"{where} is_shape_tensor"
        if tensor.is_non_linear_format_io:
            yield f"{where} is_non_linear_format_io"


def _ensemble(config: ModelConfig) -> Iterator[str]:
    if config.ensemble_scheduling.max_inflight_requests:
        yield "ensemble_scheduling.max_inflight_requests"
    for name in ("instance_group", "batch_input", "batch_output"):
        if getattr(config, name):
            yield f"{name} of an ensemble"
    if config.model_transaction_policy.decoupled:
        yield "model_transaction_policy.decoupled of an ensemble"
    if config.HasField("sequence_batching"):
        yield "sequence_batching of an ensemble"
    if config.HasField("model_operations"):
        yield "model_operations of an ensemble"
    for step in config.ensemble_scheduling.step:
        if step.model_namespace:
            yield f"model_namespace '{step.model_namespace}'"
    for key in config.parameters:
        if not key.startswith(("predict_", "row_status_", "gateway_", "golden_")):
            yield f"parameter '{key}' of an ensemble"


def parameter(config: ModelConfig, key: str) -> str:
    """Returns the string value of a parameter, "" if it is not set."""
    return config.parameters[key].string_value if key in config.parameters else ""


def runs_on_triton(config: ModelConfig) -> bool:
    """Returns whether Triton runs a model if there are Triton servers. Raises ConfigError for an unknown backend."""
    backend = parameter(config, "gateway_backend")
    if backend not in ("", "onnxruntime", "triton"):
        raise ConfigError(f"parameter 'gateway_backend': expected onnxruntime or triton, got '{backend}'")
    return backend != "onnxruntime"


def state_defaults(config: ModelConfig) -> None:
    """Writes what a config means where it says nothing, as Triton does."""
    if config.version_policy.WhichOneof("policy_choice") is None:
        config.version_policy.latest.num_versions = 1
    if config.HasField("ensemble_scheduling"):
        config.platform = "ensemble"
        config.model_transaction_policy.SetInParent()
        return
    if not config.platform and config.backend == "onnxruntime":
        config.platform = "onnxruntime_onnx"
        config.default_model_filename = config.default_model_filename or "model.onnx"
    for memory in (config.optimization.input_pinned_memory, config.optimization.output_pinned_memory):
        if not memory.ListFields():
            memory.enable = True
