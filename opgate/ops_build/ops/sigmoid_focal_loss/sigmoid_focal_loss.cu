#include "sigmoid_focal_loss.h"

#include "core/elementwise.cuh"

namespace opgate::ops::sigmoid_focal_loss {

using Cuda = sigmoid_focal_loss::ByGamma<FastCudaElementwise, Loss>;

}  // namespace opgate::ops::sigmoid_focal_loss

OPGATE_CUDA_KERNEL(SigmoidFocalLoss, opgate::ops::sigmoid_focal_loss::Cuda)
