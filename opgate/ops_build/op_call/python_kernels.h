// Ops whose kernels are functions in Python. Their table stands behind the end of the library, in its file.
#pragma once

#include <string>

namespace opgate {

/// The domain that the table in the file states, "" if it states none.
const std::string& python_domain();

}  // namespace opgate
