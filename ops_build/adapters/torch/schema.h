// A signature as the schema of torch's dispatcher.
#pragma once

#include <string>

#include "core/table.h"

namespace opgate::libtorch {

/// "ROIPool" is "roi_pool".
std::string snake_case(std::string_view name);

/// The domain as torch writes namespaces.
std::string torch_namespace();

/// Whether the schema's default of an attribute is None, because torch has no default for a list of its kind.
bool none_for_default(const Attribute& attribute);

/// "roi_pool(Tensor x, Tensor? rois=None, *, SymInt size=16) -> (Tensor, Tensor)"
std::string schema_of(const Signature& signature);

/// Whether the op takes or gives strings, of which torch has no tensors.
bool has_strings(const Signature& signature);

}  // namespace opgate::libtorch
