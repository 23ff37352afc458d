// TensorRT's shape expressions over known numbers, for programs that call plugins without TensorRT.
#pragma once

#include <NvInferRuntime.h>

#include <algorithm>
#include <deque>

namespace opgate::tensorrt {

class ConstantExpression final : public nvinfer1::IDimensionExpr {
 public:
  ConstantExpression(std::int64_t number, bool size_tensor) : value_(number, size_tensor) { mImpl = &value_; }
  ~ConstantExpression() noexcept override = default;

 private:
  struct Value final : nvinfer1::apiv::VDimensionExpr {
    Value(std::int64_t number, bool size_tensor) : number(number), size_tensor(size_tensor) {}
    bool isConstant() const override { return !size_tensor; }
    std::int64_t getConstantValue() const override { return number; }
    bool isSizeTensor() const override { return size_tensor; }
    std::int64_t number;
    bool size_tensor;
  };

  Value value_;
};

/// Owns the expressions that it makes. The value of a size tensor is its upper bound.
class ConstantBuilder final : public nvinfer1::IExprBuilder {
 public:
  ConstantBuilder() { mImpl = &arithmetic_; }
  ~ConstantBuilder() noexcept override = default;

  nvinfer1::DimsExprs dims(const std::int64_t* sizes, std::size_t rank) {
    nvinfer1::DimsExprs dims{};
    dims.nbDims = static_cast<std::int32_t>(rank);
    for (std::size_t i = 0; i < rank; ++i) dims.d[i] = constant(sizes[i]);
    return dims;
  }

 private:
  struct Arithmetic final : nvinfer1::apiv::VExprBuilder {
    const nvinfer1::IDimensionExpr* constant(std::int64_t number) override {
      return &expressions.emplace_back(number, false);
    }
    const nvinfer1::IDimensionExpr* operation(nvinfer1::DimensionOperation kind, const nvinfer1::IDimensionExpr& first,
                                              const nvinfer1::IDimensionExpr& second) override {
      using Kind = nvinfer1::DimensionOperation;
      const std::int64_t a = first.getConstantValue(), b = second.getConstantValue();
      switch (kind) {
        case Kind::kSUM: return constant(a + b);
        case Kind::kSUB: return constant(a - b);
        case Kind::kPROD: return constant(a * b);
        case Kind::kMAX: return constant(std::max(a, b));
        case Kind::kMIN: return constant(std::min(a, b));
        case Kind::kFLOOR_DIV: return b ? constant(floor_div(a, b)) : nullptr;
        case Kind::kCEIL_DIV: return b ? constant(-floor_div(-a, b)) : nullptr;
        default: return nullptr;
      }
    }
    const nvinfer1::IDimensionExpr* declareSizeTensor(std::int32_t, const nvinfer1::IDimensionExpr&,
                                                      const nvinfer1::IDimensionExpr& upper) override {
      return &expressions.emplace_back(upper.getConstantValue(), true);
    }
    static std::int64_t floor_div(std::int64_t a, std::int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }
    std::deque<ConstantExpression> expressions;
  };

  Arithmetic arithmetic_;
};

}  // namespace opgate::tensorrt
