// The options of a custom node in a LiteRT model: a map in FlatBuffers' FlexBuffer format. A model may be damaged or
// made by an enemy, so every access is checked.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "signature/status.h"

namespace opgate::litert {

struct EmptyList {};

/// A value in the map. The elements of a list are of one kind; integers beside floats become floats. monostate stands
/// for what no attribute can have.
using OptionValue =
    std::variant<std::monostate, EmptyList, std::int64_t, double, bool, std::string, std::vector<std::int64_t>,
                 std::vector<double>, std::vector<bool>, std::vector<std::string>>;

using Options = std::map<std::string, OptionValue>;

/// Reads the map. No bytes are an empty map.
Status read_options(std::span<const std::uint8_t> bytes, Options& options);

}  // namespace opgate::litert
