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
    if config.backend == "python":
        raise LoadError(f"'{config.name}' is a model in Python, which batches as it likes: only ONNX models are tuned")
    if any(group.kind == ModelInstanceGroup.KIND_GPU or group.gpus for group in config.instance_group):
        raise LoadError(f"'{config.name}' runs on GPUs: only instances on the CPU are tuned")


def unbatched(config: Any) -> Any:
    """Returns a copy of a config without dynamic batching and what needs it. Requests of sequences share no batch."""
    new = copied(config)
    new.ClearField("dynamic_batching")
    new.parameters.pop("max_latency_ms", None)
    if new.HasField("sequence_batching"):
        new.max_batch_size = min(1, new.max_batch_size)  # a request of a sequence has one row
        _set_delay(new, 0)
    return new


def _set_delay(config: Any, microseconds: int) -> None:
    """Says how long a batch waits for more requests. With 0 the measured costs decide on batches.

    Sequences that have a row of an instance for themselves (`direct`) keep what is said for them.
    """
    if config.HasField("sequence_batching"):
        if not config.sequence_batching.HasField("oldest"):
            return
        rules = config.sequence_batching.oldest
    else:
        rules = config.dynamic_batching
        rules.SetInParent()
    del rules.preferred_batch_size[:]
    rules.max_queue_delay_microseconds = microseconds


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
    if batching is not None:
        _set_delay(new, batching.max_delay_ns // 1000)
    return new
