// A node of a graph before it runs, as prepare() of a kernel sees it.
#pragma once

#include "inputs.h"
#include "signature/attributes.h"

namespace opgate {

/// What the engine knows to be the same in every run of a node.
struct NodeFacts {
  InlineVector<std::optional<std::int64_t>, 12> sizes;  ///< by slot; nullopt if the size may differ between runs
  InlineVector<std::optional<DType>, 4> types;          ///< by type variable
  InlineVector<bool, 8> present;                        ///< by input of the signature
  InlineVector<const Tensor*, 8> constants;             ///< by input of the signature; nullptr if it is no constant
  int ordinal = 0;                                      ///< the number of the device
};

class Node {
 public:
  Node(const Signature& signature, const Attributes& attributes, NodeFacts facts)
      : signature_(signature), attributes_(attributes), facts_(std::move(facts)), told_(signature.slots.size()) {}

  const Attributes& attributes() const { return attributes_; }

  /// A named size of the signature. nullopt if it may differ between runs.
  std::optional<std::int64_t> size(std::string_view name) const;

  /// Whether the node has the optional input.
  bool has(std::string_view input) const;

  /// An input whose elements are the same in every run, on the kernel's device. nullptr for any other input. The tensor
  /// is valid until prepare() returns.
  const Tensor* constant(std::string_view input) const;

  /// Whether a kernel that was prepared for this node can run a call with these attributes and facts: whether every
  /// size that prepare() has read is the same.
  bool serves(const Attributes& attributes, const NodeFacts& call) const;

 private:
  std::size_t input_index(std::string_view name) const;

  const Signature& signature_;
  Attributes attributes_;
  NodeFacts facts_;
  mutable InlineVector<bool, 12> told_;  // by slot: size() has returned it
};

/// The facts of one call: every size is known, no input is constant. `ordinal` is the number of the device.
NodeFacts facts_of_call(const CallWalk& walk, const InputPointers& inputs, int ordinal);

}  // namespace opgate
