#include "sigmoid_focal_loss.h"

#include "core/elementwise.h"

namespace opgate::ops::sigmoid_focal_loss {

using Cpu = sigmoid_focal_loss::ByGamma<CpuElementwise, Loss>;

}  // namespace opgate::ops::sigmoid_focal_loss

OPGATE_CPU_KERNEL(SigmoidFocalLoss, opgate::ops::sigmoid_focal_loss::Cpu)
