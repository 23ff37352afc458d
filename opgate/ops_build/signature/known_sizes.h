// The named sizes of a signature, as far as they are known: some of them before the run, all of them in a call.
#pragma once

#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

#include "signature.h"

namespace opgate {

/// The index of a named size in Signature::slots. Throws std::logic_error if the signature doesn't have it.
inline std::size_t slot_named(const Signature& signature, std::string_view name) {
  for (std::size_t i = 0; i < signature.slots.size(); ++i) {
    if (signature.slots[i].name == name) return i;
  }
  throw std::logic_error("the kernel asks for size '" + std::string(name) + "', which the signature does not have");
}

class KnownSizes {
 public:
  /// `sizes` are in the order of Signature::slots. If there are none, no size is known.
  explicit KnownSizes(const Signature& signature, std::span<const std::optional<std::int64_t>> sizes = {})
      : signature_(signature), sizes_(sizes) {}

  /// nullopt if the size isn't known, or may differ between runs.
  std::optional<std::int64_t> operator[](std::string_view name) const {
    const std::size_t slot = slot_named(signature_, name);
    return slot < sizes_.size() ? sizes_[slot] : std::nullopt;
  }

 private:
  const Signature& signature_;
  std::span<const std::optional<std::int64_t>> sizes_;
};

}  // namespace opgate
