// Tests attributes of every type, with defaults that need quotes or escapes in a torch schema.
#include <sstream>

#include "kernel_toolkit/op.h"

OPGATE_OP(Describe,
          "Describe(x: f32[n]; required: int, count: int=-3, numbers: int[]=[1,-2], ratio: float=0.1, "
          "ratios: float[2]=[0.5,-1e-7], flag: bool=true, flags: bool[]=[true,false], mark: str=\"a 'b' \\\\ c\", "
          "words: str[]=[\"x\",\"y z\"], pick: {one|two}=two) -> (text: u8[size<=4096])",
          "The attributes in words.")

namespace opgate::ops {
struct DescribeCpu {
  Status operator()(Context&, const Inputs&, const Attributes& attributes, Outputs& out) const {
    std::ostringstream words;
    words << attributes.integer("required") << '|' << attributes.integer("count") << '|';
    for (const std::int64_t number : attributes.integers("numbers")) words << number << ' ';
    words << '|' << attributes.number("ratio") << '|';
    for (const double ratio : attributes.numbers("ratios")) words << ratio << ' ';
    words << '|' << attributes.boolean("flag") << '|';
    for (const bool flag : attributes.booleans("flags")) words << flag << ' ';
    words << '|' << attributes.text("mark") << '|';
    for (const std::string& word : attributes.texts("words")) words << word << ',';
    words << '|' << attributes.text("pick");
    const std::string text = words.str();
    OPGATE_RETURN_IF_ERROR(out.bind("size", static_cast<std::int64_t>(text.size())));
    std::ranges::copy(text, out["text"].data<std::uint8_t>());
    return {};
  }
};
}  // namespace opgate::ops

OPGATE_CPU_KERNEL(Describe, opgate::ops::DescribeCpu)
