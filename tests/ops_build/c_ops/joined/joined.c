#include <string.h>

#include "op_call/c_kernel.h"

static char* add(char* to, OpgateText text) {
  if (text.size) memcpy(to, text.characters, text.size);
  return to + text.size;
}

int joined(OpgateCall* call) {
  const OpgateText by = *(const OpgateText*)call->attributes[0].values;
  const OpgateText* const parts = call->attributes[1].values;
  const size_t part_count = call->attributes[1].count;
  const OpgateTensor* const y = call->output(call, 0);
  if (y->data || y->dtype.code != 255) return call->fail(call, OPGATE_INTERNAL, "expected an output of strings");
  for (int64_t i = 0; i < y->dims[0]; ++i) {
    size_t size = 0;
    for (size_t t = 0; t < call->input_count; ++t) size += ((const OpgateText*)call->inputs[t]->data)[i].size + by.size;
    for (size_t t = 0; t < part_count; ++t) size += parts[t].size + by.size;
    char* const text = call->scratch(call, size + 1);
    if (!text) return call->fail(call, OPGATE_INTERNAL, "out of memory");
    char* at = text;
    for (size_t t = 0; t < call->input_count; ++t)
      at = add(add(at, t ? by : (OpgateText){0}), ((const OpgateText*)call->inputs[t]->data)[i]);
    for (size_t t = 0; t < part_count; ++t) at = add(add(at, by), parts[t]);
    call->set_text(call, 0, (size_t)i, (OpgateText){text, (size_t)(at - text)});
  }
  return 0;
}
