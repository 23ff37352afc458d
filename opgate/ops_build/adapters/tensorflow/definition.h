// The ops of the table as TensorFlow's registry states them.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "adapters/tensorflow_names.h"
#include "api.h"
#include "op_call/table.h"
#include "signature/attributes.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/op_def.pb.h"

namespace opgate::tf {

/// An op as TensorFlow knows it. Its attributes are those of the signature in their order, then the type variables,
/// then the lengths of lists.
struct Definition {
  const Op* op;
  api::OpDef def;
  NodeNames names;
};

/// The definitions of all ops of the table, in its order.
const std::deque<Definition>& definitions();

/// The definition of an op by its name in TensorFlow, such as "MyOps>MyOp". nullptr if there is none.
const Definition* definition_of(std::string_view type);

/// Returns the attribute of a node by name, or nullptr.
using FindAttribute = std::function<const api::AttrValue*(const std::string&)>;

/// Reads the attributes of a node.
Status read_attributes(const Definition& definition, const FindAttribute& find, Attributes& attributes);

/// Sets `lengths` to the number of tensors of each input or output. 1 for one that is no list.
Status read_lengths(const std::vector<std::string>& names, const FindAttribute& find,
                    std::vector<std::size_t>& lengths);

}  // namespace opgate::tf
