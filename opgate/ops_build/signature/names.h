// The meaning of each name in a signature.
#pragma once

#include "signature.h"

namespace opgate {

/// Sets Slot::kind and Slot::index of each named size: what gives the size its value. Throws SignatureError if nothing
/// does or if several things do, if a size or `...` is unknown without an optional input, and if no required input has
/// a type variable.
void resolve_names(Signature& signature);

}  // namespace opgate
