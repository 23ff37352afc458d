#include <stdio.h>

#include "op_call/c_kernel.h"

int run_lengths(OpgateCall* call) {
  const OpgateTensor* const x = call->inputs[0];
  const int32_t* const from = x->data;
  const int64_t n = x->dims[0];
  int64_t runs = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (from[i] < 0) {
      char message[100];
      snprintf(message, sizeof message, "expected numbers that are not negative, got %d", from[i]);
      return call->fail(call, OPGATE_INVALID_ARGUMENT, message);
    }
    runs += i == 0 || from[i] != from[i - 1];
  }
  if (call->output(call, 0)) return call->fail(call, OPGATE_INTERNAL, "an output has a size before the kernel sets it");
  const int status = call->set_size(call, "r", runs);
  if (status) return status;
  int32_t* const value = call->output(call, 0)->data;
  const OpgateTensor* const wanted = call->output(call, 1);
  int64_t* const count = wanted ? wanted->data : NULL;
  int64_t run = -1;
  for (int64_t i = 0; i < n; ++i) {
    if (i == 0 || from[i] != from[i - 1]) {
      value[++run] = from[i];
      if (count) count[run] = 0;
    }
    if (count) ++count[run];
  }
  return 0;
}
