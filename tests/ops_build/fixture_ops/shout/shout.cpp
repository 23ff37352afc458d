// Tests strings as input and output, and attributes of the types str, str[], bool and choice.
#include <cctype>

#include "kernel_toolkit/op.h"

OPGATE_OP(Shout,
          "Shout(texts: str[...]; mark: str=\"!\", words: str[]=[], twice: bool=false, letters: {upper|lower}=upper) "
          "-> (shouted: str[...])",
          "Each text in capitals, then the words, then the mark.")

namespace opgate::ops {
struct ShoutCpu {
  Status operator()(Context&, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const bool upper = attributes.text("letters") == "upper";
    for (std::int64_t i = 0; i < in["texts"].size(); ++i) {
      std::string text(in["texts"].data<std::string_view>()[i]);
      for (char& c : text) c = static_cast<char>(upper ? std::toupper(c) : std::tolower(c));
      for (const std::string& word : attributes.texts("words")) text += " " + word;
      text += attributes.text("mark");
      if (attributes.boolean("twice")) text += attributes.text("mark");
      out["shouted"].data<std::string>()[i] = text;
    }
    return {};
  }
};
}  // namespace opgate::ops

OPGATE_CPU_KERNEL(Shout, opgate::ops::ShoutCpu)
