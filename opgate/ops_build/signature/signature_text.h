// Parts of a signature as text, for messages.
#pragma once

#include <string>

#include "signature.h"

namespace opgate {

/// "max(n, 3)*2"
std::string text_of(const Signature& signature, const Expr& expr);

/// "f32[n, 3]"
std::string text_of(const Signature& signature, const Input& input);

/// The type of an attribute as in a signature: "float[3]".
std::string type_text(const Attribute& attribute);

/// The value of an attribute: "0.5", "[1, 2]", "'jpeg'".
std::string text_of(const AttributeValue& value);

/// The error of a size that is negative.
std::string negative_size(const std::string& name, std::int64_t size);

}  // namespace opgate
