// The sources below compile together in half of the time that they take alone, because they include the same headers.
// A CMake unity build would do the same, but a compiler cache can't share its objects between build folders.
#include "adapters/tensorrt/call.cpp"
#include "adapters/tensorrt/expressions.cpp"
#include "adapters/tensorrt/fields.cpp"
#include "adapters/tensorrt/plugin.cpp"
#include "adapters/tensorrt/registration.cpp"
