// Parses any text as the signature of an op, and writes what it has found.
#include <string_view>

#include "fuzz.h"
#include "signature/lexer.h"
#include "signature/parser.h"
#include "signature/signature_text.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace opgate;
  const std::vector<char> exact(data, data + size);
  const std::string_view text(exact.data(), exact.size());
  try {
    const Signature signature = parse_signature(text);
    fuzz::check(!signature.name.empty() && !signature.outputs.empty(), "a signature has a name and outputs");
    for (const Input& input : signature.inputs) fuzz::check(!text_of(signature, input).empty(), "an input has a text");
    for (const Attribute& attribute : signature.attributes) {
      fuzz::check(!type_text(attribute).empty(), "an attribute has a type");
      if (!attribute.required) static_cast<void>(text_of(attribute.default_value));
    }
    for (const Output& output : signature.outputs)
      for (const OutputDim& dim : output.dims)
        if (dim.kind != OutputDim::Kind::ellipsis)
          fuzz::check(!text_of(signature, dim.expr).empty(), "a size has a text");
    ++fuzz::counts()["parsed"];
  } catch (const SignatureError& error) {
    fuzz::check(error.column >= 1 && static_cast<size_t>(error.column) <= size + 1, "a mistake lies in the signature");
    ++fuzz::counts()["refused"];
  }
  return 0;
}
