#include "table.h"

#include <algorithm>

#include "configured.h"
#include "python_kernels.h"
#include "signature/lexer.h"
#include "signature/parser.h"

namespace opgate {

Table& Table::instance() {
  static Table table;
  return table;
}

const char* Table::domain() { return python_domain().empty() ? library_domain : python_domain().c_str(); }

void Table::add(const char* signature, const char* doc, Device device, const Kernel& kernel) {
  Op op;
  try {
    op.signature = parse_signature(signature);
  } catch (const SignatureError& error) {
    errors_.push_back("signature \"" + std::string(signature) + "\", column " + std::to_string(error.column) + ": " +
                      error.what());
    return;
  }
  if (op.signature.type_variables.size() > 4) {
    errors_.push_back("op " + op.signature.name + ": more than 4 type variables");
    return;
  }
  const auto found =
      std::ranges::lower_bound(ops_, op.signature.name, {}, [](const Op& o) { return o.signature.name; });
  if (found == ops_.end() || found->signature.name != op.signature.name) {
    op.doc = doc;
    op.kernels[static_cast<int>(device)] = kernel;
    ops_.insert(found, std::move(op));
    return;
  }
  Kernel& known = found->kernels[static_cast<int>(device)];
  if (found->signature.text != op.signature.text) {
    errors_.push_back("op " + op.signature.name + " is stated twice with different signatures: '" +
                      found->signature.text + "' and '" + op.signature.text + "'");
  } else if (known.run && !replaces_) {
    errors_.push_back("op " + op.signature.name + " has two kernels for " + std::string(name_of(device)));
  } else {
    known = kernel;
  }
}

const Op* Table::find(std::string_view name) const {
  const auto found =
      std::ranges::lower_bound(ops_, name, {}, [](const Op& op) { return std::string_view(op.signature.name); });
  return found != ops_.end() && found->signature.name == name ? &*found : nullptr;
}

}  // namespace opgate
