"""The gradient of RotaryEmbedding: the rotation by the opposite angles."""

from typing import Any


def gradient(ops: Any, grad_y: Any, cos_cache: Any, sin_cache: Any, position_ids: Any, **attributes: Any) -> Any:
    return ops.rotary_embedding(grad_y, cos_cache, -sin_cache, position_ids, **attributes), None, None, None
