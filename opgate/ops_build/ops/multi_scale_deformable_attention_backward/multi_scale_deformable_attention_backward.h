#pragma once

#include "ops/multi_scale_deformable_attention/samples.h"

OPGATE_OP(MultiScaleDeformableAttentionBackward,
          "<T: f16|bf16|f32|f64, I: i32|i64> MultiScaleDeformableAttentionBackward("
          "grad_output: T[b,queries,heads*dims], value: T[b,keys,heads,dims], spatial_shapes: I[levels,2], "
          "level_start_index: I[levels], sampling_locations: T[b,queries,heads,levels,points,2], "
          "attention_weights: T[b,queries,heads,levels,points]) -> (grad_value: T[b,keys,heads,dims], "
          "grad_sampling_locations: T[b,queries,heads,levels,points,2], "
          "grad_attention_weights: T[b,queries,heads,levels,points])",
          "The gradients of MultiScaleDeformableAttention with respect to values, locations and weights.")
