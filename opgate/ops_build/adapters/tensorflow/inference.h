// The shapes of the outputs before the run, from the signature.
#pragma once

#include "definition.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace opgate::tf {

/// Sets the shapes of the outputs. Fails if the inputs or the attributes contradict the signature, or if no run can use
/// them.
Status infer_shapes(const Definition& definition, api::shape_inference::InferenceContext& context);

}  // namespace opgate::tf
