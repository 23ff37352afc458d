#include <math.h>

#include "op_call/c_kernel.h"

typedef struct {
  const float *x, *table;
  int32_t* row;
  float* distance;
  int64_t count, columns;
} Work;

// A sum is vectorized only if its order may change, as fastmath says in the loop.
__attribute__((optimize("associative-math,no-signed-zeros,no-trapping-math"))) static void rows(void* user,
                                                                                                int64_t begin,
                                                                                                int64_t end) {
  const Work* const work = user;
  for (int64_t i = begin; i < end; ++i) {
    float best = INFINITY;
    int32_t at = -1;
    for (int64_t j = 0; j < work->count; ++j) {
      float total = 0;
      for (int64_t k = 0; k < work->columns; ++k) {
        const float step = work->x[i * work->columns + k] - work->table[j * work->columns + k];
        total += step * step;
      }
      if (total < best) {
        best = total;
        at = (int32_t)j;
      }
    }
    work->row[i] = at;
    work->distance[i] = best;
  }
}

int nearest(OpgateCall* call) {
  const OpgateTensor *const x = call->inputs[0], *const table = call->inputs[1];
  Work work = {x->data,        table->data, call->output(call, 0)->data, call->output(call, 1)->data,
               table->dims[0], x->dims[1]};
  call->parallel_for(call, x->dims[0], 16, rows, &work);
  return 0;
}
