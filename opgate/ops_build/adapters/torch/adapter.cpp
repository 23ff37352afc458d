// The sources below compile together in half of the time that they take alone, because they include the same headers.
// A CMake unity build would do the same, but a compiler cache can't share its objects between build folders.
#include "adapters/torch/arguments.cpp"
#include "adapters/torch/call.cpp"
#include "adapters/torch/layout.cpp"
#include "adapters/torch/libtorch.cpp"
#include "adapters/torch/registration.cpp"
#include "adapters/torch/schema.cpp"
