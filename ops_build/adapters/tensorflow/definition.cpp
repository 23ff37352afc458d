#include "definition.h"

#include <cctype>
#include <set>

namespace opgate::tf {
namespace {

/// "MyOps>": the domain as TensorFlow writes the namespace of an op.
std::string prefix_of(std::string_view domain) {
  std::string prefix;
  bool begins_word = true;
  for (const char c : domain) {
    const bool alphanumeric = std::isalnum(static_cast<unsigned char>(c));
    if (alphanumeric) prefix += begins_word ? static_cast<char>(std::toupper(static_cast<unsigned char>(c))) : c;
    begins_word = !alphanumeric;
  }
  if (prefix.empty() || !std::isupper(static_cast<unsigned char>(prefix[0]))) prefix.insert(0, "Ops");
  return prefix + ">";
}

/// The names of one op's attributes, inputs and outputs, which all must differ.
class Names {
 public:
  /// TensorFlow's Python functions have an argument `name`.
  Names() : taken_{"name"} {}

  /// A free name like this one, which begins with a letter.
  std::string attribute(std::string name) {
    api::DataType type{};
    if (!std::isalpha(static_cast<unsigned char>(name[0]))) name.insert(0, "x");
    while (api::DataTypeFromString(name, &type) || taken_.contains(name)) name += "_";
    taken_.insert(name);
    return name;
  }

  /// The names of tensors are in lower case.
  std::string tensor(std::string name) {
    for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return attribute(name);
  }

 private:
  std::set<std::string> taken_;
};

void set_value(const Attribute& attribute, const AttributeValue& value, api::AttrValue& out) {
  if (attribute.list) out.mutable_list();  // of an empty list too
  std::visit(
      [&]<typename Held>(const Held& held) {
        if constexpr (std::is_same_v<Held, std::int64_t>) out.set_i(held);
        if constexpr (std::is_same_v<Held, double>) out.set_f(static_cast<float>(held));
        if constexpr (std::is_same_v<Held, bool>) out.set_b(held);
        if constexpr (std::is_same_v<Held, std::string>) out.set_s(held);
        if constexpr (std::is_same_v<Held, std::vector<std::int64_t>>)
          for (const std::int64_t element : held) out.mutable_list()->add_i(element);
        if constexpr (std::is_same_v<Held, std::vector<double>>)
          for (const double element : held) out.mutable_list()->add_f(static_cast<float>(element));
        if constexpr (std::is_same_v<Held, std::vector<bool>>)
          for (const bool element : held) out.mutable_list()->add_b(element);
        if constexpr (std::is_same_v<Held, std::vector<std::string>>)
          for (const std::string& element : held) out.mutable_list()->add_s(element);
      },
      value);
}

/// TensorFlow doesn't learn the words of a choice: the core refuses another word, and its error names the op.
void define_attribute(const Attribute& attribute, const std::string& name, api::OpDef& def) {
  constexpr std::array<const char*, 5> kTypes = {"int", "float", "bool", "string", "string"};
  const std::string element = kTypes[static_cast<std::size_t>(attribute.kind)];
  api::OpDef::AttrDef& defined = *def.add_attr();
  defined.set_name(name);
  defined.set_type(attribute.list ? "list(" + element + ")" : element);
  if (!attribute.required) set_value(attribute, attribute.default_value, *defined.mutable_default_value());
}

void define_type(const TypeVariable& variable, const std::string& name, api::OpDef& def) {
  api::OpDef::AttrDef& defined = *def.add_attr();
  defined.set_name(name);
  defined.set_type("type");
  for (const DType dtype : variable.dtypes)
    defined.mutable_allowed_values()->mutable_list()->add_type(to_tensorflow(dtype));
}

std::string define_length(const std::string& name, std::int64_t least, Names& names, api::OpDef& def) {
  api::OpDef::AttrDef& defined = *def.add_attr();
  defined.set_name(names.attribute("N_" + name));
  defined.set_type("int");
  defined.set_has_minimum(true);
  defined.set_minimum(least);
  return defined.name();
}

void define_tensor(const std::string& name, const ElementType& type, const std::vector<std::string>& variables,
                   const std::string& length, api::OpDef::ArgDef& defined) {
  defined.set_name(name);
  if (type.variable < 0)
    defined.set_type(to_tensorflow(type.dtype));
  else
    defined.set_type_attr(variables[static_cast<std::size_t>(type.variable)]);
  if (!length.empty()) defined.set_number_attr(length);
}

Definition define(const Op& op) {
  const Signature& signature = op.signature;
  Definition definition;
  definition.op = &op;
  api::OpDef& def = definition.def;
  def.set_name(prefix_of(Table::domain()) + signature.name);
  def.set_summary(op.doc);
  def.set_description(signature.text);
  Names names;
  std::vector<std::string> inputs, outputs, variables;
  for (const Input& input : signature.inputs) inputs.push_back(names.tensor(input.name));
  for (const Output& output : signature.outputs) outputs.push_back(names.tensor(output.name));
  for (const Attribute& attribute : signature.attributes) {
    definition.attributes.push_back(names.attribute(attribute.name));
    define_attribute(attribute, definition.attributes.back(), def);
  }
  for (const TypeVariable& variable : signature.type_variables) {
    variables.push_back(names.attribute(variable.name));
    define_type(variable, variables.back(), def);
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Input& input = signature.inputs[i];
    const bool list = input.optional || input.variadic;
    definition.input_lengths.push_back(list ? define_length(inputs[i], input.variadic ? 1 : 0, names, def) : "");
    define_tensor(inputs[i], input.type, variables, definition.input_lengths[i], *def.add_input_arg());
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const Output& output = signature.outputs[i];
    definition.output_lengths.push_back(output.optional ? define_length(outputs[i], 0, names, def) : "");
    define_tensor(outputs[i], output.type, variables, definition.output_lengths[i], *def.add_output_arg());
  }
  return definition;
}

/// The value of an attribute as the node has it. The registry has checked its type.
AttributeValue value_of(const Attribute& attribute, const api::AttrValue& value) {
  const auto& list = value.list();
  switch (attribute.kind) {
    case Attribute::Kind::integer:
      if (attribute.list) return std::vector<std::int64_t>(list.i().begin(), list.i().end());
      return static_cast<std::int64_t>(value.i());
    case Attribute::Kind::number:
      if (attribute.list) return std::vector<double>(list.f().begin(), list.f().end());
      return static_cast<double>(value.f());
    case Attribute::Kind::boolean:
      if (attribute.list) return std::vector<bool>(list.b().begin(), list.b().end());
      return value.b();
    case Attribute::Kind::text:
    case Attribute::Kind::choice: break;
  }
  if (attribute.list) return std::vector<std::string>(list.s().begin(), list.s().end());
  return std::string(value.s());
}

}  // namespace

const std::deque<Definition>& definitions() {
  static const auto& all = *[] {
    auto* defined = new std::deque<Definition>;  // never freed, because TensorFlow may use ops until the process ends
    for (const Op& op : Table::instance().ops()) {
      if (op.has_kernel(Device::cpu)) defined->push_back(define(op));
    }
    return defined;
  }();
  return all;
}

const Definition* definition_of(std::string_view type) {
  for (const Definition& definition : definitions()) {
    if (definition.def.name() == type) return &definition;
  }
  return nullptr;
}

Status read_attributes(const Definition& definition, const FindAttribute& find, Attributes& attributes) {
  const Signature& signature = definition.op->signature;
  std::vector<std::optional<AttributeValue>> values(signature.attributes.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (const api::AttrValue* value = find(definition.attributes[i]))
      values[i] = value_of(signature.attributes[i], *value);
  }
  return Attributes::make(signature, std::move(values), attributes);
}

Status read_lengths(const std::vector<std::string>& names, const FindAttribute& find,
                    std::vector<std::size_t>& lengths) {
  lengths.assign(names.size(), 1);
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i].empty()) continue;
    const api::AttrValue* value = find(names[i]);
    if (!value || value->i() < 0) return Status::invalid("attribute '" + names[i] + "': expected a length");
    lengths[i] = static_cast<std::size_t>(value->i());
  }
  return {};
}

}  // namespace opgate::tf
