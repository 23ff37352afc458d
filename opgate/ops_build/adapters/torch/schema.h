// The schema of an op for torch's dispatcher.
#pragma once

#include <string>

#include "op_call/table.h"

namespace opgate::libtorch {

/// An op's name in snake_case: "roi_pool" for "ROIPool".
std::string snake_case(std::string_view name);

/// The namespace in torch for a domain.
std::string torch_namespace();

/// Whether the default of an attribute is None in the schema, because torch has no default for a list of this kind.
bool none_for_default(const Attribute& attribute);

/// Which outputs a function of an op returns: all but those on request, the required ones, or all. An op has a function
/// in torch for each of these that differs from those before it.
enum class Returns { usual, required, all };

/// Whether a function returns an output.
bool is_returned(const Output& output, Returns returns);

/// Whether the op has the function.
bool has_function(const Signature& signature, Returns returns);

/// The name of a function of an op: "roi_pool", "roi_pool_required" or "roi_pool_all".
std::string function_name(const Signature& signature, Returns returns);

/// "roi_pool(Tensor x, Tensor? rois=None, *, SymInt size=16) -> (Tensor, Tensor)"
std::string schema_of(const Signature& signature, Returns returns);

/// Whether the op has an input or output of strings. Torch has no tensors of strings.
bool has_strings(const Signature& signature);

}  // namespace opgate::libtorch
