#pragma once

#include "samples.h"

OPGATE_OP(MultiScaleDeformableAttention,
          "<T: f16|bf16|f32|f64, I: i32|i64> MultiScaleDeformableAttention(value: T[b,keys,heads,dims], "
          "spatial_shapes: I[levels,2], level_start_index: I[levels], "
          "sampling_locations: T[b,queries,heads,levels,points,2], "
          "attention_weights: T[b,queries,heads,levels,points]) -> (output: T[b,queries,heads*dims])",
          "For each query the weighted sum of values at few places of feature maps of several sizes.")
