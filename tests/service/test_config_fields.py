"""Every field and value of model_config.proto: honoured, ignored or refused, and what is loaded agrees with that.

A field that is honoured changes what is loaded, or is named by what is wrong with it. A field that is ignored changes
nothing, and the log names it. A field that is refused is named with what to do. A proto with a field that the table
lacks fails here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from onnx import helper

from opgate.service.core.triton_messages import ModelConfig
from opgate.service.execution.gpus import NoGpu
from opgate.service.execution.session import Session
from opgate.service.gateway import Gateway
from opgate.service.repository import loader, proving
from opgate.service.repository.devices import place
from tests.service.onnx_models import (
    PIPELINE_CONFIG,
    RAGGED_CONFIG,
    double,
    identity,
    ragged_sum,
    save,
    value,
    write_config,
)
from tests.service.stateful_models import accumulator

HONOURED, IGNORED, REFUSED = "honoured", "ignored", "refused"


@dataclass(frozen=True)
class Case:
    """What becomes of a config with `text`, or with `text` in place of `instead_of`.

    `says` is a part of the reason why it doesn't load, or the ignored field. `plain` says that an honoured value is the
    one that counts if nothing is said, so that it changes nothing. `gpus` is how many there are.
    """

    verdict: str
    text: str
    instead_of: str = ""
    says: str = ""
    base: str = "onnx"
    plain: bool = False
    gpus: int = 0


honoured, ignored, refused = partial(Case, HONOURED), partial(Case, IGNORED), partial(Case, REFUSED)
default = partial(Case, HONOURED, plain=True)

ONNX = """backend: "onnxruntime" max_batch_size: 8 dynamic_batching { }
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""
SCATTERED = """max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ -1 ] } ]
batch_output { target_name: "y" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "x" }
"""


def _onnx(repository: Path, config: str) -> None:
    for version in (1, 2, 3):
        double(repository, "m", config=config, version=version)


def _ensemble(repository: Path, config: str) -> None:
    for name in ("double", "again"):
        for version in (1, 2):
            double(repository, name, config="max_batch_size: 8 version_policy { all { } }", version=version)
    write_config(repository, "m", config)


def _scattered(repository: Path, config: str) -> None:
    nodes = [helper.make_node("Add", ["x", "x"], ["y"])]
    save(repository, "m", nodes, [value("x", "FP32", ["n"])], [value("y", "FP32", ["n"])], config=config)


def _sequences(repository: Path, config: str) -> None:
    folder = accumulator(repository, "m")
    (folder / "initial_state").mkdir(exist_ok=True)
    (folder / "initial_state" / "five").write_bytes(b"\0\0\xa0\x40")
    (folder / "config.pbtxt").write_text(config)


def _stateful() -> str:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        made = accumulator(Path(folder), "m", "direct { }", initial=INITIAL)
        return (made / "config.pbtxt").read_text()


INITIAL = 'initial_state [ { name: "i" data_type: TYPE_FP32 dims: [ 1 ] data_file: "five" } ]'
BASES: dict[str, tuple[str, Callable[[Path, str], Any]]] = {
    "onnx": (ONNX, _onnx),
    "ensemble": (PIPELINE_CONFIG, _ensemble),
    "ragged": (RAGGED_CONFIG, lambda repository, config: ragged_sum(repository, "m", config)),
    "scattered": (SCATTERED, _scattered),
    "sequences": (_stateful(), _sequences),
}
X = 'name: "x" data_type: TYPE_FP32 dims: [ 4 ]'
Y = 'name: "y" data_type: TYPE_FP32 dims: [ 4 ]'
GROUP = "instance_group [ { name: 'm' %s } ]"  # the name that it has anyway
RESOURCE = GROUP % "rate_limiter { resources [ { name: 'a' count: 2 } ] }"
WARM = (
    "model_warmup [ { name: 'w' %s inputs { key: 'x' value { data_type: TYPE_FP32 dims: [ 4 ] zero_data: true } } } ]"
)
BATCHING = "dynamic_batching { }"
CUDA = "optimization.cuda"
ACCELERATORS = "optimization.execution_accelerators"
_CUDA = "optimization { cuda { %s } }"
_ON_GPU = f"{GROUP % 'kind: KIND_GPU'} optimization {{ execution_accelerators {{ %s }} }}"
_POLICY = "dynamic_batching { default_queue_policy { %s } }"
_LEVELS = "dynamic_batching { priority_levels: 2 default_priority_level: 1 %s }"
_OLDEST = "oldest { %s }"
_STATE = 'output_name: "new_total"'
_AGENTS = "model_repository_agents { agents [ { name: 'a' parameters { key: 'b' value: 'c' } } ] }"
_AGENTS_SAY = "model_repository_agents: remove it, or do its work before the model is in the repository"
_METRICS = (
    "model_metrics { metric_control [ { metric_identifier { family: 'nv_x' } histogram_options { buckets: [ 1 ] } } ] }"
)
_metrics = ignored(_METRICS, says="model_metrics")
_agents = refused(_AGENTS, says=_AGENTS_SAY)
_graph_spec = ignored(
    _CUDA % "graph_spec [ { batch_size: 1 input { key: 'x' value { dim: [ 4 ] } } "
    "graph_lower_bound { batch_size: 1 input { key: 'x' value { dim: [ 4 ] } } } } ]",
    says=CUDA,
)
_secondary = ignored(
    GROUP % "secondary_devices { kind: KIND_NVDLA device_id: 1 }", says="instance_group[0].secondary_devices"
)


def _kind_of_batch_input(kind: str, **more: Any) -> Case:
    return honoured(f"kind: {kind} ", "kind: BATCH_ACCUMULATED_ELEMENT_COUNT ", base="ragged", **more)


TABLE: dict[str, Case | tuple[Case, ...]] = {
    "ModelConfig.name": (default("name: 'm'"), refused("name: 'n'", says="its folder is 'm'")),
    "ModelConfig.platform": (default("platform: 'onnxruntime_onnx'"), refused("platform: 'tensorrt_plan'", 'backend: "onnxruntime"', "--backend triton")),
    "ModelConfig.backend": (honoured("", 'backend: "onnxruntime"', plain=True), refused('backend: "tensorrt"', 'backend: "onnxruntime"', "export it to ONNX")),
    "ModelConfig.runtime": (ignored("runtime: 'libtriton_onnxruntime.so'", says="runtime"), refused("runtime: 'a.so'", says="runtime 'a.so': remove it")),
    "ModelConfig.version_policy": honoured("version_policy { all { } }"),
    "ModelVersionPolicy.latest": honoured("version_policy { latest { num_versions: 2 } }"),
    "ModelVersionPolicy.Latest.num_versions": (honoured("version_policy { latest { num_versions: 2 } }"), default("version_policy { latest { } }")),
    "ModelVersionPolicy.all": honoured("version_policy { all { } }"),
    "ModelVersionPolicy.specific": honoured("version_policy { specific { versions: [ 1, 2 ] } }"),
    "ModelVersionPolicy.Specific.versions": (honoured("version_policy { specific { versions: [ 1, 9 ] } }"), refused("version_policy { specific { versions: [ 9 ] } }", says="wants version 9, present are [1, 2, 3]: add a folder")),
    "ModelConfig.max_batch_size": honoured("max_batch_size: 4", "max_batch_size: 8"),
    "ModelConfig.input": honoured('input [ { name: "z"', 'input [ { name: "x"', "'z' is not in the model file"),
    "ModelConfig.output": honoured('output [ { name: "z"', 'output [ { name: "y"', "'z' is not in the model file"),
    "ModelConfig.batch_input": honoured('kind: BATCH_ELEMENT_COUNT', 'kind: BATCH_ACCUMULATED_ELEMENT_COUNT', base="ragged"),
    "ModelConfig.batch_output": honoured("", SCATTERED.splitlines()[-1], "doesn't fit the model file's", "scattered"),
    "ModelConfig.optimization": honoured("optimization { graph { level: 1 } }"),
    "ModelConfig.dynamic_batching": (honoured("", BATCHING), honoured("dynamic_batching { preserve_ordering: true }", BATCHING)),
    "ModelConfig.sequence_batching": honoured("max_sequence_idle_microseconds: 5", "direct { }", base="sequences"),
    "ModelConfig.ensemble_scheduling": honoured('model_name: "none"', 'model_name: "again"', "unknown model: 'none'", base="ensemble"),
    "ModelConfig.instance_group": honoured(GROUP % "count: 2"),
    "ModelConfig.default_model_filename": (default("default_model_filename: 'model.onnx'"), honoured("default_model_filename: 'a.onnx'", says="there is no model file m/3/a.onnx")),
    "ModelConfig.cc_model_filenames": (
        ignored("cc_model_filenames { key: '7.5' value: 'a.onnx' }", says="cc_model_filenames"),
        refused("cc_model_filenames { key: '7.5' value: 'a.onnx' }", says="put the file for this GPU into default_model_filename", gpus=1),
    ),
    "ModelConfig.metric_tags": ignored("metric_tags { key: 'a' value: 'b' }", says="metric_tags"),
    "ModelConfig.parameters": (
        honoured("parameters { key: 'intra_op_thread_count' value { string_value: '3' } }"),
        ignored("parameters { key: 'mine' value { string_value: '3' } }", says="parameter 'mine'"),
        refused("parameters { key: 'batch_bye' value { string_value: '3' } }", says="(is batch_by meant?)"),
    ),
    "ModelParameter.string_value": honoured("parameters { key: 'intra_op_thread_count' value { string_value: 'x' } }", says="expected an integer, got 'x'"),
    "ModelConfig.model_warmup": honoured(WARM % ""),
    "ModelConfig.model_operations": honoured("model_operations { op_library_filename: 'no.so' }", says="op library 'no.so' was not found"),
    "ModelOperations.op_library_filename": honoured("model_operations { op_library_filename: 'a/no.so' }", says="expected a bare file name"),
    "ModelConfig.model_transaction_policy": honoured("model_transaction_policy { decoupled: true }"),
    "ModelTransactionPolicy.decoupled": honoured("model_transaction_policy { decoupled: true }"),
    "ModelConfig.model_repository_agents": _agents,
    "ModelRepositoryAgents.agents": _agents,
    "ModelRepositoryAgents.Agent.name": _agents,
    "ModelRepositoryAgents.Agent.parameters": _agents,
    "ModelConfig.response_cache": honoured("response_cache { enable: true }"),
    "ModelResponseCache.enable": honoured("response_cache { enable: true }"),
    "ModelConfig.model_metrics": _metrics,
    "ModelMetrics.metric_control": _metrics,
    "ModelMetrics.MetricControl.metric_identifier": _metrics,
    "ModelMetrics.MetricControl.MetricIdentifier.family": _metrics,
    "ModelMetrics.MetricControl.histogram_options": _metrics,
    "ModelMetrics.MetricControl.HistogramOptions.buckets": _metrics,
    # Instances
    "ModelInstanceGroup.name": honoured("instance_group [ { name: 'own' } ]"),
    "ModelInstanceGroup.kind": honoured(GROUP % "kind: KIND_GPU", says="say KIND_CPU, or KIND_AUTO"),
    "ModelInstanceGroup.Kind.KIND_AUTO": default(GROUP % "kind: KIND_AUTO"),
    "ModelInstanceGroup.Kind.KIND_GPU": honoured(GROUP % "kind: KIND_GPU", says="there is no GPU here"),
    "ModelInstanceGroup.Kind.KIND_CPU": honoured(GROUP % "kind: KIND_CPU", gpus=1),
    "ModelInstanceGroup.Kind.KIND_MODEL": honoured(GROUP % "kind: KIND_MODEL", gpus=1),
    "ModelInstanceGroup.count": (honoured(GROUP % "count: 2"), refused(GROUP % "count: -1", says="instance_group[0].count -1")),
    "ModelInstanceGroup.gpus": (honoured(GROUP % "gpus: [ 1 ]", gpus=2), refused(GROUP % "kind: KIND_CPU gpus: [ 1 ]", says="gpus of KIND_CPU")),
    "ModelInstanceGroup.secondary_devices": _secondary,
    "ModelInstanceGroup.SecondaryDevice.kind": _secondary,
    "ModelInstanceGroup.SecondaryDevice.device_id": _secondary,
    "ModelInstanceGroup.SecondaryDevice.SecondaryDeviceKind.KIND_NVDLA": _secondary,
    "ModelInstanceGroup.profile": refused(GROUP % "profile: [ 'a' ]", says="profile: only TensorRT models have profiles: remove it"),
    "ModelInstanceGroup.passive": refused(GROUP % "passive: true", says="its instances would get no requests: remove the group"),
    "ModelInstanceGroup.host_policy": ignored(GROUP % "host_policy: 'numa'", says="instance_group[0].host_policy"),
    "ModelInstanceGroup.rate_limiter": honoured(RESOURCE),
    "ModelRateLimiter.resources": honoured(RESOURCE),
    "ModelRateLimiter.Resource.name": (honoured(RESOURCE), refused(RESOURCE.replace("'a'", "''"), says="a name that is empty")),
    "ModelRateLimiter.Resource.global": honoured(RESOURCE.replace("count", "global: true count")),
    "ModelRateLimiter.Resource.count": honoured(RESOURCE),
    "ModelRateLimiter.priority": honoured(GROUP % "rate_limiter { priority: 3 }"),
    # Tensors
    "ModelInput.name": honoured(X.replace('"x"', '"z"'), X, "'z' is not in the model file"),
    "ModelInput.data_type": honoured(X.replace("FP32", "INT8"), X, "the config says TYPE_INT8"),
    "ModelInput.format": ignored(f"{X} format: FORMAT_NCHW", X, "input 'x' format"),
    "ModelInput.Format.FORMAT_NONE": default(f"{X} format: FORMAT_NONE", X),
    "ModelInput.Format.FORMAT_NHWC": ignored(f"{X} format: FORMAT_NHWC", X, "input 'x' format"),
    "ModelInput.Format.FORMAT_NCHW": ignored(f"{X} format: FORMAT_NCHW", X, "input 'x' format"),
    "ModelInput.dims": honoured(X.replace("4", "5"), X, "doesn't fit the model file's"),
    "ModelInput.reshape": honoured(X.replace("4", "2, 2") + " reshape { shape: [ 4 ] }", X),
    "ModelTensorReshape.shape": (
        honoured(X + " reshape { shape: [ 3 ] }", X, "reshape [3] can't hold the elements of dims [4]"),
        refused('name: "in" reshape { shape: [ 4 ] }', 'name: "in"', "put it into the config of the step's model", "ensemble"),
    ),
    "ModelInput.is_shape_tensor": refused(f"{X} is_shape_tensor: true", X, "only TensorRT models have it: remove it"),
    "ModelInput.allow_ragged_batch": honoured(f"{X} allow_ragged_batch: true", X, "joins rows into one flat tensor"),
    "ModelInput.optional": honoured(f"{X} optional: true", X, "add an initializer of that name to the file, or remove `optional: true`"),
    "ModelInput.is_non_linear_format_io": refused(f"{X} is_non_linear_format_io: true", X, "only TensorRT models have it: remove it"),
    "ModelOutput.name": honoured(Y.replace('"y"', '"z"'), Y, "'z' is not in the model file"),
    "ModelOutput.data_type": honoured(Y.replace("FP32", "INT8"), Y, "the config says TYPE_INT8"),
    "ModelOutput.dims": honoured(Y.replace("4", "5"), Y, "doesn't fit the model file's"),
    "ModelOutput.reshape": honoured(Y.replace("4", "2, 2") + " reshape { shape: [ 4 ] }", Y),
    "ModelOutput.label_filename": honoured(f"{Y} label_filename: 'no.txt'", Y, "label_filename: no.txt can't be read"),
    "ModelOutput.is_shape_tensor": refused(f"{Y} is_shape_tensor: true", Y, "only TensorRT models have it: remove it"),
    "ModelOutput.is_non_linear_format_io": refused(f"{Y} is_non_linear_format_io: true", Y, "only TensorRT models have it: remove it"),
    "DataType.TYPE_INVALID": default("TYPE_INVALID", "TYPE_FP32"),
    "BatchInput.kind": _kind_of_batch_input("BATCH_ELEMENT_COUNT"),
    "BatchInput.target_name": honoured('target_name: "e"', 'target_name: "ends"', "'e' is not in the model file", "ragged"),
    "BatchInput.data_type": honoured("TYPE_FP32 source_input", "TYPE_INT32 source_input", "the config says TYPE_FP32", "ragged"),
    "BatchInput.source_input": honoured('source_input: "no"', 'source_input: "data"', "'no' is not an input", "ragged"),
    "BatchInput.Kind.BATCH_ELEMENT_COUNT": _kind_of_batch_input("BATCH_ELEMENT_COUNT"),
    "BatchInput.Kind.BATCH_ACCUMULATED_ELEMENT_COUNT": _kind_of_batch_input("BATCH_ACCUMULATED_ELEMENT_COUNT", plain=True),
    "BatchInput.Kind.BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO": _kind_of_batch_input("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO"),
    "BatchInput.Kind.BATCH_MAX_ELEMENT_COUNT_AS_SHAPE": _kind_of_batch_input("BATCH_MAX_ELEMENT_COUNT_AS_SHAPE"),
    "BatchInput.Kind.BATCH_ITEM_SHAPE": _kind_of_batch_input("BATCH_ITEM_SHAPE", says="has another rank"),
    "BatchInput.Kind.BATCH_ITEM_SHAPE_FLATTEN": _kind_of_batch_input("BATCH_ITEM_SHAPE_FLATTEN"),
    "BatchOutput.target_name": honoured('target_name: "z"', 'target_name: "y"', "batch_output 'z' is not an output", "scattered"),
    "BatchOutput.kind": default("", "kind: BATCH_SCATTER_WITH_INPUT_SHAPE", base="scattered"),
    "BatchOutput.Kind.BATCH_SCATTER_WITH_INPUT_SHAPE": honoured("", SCATTERED.splitlines()[-1], "doesn't fit the model file's", "scattered"),
    "BatchOutput.source_input": honoured('source_input: "z"', 'source_input: "x"', "'z' is not an input", "scattered"),
    # Optimization
    "ModelOptimizationPolicy.graph": honoured("optimization { graph { level: -1 } }"),
    "ModelOptimizationPolicy.Graph.level": (honoured("optimization { graph { level: 2 } }"), ignored("optimization { graph { level: 3 } }", says="optimization.graph.level 3, which is taken as 0")),
    "ModelOptimizationPolicy.priority": ignored("optimization { priority: PRIORITY_MIN }", says="optimization.priority"),
    "ModelOptimizationPolicy.ModelPriority.PRIORITY_DEFAULT": default("optimization { priority: PRIORITY_DEFAULT }"),
    "ModelOptimizationPolicy.ModelPriority.PRIORITY_MAX": ignored("optimization { priority: PRIORITY_MAX }", says="optimization.priority"),
    "ModelOptimizationPolicy.ModelPriority.PRIORITY_MIN": ignored("optimization { priority: PRIORITY_MIN }", says="optimization.priority"),
    "ModelOptimizationPolicy.cuda": ignored(_CUDA % "", says=CUDA),
    "ModelOptimizationPolicy.Cuda.graphs": ignored(_CUDA % "graphs: true", says=CUDA),
    "ModelOptimizationPolicy.Cuda.busy_wait_events": ignored(_CUDA % "busy_wait_events: true", says=CUDA),
    "ModelOptimizationPolicy.Cuda.output_copy_stream": ignored(_CUDA % "output_copy_stream: true", says=CUDA),
    "ModelOptimizationPolicy.Cuda.graph_spec": _graph_spec,
    "ModelOptimizationPolicy.Cuda.GraphSpec.batch_size": _graph_spec,
    "ModelOptimizationPolicy.Cuda.GraphSpec.input": _graph_spec,
    "ModelOptimizationPolicy.Cuda.GraphSpec.graph_lower_bound": _graph_spec,
    "ModelOptimizationPolicy.Cuda.GraphSpec.Shape.dim": _graph_spec,
    "ModelOptimizationPolicy.Cuda.GraphSpec.LowerBound.batch_size": _graph_spec,
    "ModelOptimizationPolicy.Cuda.GraphSpec.LowerBound.input": _graph_spec,
    "ModelOptimizationPolicy.execution_accelerators": ignored(
        "optimization { execution_accelerators { gpu_execution_accelerator { name: 'tensorrt' } } }",
        says=f"{ACCELERATORS}.gpu_execution_accelerator 'tensorrt'",
    ),
    "ModelOptimizationPolicy.ExecutionAccelerators.gpu_execution_accelerator": (
        honoured(_ON_GPU % "gpu_execution_accelerator { name: 'cuda' parameters { key: 'use_tf32' value: '0' } }", gpus=1),
        ignored("optimization { execution_accelerators { gpu_execution_accelerator { name: 'cuda' } } }", says=f"{ACCELERATORS}.gpu_execution_accelerator 'cuda'"),
    ),
    "ModelOptimizationPolicy.ExecutionAccelerators.cpu_execution_accelerator": (
        ignored("optimization { execution_accelerators { cpu_execution_accelerator { name: 'openvino' } } }", says=f"{ACCELERATORS}.cpu_execution_accelerator 'openvino'"),
        refused("optimization { execution_accelerators { cpu_execution_accelerator { name: 'x' } } }", says="'x': expected openvino or none"),
    ),
    "ModelOptimizationPolicy.ExecutionAccelerators.Accelerator.name": honoured(_ON_GPU % "gpu_execution_accelerator { name: 'x' }", says="'x': expected cuda or tensorrt", gpus=1),
    "ModelOptimizationPolicy.ExecutionAccelerators.Accelerator.parameters": honoured(
        _ON_GPU % "gpu_execution_accelerator { name: 'cuda' parameters { key: 'x' value: '0' } }", says="parameter 'x': expected one of", gpus=1
    ),
    "ModelOptimizationPolicy.input_pinned_memory": ignored("optimization { input_pinned_memory { enable: false } }", says="optimization.input_pinned_memory"),
    "ModelOptimizationPolicy.output_pinned_memory": ignored("optimization { output_pinned_memory { enable: false } }", says="optimization.output_pinned_memory"),
    "ModelOptimizationPolicy.PinnedMemoryBuffer.enable": (
        default("optimization { output_pinned_memory { enable: true } }"),
        ignored("optimization { output_pinned_memory { } }", says="optimization.output_pinned_memory"),
    ),
    "ModelOptimizationPolicy.gather_kernel_buffer_threshold": ignored("optimization { gather_kernel_buffer_threshold: 1 }", says="optimization.gather_kernel_buffer_threshold"),
    "ModelOptimizationPolicy.eager_batching": ignored("optimization { eager_batching: true }", says="optimization.eager_batching"),
    # Queues
    "ModelQueuePolicy.timeout_action": honoured(_POLICY % "timeout_action: DELAY", BATCHING),
    "ModelQueuePolicy.TimeoutAction.REJECT": default(_POLICY % "timeout_action: REJECT", BATCHING),
    "ModelQueuePolicy.TimeoutAction.DELAY": honoured(_POLICY % "timeout_action: DELAY", BATCHING),
    "ModelQueuePolicy.default_timeout_microseconds": honoured(_POLICY % "default_timeout_microseconds: 5", BATCHING),
    "ModelQueuePolicy.allow_timeout_override": honoured(_POLICY % "allow_timeout_override: true", BATCHING),
    "ModelQueuePolicy.max_queue_size": honoured(_POLICY % "max_queue_size: 5", BATCHING),
    "ModelDynamicBatching.preferred_batch_size": (honoured("dynamic_batching { preferred_batch_size: [ 4 ] }", BATCHING), refused("dynamic_batching { preferred_batch_size: [ 9 ] }", BATCHING, "outside 1 to max_batch_size 8")),
    "ModelDynamicBatching.max_queue_delay_microseconds": honoured("dynamic_batching { max_queue_delay_microseconds: 4 }", BATCHING),
    "ModelDynamicBatching.preserve_ordering": honoured("dynamic_batching { preserve_ordering: true }", BATCHING),
    "ModelDynamicBatching.priority_levels": honoured(_LEVELS % "", BATCHING),
    "ModelDynamicBatching.default_priority_level": (
        honoured("dynamic_batching { priority_levels: 2 }", BATCHING, "default_priority_level 0 outside 1 to priority_levels 2"),
        ignored("dynamic_batching { default_priority_level: 1 }", BATCHING, "dynamic_batching.default_priority_level"),
    ),
    "ModelDynamicBatching.default_queue_policy": honoured(_POLICY % "max_queue_size: 5", BATCHING),
    "ModelDynamicBatching.priority_queue_policy": (
        honoured(_LEVELS % "priority_queue_policy { key: 3 value { } }", BATCHING, "priority_queue_policy key 3 outside 1 to"),
        ignored("dynamic_batching { priority_queue_policy { key: 3 value { } } }", BATCHING, "dynamic_batching.priority_queue_policy"),
    ),
    # Sequences
    "ModelSequenceBatching.direct": honoured("oldest { }", "direct { }", base="sequences"),
    "ModelSequenceBatching.StrategyDirect.max_queue_delay_microseconds": honoured("direct { max_queue_delay_microseconds: 5 }", "direct { }", base="sequences"),
    "ModelSequenceBatching.StrategyDirect.minimum_slot_utilization": honoured("direct { minimum_slot_utilization: 0.5 }", "direct { }", base="sequences"),
    "ModelSequenceBatching.oldest": honoured("oldest { }", "direct { }", base="sequences"),
    "ModelSequenceBatching.StrategyOldest.max_candidate_sequences": honoured("oldest { max_candidate_sequences: 9 }", "direct { }", base="sequences"),
    "ModelSequenceBatching.StrategyOldest.preferred_batch_size": honoured("oldest { preferred_batch_size: 9 }", "direct { }", "expected 1 to max_batch_size 4", "sequences"),
    "ModelSequenceBatching.StrategyOldest.max_queue_delay_microseconds": honoured("oldest { max_queue_delay_microseconds: 5 }", "direct { }", base="sequences"),
    "ModelSequenceBatching.StrategyOldest.preserve_ordering": honoured("oldest { preserve_ordering: true }", "direct { }", base="sequences"),
    "ModelSequenceBatching.max_sequence_idle_microseconds": honoured("max_sequence_idle_microseconds: 5", "direct { }", base="sequences"),
    "ModelSequenceBatching.control_input": honoured('name: "begin"', 'name: "start"', "'begin' is not in the model file", "sequences"),
    "ModelSequenceBatching.ControlInput.name": honoured('name: "begin"', 'name: "start"', "'begin' is not in the model file", "sequences"),
    "ModelSequenceBatching.ControlInput.control": honoured("control [ ]", "control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ]", "the model file needs inputs", "sequences"),
    "ModelSequenceBatching.Control.kind": honoured("CONTROL_SEQUENCE_START fp32", "CONTROL_SEQUENCE_END fp32", "the kind is given twice", "sequences"),
    "ModelSequenceBatching.Control.Kind.CONTROL_SEQUENCE_START": honoured("CONTROL_SEQUENCE_START fp32", "CONTROL_SEQUENCE_END fp32", "the kind is given twice", "sequences"),
    "ModelSequenceBatching.Control.Kind.CONTROL_SEQUENCE_READY": honoured("CONTROL_SEQUENCE_READY fp32", "CONTROL_SEQUENCE_END fp32", "the kind is given twice", "sequences"),
    "ModelSequenceBatching.Control.Kind.CONTROL_SEQUENCE_END": honoured("CONTROL_SEQUENCE_END bool", "CONTROL_SEQUENCE_READY bool", "the kind is given twice", "sequences"),
    "ModelSequenceBatching.Control.Kind.CONTROL_SEQUENCE_CORRID": honoured("CONTROL_SEQUENCE_CORRID fp32", "CONTROL_SEQUENCE_END fp32", "expected data_type TYPE_UINT64", "sequences"),
    "ModelSequenceBatching.Control.int32_false_true": honoured("int32_false_true: [ 0, 3 ]", "int32_false_true: [ 0, 1 ]", base="sequences"),
    "ModelSequenceBatching.Control.fp32_false_true": honoured("fp32_false_true: [ 0, 3 ]", "fp32_false_true: [ -1, 2 ]", base="sequences"),
    "ModelSequenceBatching.Control.bool_false_true": honoured("bool_false_true: [ true, false ]", "bool_false_true: [ false, true ]", base="sequences"),
    "ModelSequenceBatching.Control.data_type": honoured("data_type: TYPE_FP32", "data_type: TYPE_UINT64", "expected data_type TYPE_UINT64", "sequences"),
    "ModelSequenceBatching.state": honoured('input_name: "t"', 'input_name: "total"', "'t' is not in the model file", "sequences"),
    "ModelSequenceBatching.State.input_name": honoured('input_name: "t"', 'input_name: "total"', "'t' is not in the model file", "sequences"),
    "ModelSequenceBatching.State.output_name": honoured('output_name: "t"', _STATE, "'t' is not in the model file", "sequences"),
    "ModelSequenceBatching.State.data_type": honoured(f"{_STATE} data_type: TYPE_INT8", f"{_STATE} data_type: TYPE_FP32", "expected data_type TYPE_INT8", "sequences"),
    "ModelSequenceBatching.State.dims": honoured(f"{_STATE} data_type: TYPE_FP32 dims: [ 2 ]", f"{_STATE} data_type: TYPE_FP32 dims: [ 1 ]", "don't fit those of the state, [2]", "sequences"),
    "ModelSequenceBatching.State.initial_state": honoured("", INITIAL, base="sequences"),
    "ModelSequenceBatching.State.use_same_buffer_for_input_output": ignored(f"{_STATE} use_same_buffer_for_input_output: true", _STATE, "sequence_batching.state 'total' use_same_buffer_for_input_output", "sequences"),
    "ModelSequenceBatching.State.use_growable_memory": ignored(f"{_STATE} use_growable_memory: true", _STATE, "sequence_batching.state 'total' use_growable_memory", "sequences"),
    "ModelSequenceBatching.InitialState.name": honoured(INITIAL.replace('"i"', '"j"').replace("five", "no"), INITIAL, "initial_state 'j': data_file 'no' can't be read", "sequences"),
    "ModelSequenceBatching.InitialState.data_type": honoured(INITIAL.replace("FP32", "INT8"), INITIAL, "expected data_type TYPE_FP32", "sequences"),
    "ModelSequenceBatching.InitialState.dims": honoured(INITIAL.replace("[ 1 ]", "[ 2 ]"), INITIAL, "dims [2] don't fit those of the state", "sequences"),
    "ModelSequenceBatching.InitialState.zero_data": honoured("zero_data: true", 'data_file: "five"', base="sequences"),
    "ModelSequenceBatching.InitialState.data_file": honoured('data_file: "no"', 'data_file: "five"', "data_file 'no' can't be read", "sequences"),
    "ModelSequenceBatching.iterative_sequence": refused("iterative_sequence: true", "direct { }", "only a model in Python can ask for a request once more: remove it", "sequences"),
    # Ensembles
    "ModelEnsembling.step": honoured("", PIPELINE_CONFIG[PIPELINE_CONFIG.index("  step [") : PIPELINE_CONFIG.rindex("}")], "ensemble_scheduling has no step", "ensemble"),
    "ModelEnsembling.max_inflight_requests": ignored("ensemble_scheduling { max_inflight_requests: 3", "ensemble_scheduling {", "ensemble_scheduling.max_inflight_requests", "ensemble"),
    "ModelEnsembling.Step.model_name": (honoured('model_name: "none"', 'model_name: "again"', "unknown model: 'none'", "ensemble"), refused("", 'model_name: "again"', "step 2 names no model", "ensemble")),
    "ModelEnsembling.Step.model_version": honoured('"again" model_version: 1', '"again" model_version: -1', base="ensemble"),
    "ModelEnsembling.Step.input_map": honoured('input_map { key: "q" value: "in" }', 'input_map { key: "x" value: "in" }', "input_map names 'q'", "ensemble"),
    "ModelEnsembling.Step.output_map": (honoured('output_map { key: "q" value: "mid" }', 'output_map { key: "y" value: "mid" }', "output_map names 'q'", "ensemble"), refused("", 'output_map { key: "y" value: "out" }', "remove the step, or name an output", "ensemble")),
    "ModelEnsembling.Step.model_namespace": refused('model_name: "again" model_namespace: "a"', 'model_name: "again"', "model_namespace 'a': remove it", "ensemble"),
    # Warm-up
    "ModelWarmup.name": honoured(WARM % "batch_size: 9", says="model_warmup 'w': batch_size 9"),
    "ModelWarmup.batch_size": honoured(WARM % "batch_size: 3"),
    "ModelWarmup.inputs": honoured((WARM % "").replace("'x'", "'z'"), says="the model has no input 'z'"),
    "ModelWarmup.count": honoured(WARM % "count: 3"),
    "ModelWarmup.Input.data_type": honoured((WARM % "").replace("FP32", "INT8"), says="expected data_type TYPE_FP32"),
    "ModelWarmup.Input.dims": honoured((WARM % "").replace("4", "5"), says="got shape [1, 5]"),
    "ModelWarmup.Input.zero_data": honoured((WARM % "").replace("zero_data: true", ""), says="expected one of zero_data, random_data, input_data_file"),
    "ModelWarmup.Input.random_data": honoured((WARM % "").replace("zero_data", "random_data")),
    "ModelWarmup.Input.input_data_file": honoured((WARM % "").replace("zero_data: true", "input_data_file: 'no'"), says="input_data_file 'no' can't be read"),
}  # fmt: skip


def _fields(descriptor: Any, seen: set[str]) -> Iterator[str]:
    """Yields the fields and the values of the enums below a message."""
    if descriptor.full_name in seen:
        return
    seen.add(descriptor.full_name)
    for field in descriptor.fields:
        below = field.message_type
        if not descriptor.GetOptions().map_entry:
            yield field.full_name.removeprefix("inference.")
        if below is not None:
            yield from _fields(below, seen)
        if field.enum_type is not None:
            name = field.enum_type.full_name.removeprefix("inference.")
            yield from (f"{name}.{one.name}" for one in field.enum_type.values)


EVERYTHING = sorted(set(_fields(ModelConfig.DESCRIPTOR, set())))
# The types of tensors have a test of their own.
TYPES = [name for name in EVERYTHING if name.startswith("DataType.") and name != "DataType.TYPE_INVALID"]
CASES = [(name, case) for name, cases in TABLE.items() for case in (cases if isinstance(cases, tuple) else (cases,))]


def test_the_table_has_every_field_and_value():
    assert sorted({*TABLE, *TYPES}) == EVERYTHING


@pytest.fixture
def loaded(repository, settings, monkeypatch):
    """A function that loads a config. Returns what was made of it, or the reason why it can't be loaded."""
    made: list[Any] = []

    class Opened(Session):
        def __init__(self, path: Path, options: Any) -> None:
            made.append((path.name, options))
            super().__init__(path, options)
            self.nodes = lambda: {"CUDAExecutionProvider": {"Add"}}

    def seen(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            found = function(*given, **named)
            made.append(found)
            return found

        return call

    def warmed(*given: Any) -> Any:
        request = run(*given)
        made.append({name: array.tolist() for name, array in request.inputs.items()})
        return request

    run = proving._run
    monkeypatch.setattr("opgate.service.execution.session._providers", lambda options: [("CPUExecutionProvider", {})])
    monkeypatch.setattr("opgate.service.execution.session.Session", Opened)
    monkeypatch.setattr(loader, "demands", seen(loader.demands))
    monkeypatch.setattr(loader, "read_sequences", seen(loader.read_sequences))
    monkeypatch.setattr(proving, "_run", warmed)

    def load(base: str, config: str, gpus: int) -> str:
        def count() -> int:
            if not gpus:
                raise NoGpu("there is no GPU here: none is asked for")
            return gpus

        monkeypatch.setattr(loader, "place", lambda config: place(config, count))
        made.clear()
        BASES[base][1](repository, config)
        gateway = Gateway(settings)
        gateway.catalog.load_all()
        entry = gateway.catalog.entry("m")
        if entry.reasons:
            return "; ".join(entry.reasons.values())
        for model in entry.versions.values():
            made.append((model.spec, model.presentation, type(model.executor), [step.spec for step in model.steps]))
            made.append(
                [(group.name, group.kind, group.count, list(group.gpus)) for group in model.config.instance_group]
            )
            made.append(model.statistics.instances)
        return repr(made)

    return load


@pytest.mark.parametrize(("name", "case"), CASES, ids=[f"{name}-{case.verdict}" for name, case in CASES])
def test_a_field_has_its_verdict(loaded, caplog, name, case):
    caplog.set_level("INFO")
    base = BASES[case.base][0]
    assert case.instead_of in base
    config = base.replace(case.instead_of, case.text, 1) if case.instead_of else f"{base}\n{case.text}"
    before = loaded(case.base, base, case.gpus)
    assert not [record for record in caplog.records if "ignored, because" in record.getMessage()]
    after = loaded(case.base, config, case.gpus)
    said = [record.getMessage() for record in caplog.records if "ignored, because" in record.getMessage()]
    if case.verdict == IGNORED:
        assert (after, said) == (before, [f"config: ignored, because nothing here reads it: {case.says}"])
    elif case.says:
        assert case.says in after and not said
    else:
        assert after.startswith("[") and (after == before) == case.plain and not said, after


@pytest.mark.parametrize("name", TYPES)
def test_every_type_is_served(repository, load, name):
    stated = name.removeprefix("DataType.")
    short = "BYTES" if stated == "TYPE_STRING" else stated.removeprefix("TYPE_")
    tensors = " ".join(
        f'{kind} [ {{ name: "{one}" data_type: {stated} dims: [ 4 ] }} ]'
        for kind, one in (("input", "x"), ("output", "y"))
    )
    identity(repository, "m", short, config=f"max_batch_size: 8 {tensors}")
    assert load().find("m").model.spec.inputs["x"].datatype.name == short
