// What Python calls in a library of any engine: the op table and the signature parser, as JSON, and the op that runs.
#include "running_op.h"
#include "table_json.h"

#define OPGATE_EXPORT extern "C" __attribute__((visibility("default")))

/// The op table. The text is valid as long as the library is loaded.
OPGATE_EXPORT const char* opgate_table() {
  static const std::string text = opgate::table_json(opgate::Table::instance());
  return text.c_str();
}

/// One parsed signature, or {"error", "column"}. The text is valid until this thread calls it again.
OPGATE_EXPORT const char* opgate_parse_signature(const char* signature) {
  static thread_local std::string text;
  text = opgate::signature_json(signature);
  return text.c_str();
}

/// The op that the calling thread runs, null if it runs none. For the last words of a process that crashes. In a thread
/// that never ran an op of this library, the first call may allocate.
OPGATE_EXPORT const char* opgate_running_op() { return opgate::running_op; }
