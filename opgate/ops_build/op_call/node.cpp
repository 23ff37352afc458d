#include "node.h"

#include <algorithm>
#include <stdexcept>

namespace opgate {

std::optional<std::int64_t> Node::size(std::string_view name) const {
  const std::size_t index = slot_named(signature_, name);
  told_[index] = told_[index] || facts_.sizes[index].has_value();
  return facts_.sizes[index];
}

bool Node::has(std::string_view input) const { return facts_.present[input_index(input)]; }

const Tensor* Node::constant(std::string_view input) const {
  const std::size_t index = input_index(input);
  return index < facts_.constants.size() ? facts_.constants[index] : nullptr;
}

bool Node::serves(const Attributes& attributes, const NodeFacts& call) const {
  for (std::size_t s = 0; s < told_.size(); ++s) {
    if (told_[s] && facts_.sizes[s] != call.sizes[s]) return false;
  }
  return facts_.ordinal == call.ordinal && std::ranges::equal(facts_.types, call.types) &&
         std::ranges::equal(facts_.present, call.present) && attributes_ == attributes;
}

std::size_t Node::input_index(std::string_view name) const {
  const auto input = std::ranges::find(signature_.inputs, name, &Input::name);
  if (input == signature_.inputs.end())
    throw std::logic_error("the kernel asks for input '" + std::string(name) + "', which the signature does not have");
  return static_cast<std::size_t>(input - signature_.inputs.begin());
}

NodeFacts facts_of_call(const CallWalk& walk, const InputPointers& inputs, int ordinal) {
  NodeFacts facts;
  facts.ordinal = ordinal;
  facts.sizes = walk.binding().sizes;
  facts.types = walk.binding().types;
  facts.present.resize(walk.signature().inputs.size());
  for (std::size_t i = 0; i < facts.present.size(); ++i) facts.present[i] = i < inputs.size() && inputs[i];
  return facts;
}

}  // namespace opgate
