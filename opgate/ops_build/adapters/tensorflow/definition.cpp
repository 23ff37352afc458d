#include "definition.h"

#include "adapters/tensorflow_names.h"

namespace opgate::tf {
namespace {

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

void define_length(const std::string& name, bool variadic, api::OpDef& def) {
  api::OpDef::AttrDef& defined = *def.add_attr();
  defined.set_name(name);
  defined.set_type("int");
  defined.set_has_minimum(true);
  defined.set_minimum(variadic ? 1 : 0);
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
  Definition definition{&op, {}, NodeNames(signature)};
  const NodeNames& names = definition.names;
  api::OpDef& def = definition.def;
  def.set_name(type_name(signature));
  def.set_summary(op.doc);
  def.set_description(signature.text);
  for (std::size_t i = 0; i < signature.attributes.size(); ++i)
    define_attribute(signature.attributes[i], names.attributes[i], def);
  for (std::size_t i = 0; i < signature.type_variables.size(); ++i)
    define_type(signature.type_variables[i], names.types[i], def);
  for (std::size_t i = 0; i < signature.inputs.size(); ++i) {
    const Input& input = signature.inputs[i];
    if (!names.input_lengths[i].empty()) define_length(names.input_lengths[i], input.variadic, def);
    define_tensor(names.inputs[i], input.type, names.types, names.input_lengths[i], *def.add_input_arg());
  }
  for (std::size_t i = 0; i < signature.outputs.size(); ++i) {
    const Output& output = signature.outputs[i];
    if (!names.output_lengths[i].empty()) define_length(names.output_lengths[i], false, def);
    define_tensor(names.outputs[i], output.type, names.types, names.output_lengths[i], *def.add_output_arg());
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
    if (const api::AttrValue* value = find(definition.names.attributes[i]))
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
