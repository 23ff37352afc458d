// A layer's inputs by the signature, and its output shapes as TensorRT's expressions.
#pragma once

#include <NvInferRuntime.h>

#include <algorithm>

#include "fields.h"

namespace opgate::tensorrt {

/// Which of the signature's inputs a layer's are. TensorRT counts those on the device and those on the host apart.
class InputLayout {
 public:
  InputLayout(const Signature& signature, const GivenInputs& given) : signature_(signature) {
    for (std::size_t i = 0; i < (given.empty() ? signature.inputs.size() : given.size()); ++i) {
      const int index = static_cast<int>(given.empty() ? i : given[i]);
      (signature.inputs[index].host ? host_ : device_).push_back(index);
    }
  }

  /// The places in the signature of `count` inputs on the device.
  Status device(int count, std::vector<int>& places) const {
    places.assign(device_.begin(), device_.begin() + std::min<std::ptrdiff_t>(count, std::ssize(device_)));
    if (count == static_cast<int>(places.size())) return {};
    if (!device_.empty() && signature_.inputs[device_.back()].variadic) {
      places.resize(static_cast<std::size_t>(count), device_.back());
      return {};
    }
    if (!host_.empty()) return missing_host_input(host_[0]);
    return Status::invalid("expected at most " + std::to_string(device_.size()) + " inputs, got " +
                           std::to_string(count));
  }

  /// The places in the signature of the inputs on the host.
  const std::vector<int>& host() const { return host_; }

  Status missing_host_input(int index) const {
    return Status::invalid("input '" + signature_.inputs[index].name + "' is read on the host: its node needs the " +
                           "attribute tensorrt_plugin_shape_input_indices; `opgate tensorrt` writes it");
  }

 private:
  const Signature& signature_;
  std::vector<int> device_, host_;
};

/// Output shapes as TensorRT's expressions of the inputs' dims.
class ShapeBuilder {
 public:
  ShapeBuilder(const Op& op, const InputLayout& layout, const Attributes& attributes, nvinfer1::IExprBuilder& builder)
      : signature_(op.signature),
        layout_(layout),
        attributes_(attributes),
        builder_(builder),
        sizes_(signature_.slots.size()) {}

  Status bind(std::span<const nvinfer1::DimsExprs> inputs, std::span<const nvinfer1::DimsExprs> scalars) {
    for (std::size_t s = 0; s < sizes_.size(); ++s) {
      const Slot& slot = signature_.slots[s];
      if (slot.kind == Slot::Kind::attribute)
        sizes_[s] = builder_.constant(std::get<std::int64_t>(attributes_.at(slot.index)));
    }
    std::vector<int> places;
    OPGATE_RETURN_IF_ERROR(layout_.device(static_cast<int>(inputs.size()), places));
    std::vector<bool> absent(signature_.inputs.size(), true);
    for (std::size_t i = 0; i < places.size(); ++i) {
      absent[places[i]] = false;
      OPGATE_RETURN_IF_ERROR(bind_input(signature_.inputs[places[i]], inputs[i]));
    }
    for (std::size_t i = 0; i < layout_.host().size(); ++i) {
      absent[layout_.host()[i]] = false;
      OPGATE_RETURN_IF_ERROR(bind_scalar(layout_.host()[i], scalars, i));
    }
    for (std::size_t i = 0; i < signature_.inputs.size(); ++i) {
      for (const InputDim& dim : signature_.inputs[i].dims) {
        if (absent[i] && !dim.default_value.empty() && !sizes_[dim.slot])
          OPGATE_RETURN_IF_ERROR(build(dim.default_value[0], sizes_[dim.slot]));
      }
    }
    return {};
  }

  /// The outputs' shapes, then those of the size tensors, one for each size that only the kernel knows.
  Status outputs(std::span<nvinfer1::DimsExprs> shapes) {
    OPGATE_RETURN_IF_ERROR(declare_sizes(shapes));
    for (std::size_t o = 0; o < signature_.outputs.size(); ++o) {
      nvinfer1::DimsExprs& shape = shapes[o];
      shape.nbDims = 0;
      for (const OutputDim& dim : signature_.outputs[o].dims) {
        if (dim.kind == OutputDim::Kind::ellipsis) {
          for (const nvinfer1::IDimensionExpr* size : ellipsis_) OPGATE_RETURN_IF_ERROR(append(shape, size));
          continue;
        }
        const nvinfer1::IDimensionExpr* size = nullptr;
        if (dim.kind == OutputDim::Kind::bounded)
          size = sizes_[dim.slot];
        else
          OPGATE_RETURN_IF_ERROR(build(dim.expr, size));
        OPGATE_RETURN_IF_ERROR(append(shape, size));
      }
    }
    return {};
  }

 private:
  static Status append(nvinfer1::DimsExprs& shape, const nvinfer1::IDimensionExpr* size) {
    if (shape.nbDims == nvinfer1::Dims::MAX_DIMS) return Status::invalid("TensorRT's tensors have at most 8 dims");
    shape.d[shape.nbDims++] = size;
    return {};
  }

  Status bind_scalar(int index, std::span<const nvinfer1::DimsExprs> scalars, std::size_t place) {
    if (place >= scalars.size() || scalars[place].nbDims < 1) return layout_.missing_host_input(index);
    for (std::size_t s = 0; s < sizes_.size(); ++s) {
      if (signature_.slots[s].kind == Slot::Kind::scalar_input && signature_.slots[s].index == static_cast<int>(index))
        sizes_[s] = scalars[place].d[0];
    }
    return {};
  }

  Status bind_input(const Input& input, const nvinfer1::DimsExprs& dims) {
    const int named = static_cast<int>(input.dims.size());
    const bool open =
        std::ranges::any_of(input.dims, [](const InputDim& dim) { return dim.kind == InputDim::Kind::ellipsis; });
    if (open ? dims.nbDims + 1 < named : dims.nbDims != named) {
      return Status::invalid("input '" + input.name + "': expected rank " + std::to_string(open ? named - 1 : named) +
                             (open ? " or more" : "") + ", got rank " + std::to_string(dims.nbDims));
    }
    int at = 0;
    for (const InputDim& dim : input.dims) {
      if (dim.kind == InputDim::Kind::ellipsis) {
        const int middle = dims.nbDims + 1 - named;
        if (!has_ellipsis_) ellipsis_.assign(dims.d + at, dims.d + at + middle);
        if (static_cast<int>(ellipsis_.size()) != middle) {
          return Status::invalid("input '" + input.name + "': expected " + std::to_string(ellipsis_.size()) +
                                 " dims for ..., got " + std::to_string(middle));
        }
        has_ellipsis_ = true;
        at += middle;
        continue;
      }
      if (dim.kind == InputDim::Kind::name && (!sizes_[dim.slot] || !sizes_[dim.slot]->isConstant()))
        if (!sizes_[dim.slot] || dims.d[at]->isConstant()) sizes_[dim.slot] = dims.d[at];
      ++at;
    }
    return {};
  }

  Status declare_sizes(std::span<nvinfer1::DimsExprs> shapes) {
    std::size_t place = signature_.outputs.size();
    for (std::size_t s = 0; s < sizes_.size(); ++s) {
      if (signature_.slots[s].kind != Slot::Kind::kernel) continue;
      const nvinfer1::IDimensionExpr* bound = nullptr;
      for (const Output& output : signature_.outputs) {
        for (const OutputDim& dim : output.dims) {
          if (dim.kind == OutputDim::Kind::bounded && dim.slot == static_cast<int>(s) && !bound)
            OPGATE_RETURN_IF_ERROR(build(dim.expr, bound));
        }
      }
      shapes[place].nbDims = 0;
      sizes_[s] = builder_.declareSizeTensor(static_cast<int>(place++), *bound, *bound);
      if (!sizes_[s]) return Status::internal("TensorRT refuses the size '" + signature_.slots[s].name + "'");
    }
    return {};
  }

  Status build(const Expr& expr, const nvinfer1::IDimensionExpr*& size) {
    if (expr.kind == Expr::Kind::literal) {
      size = builder_.constant(expr.value);
      return {};
    }
    if (expr.kind == Expr::Kind::name) {
      size = sizes_[expr.slot];
      return size ? Status() : Status::invalid("size '" + signature_.slots[expr.slot].name + "' is not known");
    }
    const nvinfer1::IDimensionExpr *a = nullptr, *b = nullptr;
    OPGATE_RETURN_IF_ERROR(build(expr.operands[0], a));
    OPGATE_RETURN_IF_ERROR(build(expr.operands[1], b));
    size = operation(expr.kind, *a, *b);
    return size ? Status() : Status::internal("TensorRT refuses an expression of sizes");
  }

  const nvinfer1::IDimensionExpr* operation(Expr::Kind kind, const nvinfer1::IDimensionExpr& a,
                                            const nvinfer1::IDimensionExpr& b) {
    switch (kind) {
      case Expr::Kind::add: return builder_.operation(nvinfer1::DimensionOperation::kSUM, a, b);
      case Expr::Kind::sub: return builder_.operation(nvinfer1::DimensionOperation::kSUB, a, b);
      case Expr::Kind::mul: return builder_.operation(nvinfer1::DimensionOperation::kPROD, a, b);
      case Expr::Kind::min: return builder_.operation(nvinfer1::DimensionOperation::kMIN, a, b);
      case Expr::Kind::max: return builder_.operation(nvinfer1::DimensionOperation::kMAX, a, b);
      case Expr::Kind::div: return builder_.operation(nvinfer1::DimensionOperation::kFLOOR_DIV, a, b);
      case Expr::Kind::ceildiv: return builder_.operation(nvinfer1::DimensionOperation::kCEIL_DIV, a, b);
      default: {  // the remainder: a - a / b * b
        const nvinfer1::IDimensionExpr* quotient = builder_.operation(nvinfer1::DimensionOperation::kFLOOR_DIV, a, b);
        const nvinfer1::IDimensionExpr* whole =
            quotient ? builder_.operation(nvinfer1::DimensionOperation::kPROD, *quotient, b) : nullptr;
        return whole ? builder_.operation(nvinfer1::DimensionOperation::kSUB, a, *whole) : nullptr;
      }
    }
  }

  const Signature& signature_;
  const InputLayout& layout_;
  const Attributes& attributes_;
  nvinfer1::IExprBuilder& builder_;
  std::vector<const nvinfer1::IDimensionExpr*> sizes_;  ///< by slot
  std::vector<const nvinfer1::IDimensionExpr*> ellipsis_;
  bool has_ellipsis_ = false;
};

}  // namespace opgate::tensorrt
