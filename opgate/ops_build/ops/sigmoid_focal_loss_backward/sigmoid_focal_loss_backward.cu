#include "sigmoid_focal_loss_backward.h"

#include "core/elementwise.cuh"

namespace opgate::ops::sigmoid_focal_loss_backward {

using Cuda = sigmoid_focal_loss::ByGamma<FastCudaElementwise, Derivative>;

}  // namespace opgate::ops::sigmoid_focal_loss_backward

OPGATE_CUDA_KERNEL(SigmoidFocalLossBackward, opgate::ops::sigmoid_focal_loss_backward::Cuda)
