#include "adapters/tensorflow_names.h"

#include <array>
#include <cctype>
#include <set>
#include <string_view>

namespace opgate::tf {
namespace {

/// TensorFlow's types, whose names no attribute may have, and the argument that all its Python functions have.
constexpr std::array<std::string_view, 40> kTaken = {"name",
                                                     "float",
                                                     "double",
                                                     "int8",
                                                     "int16",
                                                     "int32",
                                                     "int64",
                                                     "uint8",
                                                     "uint16",
                                                     "uint32",
                                                     "uint64",
                                                     "string",
                                                     "complex64",
                                                     "complex128",
                                                     "half",
                                                     "bfloat16",
                                                     "bool",
                                                     "qint8",
                                                     "quint8",
                                                     "qint16",
                                                     "quint16",
                                                     "qint32",
                                                     "resource",
                                                     "variant",
                                                     "int4",
                                                     "uint4",
                                                     "int2",
                                                     "uint2",
                                                     "float32",
                                                     "float64",
                                                     "float8_e5m2",
                                                     "float8_e4m3fn",
                                                     "float8_e4m3",
                                                     "float4_e2m1fn",
                                                     "float16",
                                                     "float8_e4m3fnuz",
                                                     "float8_e5m2fnuz",
                                                     "float8_e4m3b11fnuz",
                                                     "int1",
                                                     "uint1"};

class FreeNames {
 public:
  /// A free name like this one, which begins with a letter.
  std::string attribute(std::string name) {
    if (!std::isalpha(static_cast<unsigned char>(name[0]))) name.insert(0, "x");
    while (taken_.contains(name)) name += "_";
    taken_.insert(name);
    return name;
  }

  std::string tensor(std::string name) {
    for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return attribute(std::move(name));
  }

 private:
  std::set<std::string> taken_{kTaken.begin(), kTaken.end()};
};

}  // namespace

std::string type_name(const Signature& signature) {
  std::string prefix;
  bool begins_word = true;
  for (const char c : std::string_view(Table::domain())) {
    const bool alphanumeric = std::isalnum(static_cast<unsigned char>(c));
    if (alphanumeric) prefix += begins_word ? static_cast<char>(std::toupper(static_cast<unsigned char>(c))) : c;
    begins_word = !alphanumeric;
  }
  if (prefix.empty() || !std::isupper(static_cast<unsigned char>(prefix[0]))) prefix.insert(0, "Ops");
  return prefix + ">" + signature.name;
}

NodeNames::NodeNames(const Signature& signature) {
  FreeNames free;
  for (const Input& input : signature.inputs) inputs.push_back(free.tensor(input.name));
  for (const Output& output : signature.outputs) outputs.push_back(free.tensor(output.name));
  for (const Attribute& attribute : signature.attributes) attributes.push_back(free.attribute(attribute.name));
  for (const TypeVariable& variable : signature.type_variables) types.push_back(free.attribute(variable.name));
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const bool list = signature.inputs[i].optional || signature.inputs[i].variadic;
    input_lengths.push_back(list ? free.attribute("N_" + inputs[i]) : "");
  }
  for (std::size_t i = 0; i < outputs.size(); ++i)
    output_lengths.push_back(signature.outputs[i].optional ? free.attribute("N_" + outputs[i]) : "");
}

}  // namespace opgate::tf
