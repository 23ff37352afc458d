// The core: signatures, the table of ops, the walk that checks a call, tensors, errors.
//
// Its sources compile together in a third of the time that they take alone, because they include the same headers. A
// CMake unity build would do the same, but a compiler cache can't share its objects between build folders.
#include "core/attributes.cpp"
#include "core/cpu_level.cpp"
#include "core/engine.cpp"
#include "core/guard.cpp"
#include "core/invoke.cpp"
#include "core/kernel_cache.cpp"
#include "core/lexer.cpp"
#include "core/names.cpp"
#include "core/node.cpp"
#include "core/outputs.cpp"
#include "core/parser.cpp"
#include "core/signature_text.cpp"
#include "core/sizes.cpp"
#include "core/symbols.cpp"
#include "core/table_json.cpp"
#include "core/threads.cpp"
