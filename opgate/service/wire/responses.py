"""Splits the result of a decoupled model into its responses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from opgate.service.core.errors import Kind, ServingError, internal
from opgate.service.core.request import Array
from opgate.service.core.spec import ModelSpec


def count_responses(spec: ModelSpec, result: Mapping[str, Array]) -> int:
    """Returns the number of responses to a request. Raises ServingError (INTERNAL) if the outputs of a decoupled model
    have different numbers of entries."""
    if not spec.decoupled:
        return 1
    axis = 1 if spec.batched else 0
    sizes = {name: array.shape[axis] for name, array in result.items()}
    if len(set(sizes.values())) > 1:
        raise internal(f"the outputs of the decoupled model '{spec.name}' have different numbers of entries: {sizes}")
    return int(next(iter(sizes.values())))


def responses(spec: ModelSpec, result: Mapping[str, Array]) -> Iterator[Mapping[str, Array]]:
    """Yields the outputs of each response to a request: all at once, or of a decoupled model entry by entry.

    A decoupled model sends a response for each entry of the first dim of its outputs, which does not count the batch
    dim. The shapes have 1 there. Raises ServingError as `count_responses` does.
    """
    if not spec.decoupled:
        yield result
        return
    for i in range(count_responses(spec, result)):
        yield {name: array[:, i : i + 1] if spec.batched else array[i : i + 1] for name, array in result.items()}


def refuse_decoupled(spec: ModelSpec, endpoint: str) -> None:
    """Raises ServingError (UNSUPPORTED) if a model may send several responses, which the endpoint can't."""
    if spec.decoupled:
        text = f"{endpoint} sends one response, and model '{spec.name}' is decoupled"
        raise ServingError(Kind.UNSUPPORTED, f"{text}: use ModelStreamInfer or generate_stream")
