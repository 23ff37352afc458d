// A node of a graph before it runs: what a kernel that prepares is made from.
#pragma once

#include "attributes.h"
#include "inputs.h"

namespace opgate {

/// What is the same in every run of a node, as far as the engine knows it.
struct NodeFacts {
  InlineVector<std::optional<std::int64_t>, 12> sizes;  ///< by slot; nullopt: it may differ from run to run
  InlineVector<std::optional<DType>, 4> types;          ///< by type variable
  InlineVector<bool, 8> present;                        ///< by input of the signature
  InlineVector<const Tensor*, 8> constants;             ///< by input of the signature; nullptr: it is no constant
  int ordinal = 0;                                      ///< of the device, among several of its kind
};

class Node {
 public:
  Node(const Signature& signature, const Attributes& attributes, NodeFacts facts)
      : signature_(signature), attributes_(attributes), facts_(std::move(facts)), told_(signature.slots.size()) {}

  const Attributes& attributes() const { return attributes_; }

  /// A named size of the signature; nullopt where it may differ from run to run.
  std::optional<std::int64_t> size(std::string_view name) const;

  /// The dtype that a type variable stands for, by its index in the signature.
  DType type(std::size_t variable) const { return *facts_.types[variable]; }

  /// Whether the node has the optional input.
  bool has(std::string_view input) const;

  /// An input whose elements are the same in every run, on the kernel's device; nullptr for any other. It lasts until
  /// prepare() returns.
  const Tensor* constant(std::string_view input) const;

  /// Whether a kernel that was prepared for this node can run a call of these attributes and facts: every size that its
  /// prepare() was told is the same.
  bool serves(const Attributes& attributes, const NodeFacts& call) const;

 private:
  std::size_t input_index(std::string_view name) const;

  const Signature& signature_;
  Attributes attributes_;
  NodeFacts facts_;
  mutable InlineVector<bool, 12> told_;  // by slot: size() was asked for it and knew it
};

/// The facts of one call, of which every size is known and nothing is constant. `ordinal` is the device's.
NodeFacts facts_of_call(const CallWalk& walk, const InputPointers& inputs, int ordinal);

}  // namespace opgate
