"""Puts a setup into a model's config."""

from __future__ import annotations

from typing import Any

from opgate.load.target_model import LoadError
from opgate.service.core.triton_messages import ModelInstanceGroup
from opgate.service.repository.loader import copied
from opgate.tune.simulation import Setup


def refuse_unfit(config: Any) -> None:
    """Raises LoadError for a model whose runs can't be compared here."""
    if config.platform == "ensemble" or config.HasField("ensemble_scheduling"):
        steps = ", ".join(dict.fromkeys(step.model_name for step in config.ensemble_scheduling.step))
        raise LoadError(f"'{config.name}' is an ensemble: tune the models of its steps, {steps}")
    if config.HasField("sequence_batching"):
        raise LoadError(
            f"'{config.name}' serves sequences, whose requests have an order: only single requests are tuned. "
            f"'opgate load {config.name} --find-rate --slo p99=20ms' finds the rate that a running gateway holds"
        )
    if config.backend == "python":
        raise LoadError(f"'{config.name}' is a model in Python, which batches as it likes: only ONNX models are tuned")
    if any(group.kind == ModelInstanceGroup.KIND_GPU or group.gpus for group in config.instance_group):
        raise LoadError(f"'{config.name}' runs on GPUs: only instances on the CPU are tuned")


def unbatched(config: Any) -> Any:
    """Returns a copy of a config without dynamic batching and what needs it."""
    new = copied(config)
    new.ClearField("dynamic_batching")
    new.parameters.pop("max_latency_ms", None)
    return new


def changed(config: Any, setup: Setup) -> Any:
    """Returns a copy of a config with the instances, threads and batching of a setup. Everything else stays, such as
    the rate limiter of the first instance group."""
    batching = setup.batching
    new = unbatched(config) if batching is None else copied(config)
    del new.instance_group[:]
    group = new.instance_group.add(count=setup.instances, kind=ModelInstanceGroup.KIND_CPU)
    if config.instance_group and config.instance_group[0].HasField("rate_limiter"):
        group.rate_limiter.CopyFrom(config.instance_group[0].rate_limiter)
    new.parameters["intra_op_thread_count"].string_value = str(setup.threads)
    if batching is None:
        return new
    new.dynamic_batching.SetInParent()
    del new.dynamic_batching.preferred_batch_size[:]
    new.dynamic_batching.max_queue_delay_microseconds = batching.max_delay_ns // 1000
    return new
