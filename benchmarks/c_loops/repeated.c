#include "op_call/c_kernel.h"

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

int repeated(OpgateCall* call) {
  const float* const value = call->inputs[0]->data;
  const int64_t* const count = call->inputs[1]->data;
  const int64_t n = call->inputs[0]->dims[0], most = *(const int64_t*)call->attributes[0].values;
  int64_t total = 0;
  for (int64_t i = 0; i < n; ++i) total += least(count[i], most - total);
  const int status = call->set_size(call, "r", total);
  if (status) return status;
  float* const y = call->output(call, 0)->data;
  for (int64_t i = 0, at = 0; i < n; ++i) {
    const int64_t end = least(at + count[i], total);
    while (at < end) y[at++] = value[i];
  }
  return 0;
}
