"""Reads config.pbtxt into Triton's ModelConfig message.

Each field is honoured, or ignored because it can't change a result, or refused by name with what to do.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from google.protobuf import text_format

from opgate.service.core.errors import Kind, ServingError
from opgate.service.core.triton_messages import ModelConfig, ModelDynamicBatching, ModelQueuePolicy, model_config_pb2
from opgate.service.similar_names import Names

# Those of ONNX Runtime, and all that a config may have.
ENGINE_PARAMETERS = frozenset({
    "intra_op_thread_count", "inter_op_thread_count", "execution_mode", "enable_mem_arena", "enable_mem_pattern",
    "memory.enable_memory_arena_shrinkage",
})  # fmt: skip
# Options of its CUDA provider, at the place where older configs have them.
CUDA_PARAMETERS = frozenset({
    "arena_extend_strategy", "cudnn_conv_algo_search", "do_copy_in_default_stream", "gpu_mem_limit",
})  # fmt: skip
# Those that say how requests share a batch.
BATCH_PARAMETERS = frozenset({
    "pad_inputs", "pad_masks", "pad_outputs", "pad_buckets", "batch_by", "length_buckets", "pad_batch",
})  # fmt: skip
# A bucket is no larger than this.
_LARGEST_BUCKET = 1 << 31
# Those that say how a model runs, which an ensemble doesn't.
_RUN_PARAMETERS = BATCH_PARAMETERS | {"isolation", "max_latency_ms"}
PARAMETERS = ENGINE_PARAMETERS | CUDA_PARAMETERS | _RUN_PARAMETERS | {
    "row_status_output", "row_status_messages", "predict_count_output", "predict_fields", "predict_picture_model",
    "predict_media_types", "predict_text_output", "predict_mask_outputs", "gateway_backend", "golden_tolerance",
    "residency", "share",
}  # fmt: skip
# A string ends with its line at the latest. So the time to find it grows only with the text.
_STRING_OR_COMMENT = re.compile(r""""(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?|#.*""")
# Where a template wants a value.
_PLACEHOLDER = re.compile(r"\$\{\w*\}?|\{\{|\{%")
# What the parser says of a name that a message or an enum doesn't have.
_UNKNOWN_NAME = re.compile(r'(Message|Enum) type "([\w.]+)" has no (?:field|value) named')
# How Python keeps a byte that is not UTF-8.
_NO_UTF8 = re.compile("[\udc80-\udcff]")
#: Microseconds after which a sequence ends if the config says nothing, as in Triton.
DEFAULT_IDLE_US = 1_000_000
# The files of models if a config names no other ones.
ONNX_FILE, PYTHON_FILE = "model.onnx", "model.py"
# Bytes of a config.pbtxt, and characters of the text of an error about it.
MOST_CONFIG_BYTES = 1 << 20
_MOST_TEXT = 4000
SESSION_PREFIX = "session."  # passed to ONNX Runtime as session configuration entries
# Files of Triton's backends. A config may name that of its own backend.
_RUNTIMES = {"onnxruntime": "libtriton_onnxruntime.so", "python": "libtriton_python.so"}
_INSTEAD_OF_A_BACKEND = "export it to ONNX, or let a Triton server run it: --backend triton"


class ConfigError(ServingError):
    """A model can't be served in the way its config describes. The message names the field."""

    def __init__(self, message: str) -> None:
        super().__init__(Kind.UNAVAILABLE, shortened(message))


def shortened(text: str) -> str:
    """Returns a text about a config without its middle if it is too long: names and values may have any length."""
    return text if len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT // 2]}... ...{text[-_MOST_TEXT // 4 :]}"


def read_text(path: Path, most: int) -> str:
    """Returns what a file of a model says, of at most so many bytes. Raises ConfigError if it is no file of text.

    A pipe or a device would make the loading wait.
    """
    try:
        return _read(path, most).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path.name} can't be read: {error}") from error


def _read(path: Path, most: int) -> bytes:
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ConfigError(f"{path.name} is no regular file")
            data = file.read(most + 1)
    except OSError as error:
        raise ConfigError(f"{path.name} can't be read: {error.strerror}") from error
    if len(data) > most:
        raise ConfigError(f"{path.name}: expected at most {most} bytes, got more")
    return data


def _read_config_text(path: Path) -> str:
    """Returns the text of a config.pbtxt without its comments, which may be in any encoding. Raises ConfigError."""
    text = _read(path, MOST_CONFIG_BYTES).decode("utf-8-sig", "surrogateescape")
    text = _STRING_OR_COMMENT.sub(lambda found: "" if found[0].startswith("#") else found[0], text)
    if found := _NO_UTF8.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise ConfigError(f"{path.name} line {line}: a text that is not UTF-8")
    return text


def read_config(path: Path) -> ModelConfig:
    """Parses a config.pbtxt. Raises ConfigError, with line and column of a syntax error."""
    text = _read_config_text(path)
    try:
        return text_format.Parse(text, ModelConfig())
    except text_format.ParseError as error:
        raise ConfigError(f"{path.name} can't be parsed: {error}{_advice(text, error)}") from error


def _advice(text: str, error: text_format.ParseError) -> str:
    """Returns what to do about a syntax error, "" if only its place is known."""
    lines = text.split("\n")
    line = lines[min(error.GetLine() or 1, len(lines)) - 1]
    if found := _PLACEHOLDER.search(line):
        return f" (a template: it wants a value in place of {found[0]})"
    if line[(error.GetColumn() or 1) - 1 :].startswith("]"):
        return " (remove the comma before the ])"
    if not (found := _UNKNOWN_NAME.search(str(error))):
        return ""
    pool = model_config_pb2.DESCRIPTOR.pool
    if found[1] == "Message":
        names = pool.FindMessageTypeByName(found[2]).fields_by_name
    else:
        names = pool.FindEnumTypeByName(found[2]).values_by_name
    return f" (expected one of {', '.join(names)})"


def states_max_batch_size(folder: Path) -> bool:
    """Returns whether the config.pbtxt of a model's folder says what max_batch_size is. In the parsed message 0 and
    nothing are the same."""
    try:
        text = _read_config_text(folder / "config.pbtxt")
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


def ignored(config: ModelConfig) -> list[str]:
    """Returns the fields of a loaded model's config that nothing reads. None of them can change a result."""
    return list(_ignored(config))


def in_python(config: ModelConfig) -> bool:
    """Returns whether a model is one in Python."""
    return (config.backend or config.platform) == "python" and not config.HasField("ensemble_scheduling")


def _in_onnx(config: ModelConfig) -> bool:
    return not in_python(config) and not config.HasField("ensemble_scheduling")


def _unsupported_with_triton(config: ModelConfig) -> Iterator[str]:
    if config.HasField("sequence_batching"):
        yield "sequence_batching"
    if config.model_transaction_policy.decoupled:
        yield "model_transaction_policy.decoupled"
    for key in sorted(_RUN_PARAMETERS):
        if key in config.parameters:
            yield f"parameter '{key}' of a model that Triton runs"


def _unsupported(config: ModelConfig) -> Iterator[str]:
    ensemble = config.HasField("ensemble_scheduling")
    engine = config.backend or config.platform
    if not ensemble and "ensemble" in (config.platform, config.backend):
        yield "platform 'ensemble' without ensemble_scheduling, which has its steps"
    elif not ensemble and engine not in ("", "onnxruntime", "onnxruntime_onnx", "python"):
        yield f"backend '{engine}' (only 'onnxruntime', 'python' and ensembles are served: {_INSTEAD_OF_A_BACKEND})"
    if config.backend not in ("", "onnxruntime") and ensemble:
        yield f"backend '{config.backend}' together with ensemble_scheduling"
    if ensemble and config.platform not in ("", "ensemble"):
        yield f"platform '{config.platform}' together with ensemble_scheduling"
    yield from _features(config)
    yield from _batching(config)
    yield from _instances(config)
    yield from _tensors(config)
    yield from _parameters(config)
    if _in_onnx(config):
        for accelerator in config.optimization.execution_accelerators.cpu_execution_accelerator:
            if accelerator.name != "openvino":
                yield (
                    f"optimization.execution_accelerators.cpu_execution_accelerator '{accelerator.name}': expected "
                    "openvino or none"
                )
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
        yield "model_repository_agents: remove it, or do its work before the model is in the repository"
    if config.runtime and config.runtime != _own_runtime(config):
        yield f"runtime '{config.runtime}': remove it: the gateway has its own backends"


def _own_runtime(config: ModelConfig) -> str:
    """Returns the file of Triton's backend for a model, "" for an ensemble."""
    return "" if config.HasField("ensemble_scheduling") else _RUNTIMES["python" if in_python(config) else "onnxruntime"]


def _batching(config: ModelConfig) -> Iterator[str]:
    if not config.HasField("dynamic_batching"):
        return
    block = config.dynamic_batching
    for size in block.preferred_batch_size:
        if config.max_batch_size < 1:
            yield f"dynamic_batching.preferred_batch_size {size}: max_batch_size is 0: remove it"
        elif not 1 <= size <= config.max_batch_size:
            yield f"dynamic_batching.preferred_batch_size {size} outside 1 to max_batch_size {config.max_batch_size}"
    yield from _priority_levels(block)
    if block.preserve_ordering:
        yield from _contradicting_order(block)


def _priority_levels(block: ModelDynamicBatching) -> Iterator[str]:
    levels, default = block.priority_levels, block.default_priority_level
    if not levels:
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
    if block.priority_levels:
        policies |= {f"priority_queue_policy {level}": policy for level, policy in block.priority_queue_policy.items()}
    for name, policy in policies.items():
        if policy.default_timeout_microseconds and policy.timeout_action == ModelQueuePolicy.DELAY:
            yield f"dynamic_batching.{name}.timeout_action DELAY with preserve_ordering"


def _instances(config: ModelConfig) -> Iterator[str]:
    kinds = model_config_pb2.ModelInstanceGroup.Kind
    for i, group in enumerate(config.instance_group):
        where = f"instance_group[{i}]"
        if group.gpus and group.kind in (kinds.Value("KIND_CPU"), kinds.Value("KIND_MODEL")):
            yield f"{where}.gpus of {kinds.Name(group.kind)}"
        if group.profile:
            yield f"{where}.profile: only TensorRT models have profiles: remove it"
        if group.passive:
            yield f"{where}.passive: its instances would get no requests: remove the group"
        if group.count < 0:
            yield f"{where}.count {group.count}"
        names = [resource.name.lower() for resource in group.rate_limiter.resources]
        for name in sorted({name for name in names if not name or names.count(name) > 1}):
            yield f"{where}.rate_limiter.resources '{name}', a name that is empty or given twice"


def _tensors(config: ModelConfig) -> Iterator[str]:
    for kind, tensors in (("input", config.input), ("output", config.output)):
        for tensor in tensors:
            where = f"{kind} '{tensor.name}'"
            for name in ("is_shape_tensor", "is_non_linear_format_io"):
                if getattr(tensor, name):
                    yield f"{where} {name}: only TensorRT models have it: remove it"
            if config.HasField("ensemble_scheduling") and tensor.HasField("reshape"):
                yield f"reshape of an ensemble's {where}: put it into the config of the step's model"


def _parameters(config: ModelConfig) -> Iterator[str]:
    if in_python(config):
        return  # its parameters are for its model.py
    ensemble = config.HasField("ensemble_scheduling")
    names = Names(PARAMETERS)
    for key in config.parameters:
        if ensemble and key in _RUN_PARAMETERS:
            yield f"parameter '{key}' of an ensemble: put it into the config of the step's model"
        elif key not in PARAMETERS and not key.startswith(SESSION_PREFIX) and (close := names.nearest(key, 0.8)):
            yield f"parameter '{key}' (is {close} meant?)"


def _ensemble(config: ModelConfig) -> Iterator[str]:
    for name in ("instance_group", "batch_input", "batch_output"):
        if getattr(config, name):
            yield f"{name} of an ensemble: put it into the config of a step's model"
    for step in config.ensemble_scheduling.step:
        if step.model_namespace:
            yield f"model_namespace '{step.model_namespace}': remove it"


def _ignored(config: ModelConfig) -> Iterator[str]:
    ensemble = config.HasField("ensemble_scheduling")
    of_ensemble = ("backend", "default_model_filename") if ensemble else ()
    of_python = ("batch_input",) if in_python(config) else ()
    for name in ("metric_tags", "cc_model_filenames", "runtime", *of_ensemble, *of_python):
        if getattr(config, name):
            yield name
    if config.HasField("model_metrics"):
        yield "model_metrics"
    if not _in_onnx(config) and config.HasField("model_operations"):
        yield "model_operations"
    if config.ensemble_scheduling.max_inflight_requests:
        yield "ensemble_scheduling.max_inflight_requests"
    yield from _ignored_of_tensors(config)
    yield from _ignored_of_schedulers(config)
    for i, group in enumerate(config.instance_group):
        for name in ("secondary_devices", "host_policy"):
            if getattr(group, name):
                yield f"instance_group[{i}].{name}"
    yield from _ignored_optimization(config)
    yield from _ignored_parameters(config)


def _ignored_of_tensors(config: ModelConfig) -> Iterator[str]:
    for tensor in config.input:
        if tensor.format != model_config_pb2.ModelInput.FORMAT_NONE:
            yield f"input '{tensor.name}' format"
        if tensor.allow_ragged_batch and config.max_batch_size < 1:
            yield f"input '{tensor.name}' allow_ragged_batch"


def _ignored_of_schedulers(config: ModelConfig) -> Iterator[str]:
    block = config.dynamic_batching
    for name in ("default_priority_level", "priority_queue_policy"):
        if getattr(block, name) and not block.priority_levels:
            yield f"dynamic_batching.{name}"
    for state in config.sequence_batching.state:
        for name in ("use_same_buffer_for_input_output", "use_growable_memory"):
            if getattr(state, name):
                yield f"sequence_batching.state '{state.input_name}' {name}"


def _ignored_optimization(config: ModelConfig) -> Iterator[str]:
    block = model_config_pb2.ModelOptimizationPolicy()
    block.CopyFrom(config.optimization)
    for name in ("input_pinned_memory", "output_pinned_memory"):
        if getattr(block, name).enable:  # as in Triton if nothing is said
            block.ClearField(name)
        elif block.HasField(name) and _in_onnx(config):
            yield f"optimization.{name}"
    if not _in_onnx(config):
        if block.ListFields():
            yield "optimization"
        return
    if block.graph.level not in (-1, 0, 1, 2):
        yield f"optimization.graph.level {block.graph.level}, which is taken as 0"
    if block.HasField("cuda"):
        yield "optimization.cuda"
    for name in ("priority", "gather_kernel_buffer_threshold", "eager_batching"):
        if getattr(block, name):
            yield f"optimization.{name}"
    accelerators = block.execution_accelerators
    for accelerator in accelerators.cpu_execution_accelerator:
        yield f"optimization.execution_accelerators.cpu_execution_accelerator '{accelerator.name}'"
    if not on_gpu(config):
        for accelerator in accelerators.gpu_execution_accelerator:
            yield f"optimization.execution_accelerators.gpu_execution_accelerator '{accelerator.name}'"


def _ignored_parameters(config: ModelConfig) -> Iterator[str]:
    if in_python(config):
        return
    ensemble = config.HasField("ensemble_scheduling")
    for key in sorted(config.parameters):
        of_engine = key in ENGINE_PARAMETERS or key.startswith(SESSION_PREFIX)
        unread = ensemble if of_engine else key in CUDA_PARAMETERS and not on_gpu(config)
        if unread or (key not in PARAMETERS and not of_engine):
            yield f"parameter '{key}'"


def on_gpu(config: ModelConfig) -> bool:
    """Returns whether an instance of a model runs on a GPU. `place` has completed the config."""
    return any(group.kind == model_config_pb2.ModelInstanceGroup.KIND_GPU for group in config.instance_group)


def ascending_sizes(text: str) -> tuple[int, ...]:
    """Returns the sizes of buckets, ascending and with commas between them; none if the text has anything else."""
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        return ()
    return sizes if sorted(set(sizes)) == list(sizes) and 1 <= sizes[0] <= sizes[-1] <= _LARGEST_BUCKET else ()


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
    if in_python(config):
        config.backend = "python"
        config.default_model_filename = config.default_model_filename or PYTHON_FILE
    elif (config.backend or config.platform) in ("onnxruntime", "onnxruntime_onnx"):
        config.backend, config.platform = "onnxruntime", "onnxruntime_onnx"
        config.default_model_filename = config.default_model_filename or ONNX_FILE
    for name in ("input_pinned_memory", "output_pinned_memory"):
        if not config.optimization.HasField(name):
            getattr(config.optimization, name).enable = True


def with_schedulers(config: ModelConfig) -> ModelConfig:
    """Returns a copy of a config that also writes what its scheduler means where it says nothing, as Triton shows it.
    Nothing that runs a model reads these values."""
    shown = ModelConfig()
    shown.CopyFrom(config)
    batching = [shown.dynamic_batching] if config.HasField("dynamic_batching") else []
    if config.HasField("sequence_batching"):
        sequences = shown.sequence_batching
        sequences.max_sequence_idle_microseconds = sequences.max_sequence_idle_microseconds or DEFAULT_IDLE_US
        batching = [sequences.oldest] if sequences.HasField("oldest") else []
    for block in batching:
        if not block.preferred_batch_size and config.max_batch_size:
            block.preferred_batch_size.append(config.max_batch_size)
    return shown
