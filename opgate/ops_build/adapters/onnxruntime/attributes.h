// The attributes of a node.
#pragma once

#include "api.h"
#include "signature/attributes.h"

namespace opgate::ort {

/// Reads the attributes of a node. Fails, and names the attribute, if one is missing or has another type.
Status read_attributes(const OrtKernelInfo* info, const Signature& signature, Attributes& attributes);

}  // namespace opgate::ort
