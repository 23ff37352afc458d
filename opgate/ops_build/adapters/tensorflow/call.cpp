#include "call.h"

#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/platform/denormal.h"

namespace opgate::tf {
namespace {

class TensorflowEngine final : public Engine {
 public:
  /// `lengths` are the numbers of tensors that the node has of each output: 0 if nobody wants it.
  TensorflowEngine(api::OpKernelContext& context, const std::vector<std::size_t>& lengths) : context_(context) {
    int next = 0;
    for (const std::size_t length : lengths) places_.push_back(length ? next++ : -1);
  }

  Status allocate_output(std::size_t index, DType dtype, std::span<const std::int64_t> dims, void** data) override {
    *data = nullptr;
    if (places_[index] < 0) return {};
    api::TensorShape shape;
    OPGATE_RETURN_IF_ERROR(from_tensorflow(api::TensorShape::BuildTensorShape({dims.data(), dims.size()}, &shape)));
    api::Tensor* tensor = nullptr;
    OPGATE_RETURN_IF_ERROR(from_tensorflow(context_.allocate_output(places_[index], shape, &tensor)));
    if (dtype == DType::str) {
      texts_.push_back({tensor, std::vector<std::string>(static_cast<std::size_t>(tensor->NumElements()))});
      *data = texts_.back().values.data();
    } else {
      *data = tensor->data();
    }
    if (!*data) *data = &nothing_;  // a tensor without elements has no memory
    return {};
  }

  void parallel_for(std::size_t tasks, void (*task)(void*, std::size_t), void* user) override {
    const auto run = [&](std::int64_t begin, std::int64_t end) {
      const api::port::ScopedDontFlushDenormal as_in_every_engine;
      for (std::int64_t i = begin; i < end; ++i) task(user, static_cast<std::size_t>(i));
    };
    const auto* threads = context_.device()->tensorflow_cpu_worker_threads();
    if (!threads || threads->num_threads < 2) return run(0, static_cast<std::int64_t>(tasks));
    threads->workers->ParallelFor(static_cast<std::int64_t>(tasks), run);
  }

  void* scratch(std::size_t bytes) override {
    api::Tensor& tensor = scratch_.emplace_back();
    api::TensorShape shape;
    // TensorFlow aligns memory to 64 bytes.
    const bool fits = api::TensorShape::BuildTensorShape({static_cast<std::int64_t>(bytes)}, &shape).ok();
    if (!fits || !context_.allocate_temp(api::DT_UINT8, shape, &tensor).ok()) throw std::bad_alloc();
    return tensor.data();
  }

  /// Gives TensorFlow the strings that the kernel has written.
  void hand_over_texts() {
    for (Texts& texts : texts_) {
      auto elements = texts.tensor->flat<api::tstring>();
      for (std::size_t i = 0; i < texts.values.size(); ++i) elements(static_cast<std::int64_t>(i)) = texts.values[i];
    }
  }

 private:
  struct Texts {
    api::Tensor* tensor;
    std::vector<std::string> values;
  };

  api::OpKernelContext& context_;
  std::vector<int> places_;  // by output of the signature: its number among the node's outputs, or -1
  std::deque<api::Tensor> scratch_;
  std::deque<Texts> texts_;
  char nothing_ = 0;
};

/// An input as a Tensor. Can't be moved, because the Tensor points into it.
class InputValue {
 public:
  InputValue(const Input& input, const api::Tensor& tensor) {
    for (int axis = 0; axis < tensor.dims(); ++axis) dims_.push_back(tensor.dim_size(axis));
    const std::optional<DType> dtype = from_tensorflow(tensor.dtype());
    const void* data = tensor.data();
    if (dtype == DType::str) {
      const auto elements = tensor.flat<api::tstring>();
      for (std::int64_t i = 0; i < elements.size(); ++i) texts_.emplace_back(elements(i));
      data = texts_.data();
    }
    // The node's definition allows no type that a signature can't state.
    tensor_ = Tensor(data, dtype.value_or(DType::str), dims_, Device::cpu, input.name);
  }
  InputValue(const InputValue&) = delete;
  InputValue& operator=(const InputValue&) = delete;

  const Tensor& tensor() const { return tensor_; }

 private:
  Tensor tensor_;
  Dims dims_;
  std::vector<std::string_view> texts_;
};

}  // namespace

NodeKernel::NodeKernel(api::OpKernelConstruction* construction)
    : OpKernel(construction), definition_(definition_of(construction->def().op())) {
  OP_REQUIRES(construction, definition_ != nullptr,
              absl::InternalError("the op library doesn't have " + construction->def().op()));
  OP_REQUIRES_OK(construction, to_tensorflow(named(*definition_->op, [&] { return read(*construction); })));
}

Status NodeKernel::read(api::OpKernelConstruction& construction) {
  const api::AttrSlice attributes(construction.def());
  const FindAttribute find = [&](const std::string& name) { return attributes.Find(name); };
  OPGATE_RETURN_IF_ERROR(read_attributes(*definition_, find, attributes_));
  OPGATE_RETURN_IF_ERROR(read_lengths(definition_->names.input_lengths, find, input_lengths_));
  OPGATE_RETURN_IF_ERROR(read_lengths(definition_->names.output_lengths, find, output_lengths_));
  return check_node(*definition_->op, Device::cpu, attributes_);
}

void NodeKernel::Compute(api::OpKernelContext* context) {
  // TensorFlow's threads take denormal numbers for zero. No other engine does.
  const api::port::ScopedDontFlushDenormal as_in_every_engine;
  OP_REQUIRES_OK(context, to_tensorflow(named(*definition_->op, [&] { return run(*context); })));
}

Status NodeKernel::run(api::OpKernelContext& context) {
  std::deque<InputValue> values;
  InputPointers inputs;
  int next = 0;
  for (std::size_t i = 0; i < input_lengths_.size(); ++i) {
    if (input_lengths_[i] == 0) inputs.push_back(nullptr);
    for (std::size_t k = 0; k < input_lengths_[i]; ++k) {
      values.emplace_back(definition_->op->signature.inputs[i], context.input(next++));
      inputs.push_back(&values.back().tensor());
    }
  }
  TensorflowEngine engine(context, output_lengths_);
  OPGATE_RETURN_IF_ERROR(invoke(*definition_->op, Device::cpu, inputs, attributes_, engine, &kernels_));
  engine.hand_over_texts();
  return {};
}

}  // namespace opgate::tf
