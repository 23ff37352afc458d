// The core: signatures, the table of ops, the walk that checks a call, tensors, errors.
//
// Its sources compile together in a third of the time that they take alone, because they include the same headers. A
// CMake unity build would do the same, but a compiler cache can't share its objects between build folders.
#include "op_call/c_call.cpp"
#include "op_call/cpu_level.cpp"
#include "op_call/engine.cpp"
#include "op_call/guard.cpp"
#include "op_call/invoke.cpp"
#include "op_call/kernel_cache.cpp"
#include "op_call/node.cpp"
#include "op_call/op_times.cpp"
#include "op_call/outputs.cpp"
#include "op_call/python_kernels.cpp"
#include "op_call/table_json.cpp"
#include "op_call/threads.cpp"
#include "signature/attributes.cpp"
#include "signature/lexer.cpp"
#include "signature/names.cpp"
#include "signature/parser.cpp"
#include "signature/signature_text.cpp"
#include "signature/sizes.cpp"
#include "signature/symbols.cpp"
