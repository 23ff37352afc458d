#include "op_call/c_kernel.h"

int ctc_greedy(OpgateCall* call) {
  const OpgateTensor* const scores = call->inputs[0];
  const float* const values = scores->data;
  const int64_t frames = scores->dims[0], classes = scores->dims[1];
  const int64_t blank = *(const int64_t*)call->attributes[0].values;
  int64_t* const best = call->scratch(call, sizeof(int64_t) * (size_t)(frames + 1));
  if (!best) return call->fail(call, OPGATE_INTERNAL, "out of memory");
  int64_t found = 0;
  for (int64_t t = 0; t < frames; ++t) {
    best[t] = 0;
    for (int64_t c = 0; c < classes; ++c)
      if (values[t * classes + c] > values[t * classes + best[t]]) best[t] = c;
    found += best[t] != blank && (t == 0 || best[t] != best[t - 1]);
  }
  const int status = call->set_size(call, "k", found);
  if (status) return status;
  int64_t *const label = call->output(call, 0)->data, *const frame = call->output(call, 1)->data;
  for (int64_t t = 0, at = 0; t < frames; ++t) {
    if (best[t] == blank || (t > 0 && best[t] == best[t - 1])) continue;
    label[at] = best[t];
    frame[at++] = t;
  }
  return 0;
}
