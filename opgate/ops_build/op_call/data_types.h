// The dtypes as DLPack names them.
#pragma once

#include "c_kernel.h"
#include "signature/dtype.h"

namespace opgate {

/// By DType.
inline constexpr std::array<OpgateDataType, kDTypeCount> kDataTypes = {{{2, 16, 1},
                                                                        {4, 16, 1},
                                                                        {2, 32, 1},
                                                                        {2, 64, 1},
                                                                        {0, 8, 1},
                                                                        {1, 8, 1},
                                                                        {0, 32, 1},
                                                                        {0, 64, 1},
                                                                        {6, 8, 1},
                                                                        {255, 8, 1}}};

}  // namespace opgate
