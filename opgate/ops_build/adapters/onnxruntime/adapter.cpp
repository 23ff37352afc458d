// The sources below compile together in half of the time that they take alone, because they include the same headers.
// A CMake unity build would do the same, but a compiler cache can't share its objects between build folders.
#include "adapters/onnxruntime/attributes.cpp"
#include "adapters/onnxruntime/call.cpp"
#include "adapters/onnxruntime/inference.cpp"
#include "adapters/onnxruntime/registration.cpp"
#include "adapters/onnxruntime/times.cpp"
#include "adapters/onnxruntime/value.cpp"
