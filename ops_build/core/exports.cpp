// What a library shows to Python whatever its engine: the op table and the signature parser, as JSON.
#include "table_json.h"

#define OPGATE_EXPORT extern "C" __attribute__((visibility("default")))

/// The op table. The text lives as long as the library.
OPGATE_EXPORT const char* opgate_table() {
  static const std::string text = opgate::table_json(opgate::Table::instance());
  return text.c_str();
}

/// One signature, parsed, or {"error", "column"}. The text lives until the thread's next call.
OPGATE_EXPORT const char* opgate_parse_signature(const char* signature) {
  static thread_local std::string text;
  text = opgate::signature_json(signature);
  return text.c_str();
}
