// A node's attributes.
#pragma once

#include "api.h"
#include "core/attributes.h"

namespace opgate::ort {

/// Reads the attributes of a node. Fails, naming the attribute, on one that is missing or of another type.
Status read_attributes(const OrtKernelInfo* info, const Signature& signature, Attributes& attributes);

}  // namespace opgate::ort
