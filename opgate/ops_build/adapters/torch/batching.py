"""What an op does under torch.vmap.

An elementwise op takes the batch as one more dim. For any other op torch calls the op once for each element of the
batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from opgate.ops_build.op_table import Op


def register_batching(op: Op, overload: Any, library: torch.library.Library) -> None:
    """Registers how torch.vmap batches an op, if the op is elementwise."""
    if not op.elementwise:
        return

    def batched(info: Any, in_dims: Sequence[Any], *inputs: Any, **attributes: Any) -> Any:
        def to_front(tensor: Any, dim: int | None) -> Any:
            if tensor is None:
                return None
            return tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)

        fronted = [
            [*map(to_front, value, dim)] if isinstance(value, (list, tuple)) else to_front(value, dim)
            for value, dim in zip(inputs, in_dims, strict=True)
        ]
        outputs = overload(*fronted, **attributes)
        return outputs, (0,) * len(outputs) if isinstance(outputs, tuple) else 0

    torch.library.register_vmap(overload, batched, lib=library)
