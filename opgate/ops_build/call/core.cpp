// The core: signatures, the table of ops, the walk that checks a call, tensors, errors.
//
// Its sources compile together in a third of the time that they take alone, because they include the same headers. A
// CMake unity build would do the same, but a compiler cache can't share its objects between build folders.
#include "call/cpu_level.cpp"
#include "call/engine.cpp"
#include "call/guard.cpp"
#include "call/invoke.cpp"
#include "call/kernel_cache.cpp"
#include "call/node.cpp"
#include "call/outputs.cpp"
#include "call/table_json.cpp"
#include "call/threads.cpp"
#include "signature/attributes.cpp"
#include "signature/lexer.cpp"
#include "signature/names.cpp"
#include "signature/parser.cpp"
#include "signature/signature_text.cpp"
#include "signature/sizes.cpp"
#include "signature/symbols.cpp"
