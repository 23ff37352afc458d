#include "op_call/c_kernel.h"

typedef struct {
  const OpgateTensor *x, *scale, *y;
  double by;
} Work;

#define SCALE_ROWS(T)                                                                                   \
  for (int64_t row = begin; row < end; ++row)                                                           \
    for (int64_t i = 0; i < columns; ++i)                                                               \
  ((T*)work->y->data)[row * columns + i] = ((const T*)work->x->data)[row * columns + i] * (T)work->by * \
                                           (work->scale ? ((const T*)work->scale->data)[i] : (T)1)

static void rows(void* user, int64_t begin, int64_t end) {
  const Work* const work = user;
  const int64_t columns = work->x->dims[1];
  if (work->x->dtype.bits == 32)
    SCALE_ROWS(float);
  else
    SCALE_ROWS(double);
}

int scaled_rows(OpgateCall* call) {
  const OpgateAttribute* const ends = &call->attributes[1];
  if (!ends->is_list || ends->count != 2 || ends->kind != OPGATE_INTEGERS)
    return call->fail(call, OPGATE_INTERNAL, "expected two integers");
  Work work = {call->inputs[0], call->inputs[1], call->output(call, 0), *(const double*)call->attributes[0].values};
  call->parallel_for(call, work.x->dims[0], 16, rows, &work);
  return 0;
}
