// The names that an op's node has in TensorFlow. Models for LiteRT are made from TensorFlow's and keep them.
#pragma once

#include <string>
#include <vector>

#include "op_call/table.h"

namespace opgate::tf {

/// "MyOps>MyOp": the domain in CamelCase, as TensorFlow writes the namespace of an op, and the op.
std::string type_name(const Signature& signature);

/// The names of a node's tensors and attributes. TensorFlow wants those of tensors in lower case, and all of them to
/// differ from one another and from its types. Nearly always they are the names of the signature.
///
/// TensorFlow has neither optional inputs nor optional outputs. An optional tensor is a list of none or one tensor, and
/// a variadic input is a list. The length of a list is an attribute.
struct NodeNames {
  explicit NodeNames(const Signature& signature);

  std::vector<std::string> inputs, outputs, attributes, types;  ///< in the order of the signature
  std::vector<std::string> input_lengths;  ///< by input: the attribute with the length of its list; empty if it is none
  std::vector<std::string> output_lengths;  ///< by output, in the same way
};

}  // namespace opgate::tf
