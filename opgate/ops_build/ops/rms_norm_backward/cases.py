from opgate.ops_build.ops.layer_norm_backward.cases import cases, large

__all__ = ["cases", "large"]
