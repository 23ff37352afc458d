#include "sigmoid_focal_loss_backward.h"

#include "core/elementwise.h"

namespace opgate::ops::sigmoid_focal_loss_backward {

using Cpu = sigmoid_focal_loss::ByGamma<CpuElementwise, Derivative>;

}  // namespace opgate::ops::sigmoid_focal_loss_backward

OPGATE_CPU_KERNEL(SigmoidFocalLossBackward, opgate::ops::sigmoid_focal_loss_backward::Cpu)
