"""What the derivatives of an op are for PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from opgate.ops_build.op_table import Op


class Gradient:
    """The derivatives of one op. The tensors of a variadic input are a list everywhere here."""

    def __init__(self, op: Op, name: str) -> None:
        self.op = op
        self.name = name

    def save(self, ctx: Any, inputs: Sequence[Any], attributes: Mapping[str, Any], outputs: Any) -> None:
        """Keeps in `ctx` what the derivatives need. Called after the forward run.

        `inputs` has None for an absent input. `attributes` lacks those that have their default.
        """
        listed = outputs if isinstance(outputs, tuple) else (outputs,)
        if integers := [tensor for tensor in listed if not tensor.is_floating_point()]:
            ctx.mark_non_differentiable(*integers)

    def backward(self, ctx: Any, gradients: Sequence[torch.Tensor], needed: Sequence[Any]) -> list[Any]:
        """Returns the gradients of the inputs. `needed` tells for each input whether its gradient is needed."""
        raise NotImplementedError

    def jvp(self, ctx: Any, tangents: Sequence[Any]) -> Any:
        """Returns the tangents of the outputs. A tangent is None where an input has none."""
        raise NotImplementedError
