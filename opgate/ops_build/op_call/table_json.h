// The op table as JSON, for code that is not C++. docs/signatures.md describes the format.
#pragma once

#include "table.h"

namespace opgate {

std::string table_json(const Table& table);

/// One parsed signature in the same format, or {"error", "column"}.
std::string signature_json(std::string_view text);

/// A text in JSON, with its quotes.
std::string json_text(std::string_view text);

}  // namespace opgate
