// The schema of an op for torch's dispatcher.
#pragma once

#include <string>

#include "core/table.h"

namespace opgate::libtorch {

/// An op's name in snake_case: "roi_pool" for "ROIPool".
std::string snake_case(std::string_view name);

/// The namespace in torch for a domain.
std::string torch_namespace();

/// Whether the default of an attribute is None in the schema, because torch has no default for a list of this kind.
bool none_for_default(const Attribute& attribute);

/// Which outputs a function of an op returns. An op with optional outputs has two functions in torch.
enum class Returns { all, required };

/// The name of a function of an op: "roi_pool", or "roi_pool_required" for the one that returns the required outputs.
std::string function_name(const Signature& signature, Returns returns);

/// Whether a function that returns the required outputs differs from the one that returns all.
bool has_optional_outputs(const Signature& signature);

/// "roi_pool(Tensor x, Tensor? rois=None, *, SymInt size=16) -> (Tensor, Tensor)"
std::string schema_of(const Signature& signature, Returns returns);

/// Whether the op has an input or output of strings. Torch has no tensors of strings.
bool has_strings(const Signature& signature);

}  // namespace opgate::libtorch
