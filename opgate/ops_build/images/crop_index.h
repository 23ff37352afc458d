// Which picture of a batch u8[n,...] each of r crops is cut out of: index?: i32[r].
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "op_call/kernel.h"

namespace opgate::images {

/// Checks that an index is there where there is neither one picture nor one for each crop. `what` the crops are made
/// from: "matrices".
inline Status check_index(const Inputs& in, const std::string& what) {
  const std::int64_t n = in.size("n"), r = in.size("r");
  if (in.has("index") || n == 1 || n == r) return {};
  return Status::invalid("input 'index': expected the pictures of the " + std::to_string(r) + " " + what +
                         ", got none; it may be left out where there is one picture, or one for each of the " + what +
                         ", not " + std::to_string(n));
}

/// For the CPU.
class CropIndex {
 public:
  static Status make(const Inputs& in, const std::string& what, CropIndex& index) {
    OPGATE_RETURN_IF_ERROR(check_index(in, what));
    index.pictures_ = in.size("n");
    if (in.has("index")) index.numbers_ = in["index"].span<std::int32_t>();
    for (std::size_t i = 0; i < index.numbers_.size(); ++i) {
      if (const std::int32_t number = index.numbers_[i]; number < 0 || number >= index.pictures_) {
        return Status::invalid("input 'index': element " + std::to_string(i) + " is " + std::to_string(number) +
                               ", expected the number of a picture, 0.." + std::to_string(index.pictures_ - 1));
      }
    }
    return {};
  }

  std::int64_t picture_of(std::int64_t crop) const {
    if (numbers_.empty()) return pictures_ == 1 ? 0 : crop;
    return numbers_[static_cast<std::size_t>(crop)];
  }

 private:
  std::int64_t pictures_ = 0;
  std::span<const std::int32_t> numbers_;
};

}  // namespace opgate::images
