// Sizes as TensorRT's expressions, and the output shapes of a layer.
#pragma once

#include <NvInferRuntime.h>

#include "layout.h"
#include "signature/sizes.h"

namespace opgate::tensorrt {

/// The algebra (walk.h) of TensorRT's expressions. It computes with constants itself.
struct Expressions {
  using Size = const nvinfer1::IDimensionExpr*;

  nvinfer1::IExprBuilder* builder;

  Size constant(std::int64_t number) const { return builder->constant(number); }

  static std::optional<std::int64_t> number(Size size) {
    return size->isConstant() ? std::optional(size->getConstantValue()) : std::nullopt;
  }

  static std::optional<Size> equal(Size a, Size b) {
    if (a->isConstant() && b->isConstant() && a->getConstantValue() != b->getConstantValue()) return std::nullopt;
    return a->isConstant() ? a : b->isConstant() ? b : a;
  }

  Status apply(Expr::Kind operation, Size a, Size b, Size& result) const {
    if (a->isConstant() && b->isConstant()) {
      std::int64_t value = 0;
      OPGATE_RETURN_IF_ERROR(opgate::apply(operation, a->getConstantValue(), b->getConstantValue(), value));
      result = constant(value);
    } else {
      result = express(operation, *a, *b);
    }
    return result ? Status() : Status::internal("TensorRT refuses an expression of sizes");
  }

  static std::string text(Size size) { return size->isConstant() ? std::to_string(size->getConstantValue()) : "?"; }

 private:
  Size express(Expr::Kind operation, const nvinfer1::IDimensionExpr& a, const nvinfer1::IDimensionExpr& b) const {
    using Operation = nvinfer1::DimensionOperation;
    switch (operation) {
      case Expr::Kind::add: return builder->operation(Operation::kSUM, a, b);
      case Expr::Kind::sub: return builder->operation(Operation::kSUB, a, b);
      case Expr::Kind::mul: return builder->operation(Operation::kPROD, a, b);
      case Expr::Kind::min: return builder->operation(Operation::kMIN, a, b);
      case Expr::Kind::max: return builder->operation(Operation::kMAX, a, b);
      case Expr::Kind::div: return builder->operation(Operation::kFLOOR_DIV, a, b);
      case Expr::Kind::ceildiv: return builder->operation(Operation::kCEIL_DIV, a, b);
      default: {  // the remainder: a - a / b * b
        Size quotient = builder->operation(Operation::kFLOOR_DIV, a, b);
        Size whole = quotient ? builder->operation(Operation::kPROD, *quotient, b) : nullptr;
        return whole ? builder->operation(Operation::kSUB, a, *whole) : nullptr;
      }
    }
  }
};

using ExpressionWalk = Walk<Expressions>;

/// Sets `outputs` to the shapes of a layer's outputs and then of its size tensors, one for each size that only the
/// kernel knows. `scalars` are the values of the inputs on the host. Fails if constant sizes contradict the signature.
Status output_shapes(const Signature& signature, const InputLayout& layout, const Attributes& attributes,
                     std::span<const nvinfer1::DimsExprs> inputs, std::span<const nvinfer1::DimsExprs> scalars,
                     std::span<nvinfer1::DimsExprs> outputs, nvinfer1::IExprBuilder& builder);

}  // namespace opgate::tensorrt
