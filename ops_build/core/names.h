// What each name in a signature stands for.
#pragma once

#include "signature.h"

namespace opgate {

/// Fills in what binds each named size (Slot::kind and Slot::index). Throws SignatureError where nothing binds a size or
/// two things do, where a size or `...` would be unknown without an optional input, and where no required input has a
/// type variable.
void resolve_names(Signature& signature);

}  // namespace opgate
