// The op table as JSON, for everything that is not C++. docs/signatures.md describes the format.
#pragma once

#include "table.h"

namespace opgate {

std::string table_json(const Table& table);

/// One signature in the same form, or {"error", "column"}.
std::string signature_json(std::string_view text);

}  // namespace opgate
