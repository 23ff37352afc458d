// Shows the op table to TensorRT as plugins of the V3 interface: getCreators and setLoggerFinder are the library's
// entries. One plugin class serves every op.
#include <NvInferRuntime.h>

#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>

#include "core/cuda.h"
#include "core/table.h"

namespace opgate {
namespace {

using nvinfer1::DataType;
using nvinfer1::DimensionOperation;
using nvinfer1::DimsExprs;
using nvinfer1::DynamicPluginTensorDesc;
using nvinfer1::IDimensionExpr;
using nvinfer1::IExprBuilder;
using nvinfer1::PluginField;
using nvinfer1::PluginFieldCollection;
using nvinfer1::PluginFieldType;
using nvinfer1::PluginTensorDesc;

nvinfer1::ILoggerFinder* logger_finder = nullptr;

void log_error(const std::string& message) {
  nvinfer1::ILogger* logger = logger_finder ? logger_finder->findLogger() : nullptr;
  if (logger)
    logger->log(nvinfer1::ILogger::Severity::kERROR, message.c_str());
  else
    std::fprintf(stderr, "%s\n", message.c_str());
}

std::string name_of(const Op& op) { return std::string(Table::domain()) + "::" + op.signature.name; }

/// Logs what is wrong and gives the return code of TensorRT's interfaces. Messages of invoke() name the op already.
int given(const Op& op, const Status& status) {
  if (status.ok()) return 0;
  const std::string prefix = name_of(op) + ": ";
  log_error(status.message().starts_with(prefix) ? status.message() : prefix + status.message());
  return 1;
}

/// Runs `body`, whose Status it reports, and lets nothing be thrown into TensorRT.
template <typename Body>
int guarded(const Op& op, Body&& body) noexcept {
  try {
    return given(op, body());
  } catch (const std::exception& error) {
    return given(op, Status::internal(error.what()));
  }
}

// Types.

std::optional<DataType> data_type(DType dtype) {
  switch (dtype) {
    case DType::f16: return DataType::kHALF;
    case DType::bf16: return DataType::kBF16;
    case DType::f32: return DataType::kFLOAT;
    case DType::i8: return DataType::kINT8;
    case DType::u8: return DataType::kUINT8;
    case DType::i32: return DataType::kINT32;
    case DType::i64: return DataType::kINT64;
    case DType::boolean: return DataType::kBOOL;
    default: return std::nullopt;
  }
}

std::optional<DType> dtype_of_data(DataType type) {
  for (int i = 0; i < kDTypeCount; ++i) {
    if (data_type(static_cast<DType>(i)) == type) return static_cast<DType>(i);
  }
  return std::nullopt;
}

// Attributes. TensorRT gives a field the type of the ONNX attribute or of whoever made it, not the declared one.

PluginFieldType field_type(const Attribute& attribute) {
  switch (attribute.kind) {
    case Attribute::Kind::integer: return PluginFieldType::kINT64;
    case Attribute::Kind::boolean: return PluginFieldType::kINT32;
    case Attribute::Kind::number: return PluginFieldType::kFLOAT32;
    default: return PluginFieldType::kCHAR;
  }
}

template <typename To>
std::optional<std::vector<To>> numbers_of(const PluginField& field) {
  const auto read = [&]<typename From>(const From*) {
    const From* data = static_cast<const From*>(field.data);
    return std::vector<To>(data, data + field.length);
  };
  if constexpr (std::is_floating_point_v<To>) {
    if (field.type == PluginFieldType::kFLOAT32) return read(static_cast<const float*>(nullptr));
    if (field.type == PluginFieldType::kFLOAT64) return read(static_cast<const double*>(nullptr));
  } else {
    if (field.type == PluginFieldType::kINT8) return read(static_cast<const std::int8_t*>(nullptr));
    if (field.type == PluginFieldType::kINT32) return read(static_cast<const std::int32_t*>(nullptr));
    if (field.type == PluginFieldType::kINT64) return read(static_cast<const std::int64_t*>(nullptr));
  }
  return std::nullopt;
}

/// Numbers as the attribute's value: the list, or its only element.
template <typename Element, typename From>
std::optional<AttributeValue> value_of(const std::optional<std::vector<From>>& numbers, bool list) {
  if (!numbers || (!list && numbers->size() != 1)) return std::nullopt;
  if (!list) return static_cast<Element>((*numbers)[0]);
  return std::vector<Element>(numbers->begin(), numbers->end());
}

std::optional<AttributeValue> read_field(const PluginField& field, const Attribute& attribute) {
  switch (attribute.kind) {
    case Attribute::Kind::integer: return value_of<std::int64_t>(numbers_of<std::int64_t>(field), attribute.list);
    case Attribute::Kind::boolean: return value_of<bool>(numbers_of<std::int64_t>(field), attribute.list);
    case Attribute::Kind::number: return value_of<double>(numbers_of<double>(field), attribute.list);
    default: break;
  }
  if (field.type != PluginFieldType::kCHAR) return std::nullopt;
  std::string text(static_cast<const char*>(field.data), static_cast<std::size_t>(field.length));
  while (!text.empty() && text.back() == '\0') text.pop_back();  // with or without the terminating zero
  if (attribute.list) return lines(text);
  return text;
}

Status read_attributes(const Signature& signature, const PluginFieldCollection& fields, Attributes& attributes) {
  std::vector<std::optional<AttributeValue>> values(signature.attributes.size());
  for (int f = 0; f < fields.nbFields; ++f) {
    const PluginField& field = fields.fields[f];
    for (std::size_t i = 0; i < values.size(); ++i) {
      const Attribute& attribute = signature.attributes[i];
      if (attribute.name != field.name || (!field.data && field.length)) continue;
      values[i] = read_field(field, attribute);
      if (!values[i]) {
        return Status::invalid("attribute '" + attribute.name + "': expected " + type_text(attribute) +
                               ", got a field of type " + std::to_string(static_cast<int>(field.type)) +
                               " and length " + std::to_string(field.length));
      }
    }
  }
  return Attributes::make(signature, std::move(values), attributes);
}

/// Which inputs a node has, where it leaves one out before another: TensorRT's layers have no absent inputs, so such a
/// node lists those it has (opgate_inputs, written by adapters/tensorrt/model.py). Empty: the first ones.
using GivenInputs = std::vector<std::int64_t>;
constexpr const char* kGivenInputs = "opgate_inputs";

Status read_given_inputs(const Signature& signature, const PluginFieldCollection& fields, GivenInputs& given) {
  for (int f = 0; f < fields.nbFields; ++f) {
    if (std::strcmp(fields.fields[f].name, kGivenInputs) != 0) continue;
    const auto numbers = numbers_of<std::int64_t>(fields.fields[f]);
    if (!numbers) return Status::invalid(std::string(kGivenInputs) + ": expected integers");
    for (const std::int64_t index : *numbers) {
      if (index < 0 || index >= static_cast<std::int64_t>(signature.inputs.size()) ||
          (!given.empty() && index <= given.back())) {
        return Status::invalid(std::string(kGivenInputs) + ": expected ascending places of inputs, got " +
                               std::to_string(index));
      }
      given.push_back(index);
    }
  }
  return {};
}

/// Attributes as fields that own their data: what is serialized is read back as what came from a model.
class Fields {
 public:
  Fields(const Signature& signature, const Attributes& attributes, const GivenInputs& given) {
    for (std::size_t i = 0; i < signature.attributes.size(); ++i) {
      const Attribute& attribute = signature.attributes[i];
      add(attribute.name.c_str(), field_type(attribute), attributes.at(i));
    }
    if (!given.empty()) add(kGivenInputs, PluginFieldType::kINT64, given);
    collection_ = {static_cast<int>(fields_.size()), fields_.data()};
  }

  const PluginFieldCollection* collection() const { return &collection_; }

  /// All values as one text without a zero in it.
  std::string text() const {
    constexpr const char* digits = "0123456789abcdef";
    std::string text;
    for (std::size_t i = 0; i < fields_.size(); ++i) {
      text += (i ? " " : "") + std::string(fields_[i].name) + "=";
      for (const char c : data_[i]) text += {digits[(c >> 4) & 15], digits[c & 15]};
    }
    return text;
  }

 private:
  void add(const char* name, PluginFieldType type, const AttributeValue& value) {
    std::string& bytes = data_.emplace_back();
    std::size_t count = 0;
    const auto append = [&](auto element) {
      bytes.append(reinterpret_cast<const char*>(&element), sizeof element);
      ++count;
    };
    const auto append_each = [&](const auto& elements, auto as) {
      for (const auto element : elements) append(static_cast<decltype(as)>(element));
    };
    std::visit(
        [&](const auto& held) {
          using Held = std::remove_cvref_t<decltype(held)>;
          if constexpr (std::is_same_v<Held, std::int64_t>)
            append(held);
          else if constexpr (std::is_same_v<Held, bool>)
            append(static_cast<std::int32_t>(held));
          else if constexpr (std::is_same_v<Held, double>)
            append(static_cast<float>(held));
          else if constexpr (std::is_same_v<Held, std::vector<std::int64_t>>)
            append_each(held, std::int64_t{});
          else if constexpr (std::is_same_v<Held, std::vector<bool>>)
            append_each(held, std::int32_t{});
          else if constexpr (std::is_same_v<Held, std::vector<double>>)
            append_each(held, float{});
          else if constexpr (std::is_same_v<Held, std::string>)
            bytes = held;
          else
            for (const std::string& line : held) bytes += (bytes.empty() ? "" : "\n") + line;
        },
        value);
    fields_.emplace_back(name, bytes.data(), type,
                         static_cast<int>(type == PluginFieldType::kCHAR ? bytes.size() : count));
  }

  std::deque<std::string> data_;  // fields point into it
  std::vector<PluginField> fields_;
  PluginFieldCollection collection_{};
};

// Shapes.

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
  ShapeBuilder(const Op& op, const InputLayout& layout, const Attributes& attributes, IExprBuilder& builder)
      : signature_(op.signature),
        layout_(layout),
        attributes_(attributes),
        builder_(builder),
        sizes_(signature_.slots.size()) {}

  Status bind(std::span<const DimsExprs> inputs, std::span<const DimsExprs> scalars) {
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
  Status outputs(std::span<DimsExprs> shapes) {
    OPGATE_RETURN_IF_ERROR(declare_sizes(shapes));
    for (std::size_t o = 0; o < signature_.outputs.size(); ++o) {
      DimsExprs& shape = shapes[o];
      shape.nbDims = 0;
      for (const OutputDim& dim : signature_.outputs[o].dims) {
        if (dim.kind == OutputDim::Kind::ellipsis) {
          for (const IDimensionExpr* size : ellipsis_) OPGATE_RETURN_IF_ERROR(append(shape, size));
          continue;
        }
        const IDimensionExpr* size = nullptr;
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
  static Status append(DimsExprs& shape, const IDimensionExpr* size) {
    if (shape.nbDims == nvinfer1::Dims::MAX_DIMS) return Status::invalid("TensorRT's tensors have at most 8 dims");
    shape.d[shape.nbDims++] = size;
    return {};
  }

  Status bind_scalar(int index, std::span<const DimsExprs> scalars, std::size_t place) {
    if (place >= scalars.size() || scalars[place].nbDims < 1) return layout_.missing_host_input(index);
    for (std::size_t s = 0; s < sizes_.size(); ++s) {
      if (signature_.slots[s].kind == Slot::Kind::scalar_input && signature_.slots[s].index == static_cast<int>(index))
        sizes_[s] = scalars[place].d[0];
    }
    return {};
  }

  Status bind_input(const Input& input, const DimsExprs& dims) {
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

  Status declare_sizes(std::span<DimsExprs> shapes) {
    std::size_t place = signature_.outputs.size();
    for (std::size_t s = 0; s < sizes_.size(); ++s) {
      if (signature_.slots[s].kind != Slot::Kind::kernel) continue;
      const IDimensionExpr* bound = nullptr;
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

  Status build(const Expr& expr, const IDimensionExpr*& size) {
    if (expr.kind == Expr::Kind::literal) {
      size = builder_.constant(expr.value);
      return {};
    }
    if (expr.kind == Expr::Kind::name) {
      size = sizes_[expr.slot];
      return size ? Status() : Status::invalid("size '" + signature_.slots[expr.slot].name + "' is not known");
    }
    const IDimensionExpr *a = nullptr, *b = nullptr;
    OPGATE_RETURN_IF_ERROR(build(expr.operands[0], a));
    OPGATE_RETURN_IF_ERROR(build(expr.operands[1], b));
    size = operation(expr.kind, *a, *b);
    return size ? Status() : Status::internal("TensorRT refuses an expression of sizes");
  }

  const IDimensionExpr* operation(Expr::Kind kind, const IDimensionExpr& a, const IDimensionExpr& b) {
    switch (kind) {
      case Expr::Kind::add: return builder_.operation(DimensionOperation::kSUM, a, b);
      case Expr::Kind::sub: return builder_.operation(DimensionOperation::kSUB, a, b);
      case Expr::Kind::mul: return builder_.operation(DimensionOperation::kPROD, a, b);
      case Expr::Kind::min: return builder_.operation(DimensionOperation::kMIN, a, b);
      case Expr::Kind::max: return builder_.operation(DimensionOperation::kMAX, a, b);
      case Expr::Kind::div: return builder_.operation(DimensionOperation::kFLOOR_DIV, a, b);
      case Expr::Kind::ceildiv: return builder_.operation(DimensionOperation::kCEIL_DIV, a, b);
      default: {  // the remainder: a - a / b * b
        const IDimensionExpr* quotient = builder_.operation(DimensionOperation::kFLOOR_DIV, a, b);
        const IDimensionExpr* whole = quotient ? builder_.operation(DimensionOperation::kPROD, *quotient, b) : nullptr;
        return whole ? builder_.operation(DimensionOperation::kSUB, a, *whole) : nullptr;
      }
    }
  }

  const Signature& signature_;
  const InputLayout& layout_;
  const Attributes& attributes_;
  IExprBuilder& builder_;
  std::vector<const IDimensionExpr*> sizes_;  ///< by slot
  std::vector<const IDimensionExpr*> ellipsis_;
  bool has_ellipsis_ = false;
};

// One call of a kernel.

/// Memory comes from TensorRT's allocator in the stream's order, sizes that only the kernel knows from the workspace.
class TrtEngine final : public Engine {
 public:
  struct Call {
    void* const* outputs;
    std::size_t output_count;  ///< without the size tensors
    void* workspace;
    cudaStream_t stream;
    nvinfer1::IGpuAllocator* allocator;  ///< nullptr: CUDA's own
  };

  explicit TrtEngine(const Call& call) : call_(call) {}

  ~TrtEngine() override {
    for (void* memory : scratch_) {
      if (call_.allocator)
        call_.allocator->deallocateAsync(memory, call_.stream);
      else
        cudaFreeAsync(memory, call_.stream);
    }
  }

  Status allocate_output(std::size_t index, DType, std::span<const std::int64_t>, void** data) override {
    *data = call_.outputs[index] ? call_.outputs[index] : &nothing_;  // an empty tensor may have no memory
    return {};
  }

  Status allocate_bounded(std::size_t index, DType dtype, std::span<const std::int64_t> dims, void** data) override {
    return allocate_output(index, dtype, dims, data);
  }

  Status allocate_sizes(std::size_t, std::int64_t** sizes) override {
    *sizes = static_cast<std::int64_t*>(call_.workspace);
    return {};
  }

  /// A size tensor is i32: the lower half of what the kernel has written.
  Status read_sizes(std::span<std::int64_t> sizes, bool& known) override {
    known = false;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      OPGATE_RETURN_IF_ERROR(cuda::copy(call_.outputs[call_.output_count + i],
                                        static_cast<const std::int64_t*>(call_.workspace) + i, sizeof(std::int32_t),
                                        call_.stream));
    }
    return {};
  }

  void parallel_for(std::size_t tasks, void (*task)(void*, std::size_t), void* user) override {
    for (std::size_t i = 0; i < tasks; ++i) task(user, i);
  }

  void* scratch(std::size_t bytes) override {
    constexpr std::uint64_t kAlignment = 256;
    void* memory = nullptr;
    if (call_.allocator)
      memory = call_.allocator->allocateAsync(bytes, kAlignment, 0, call_.stream);
    else if (cudaMallocAsync(&memory, bytes, call_.stream) != cudaSuccess)
      memory = nullptr;
    if (!memory) throw std::bad_alloc();
    scratch_.push_back(memory);
    return memory;
  }

  void* stream() override { return call_.stream; }

 private:
  Call call_;
  std::vector<void*> scratch_;
  char nothing_ = 0;
};

/// The inputs of a call as the core's views.
class CallInputs {
 public:
  /// `data` is nullptr where only the shapes are of interest.
  Status read(const Signature& signature, const InputLayout& layout, std::span<const PluginTensorDesc> descs,
              const PluginTensorDesc* outputs, const void* const* data) {
    std::vector<int> places;
    OPGATE_RETURN_IF_ERROR(layout.device(static_cast<int>(descs.size()), places));
    int last = -1;
    for (const int place : places) last = std::max(last, place);
    for (const int place : layout.host()) last = std::max(last, place);
    pointers_.assign(static_cast<std::size_t>(last + 1), nullptr);
    for (std::size_t i = 0; i < places.size(); ++i) {
      const Input& input = signature.inputs[places[i]];
      const auto dtype = dtype_of_data(descs[i].type);
      if (!dtype) return Status::invalid("input '" + input.name + "' has a type that the ops don't know");
      const auto& dims = descs[i].dims;
      const Tensor& tensor =
          tensors_.emplace_back(data ? const_cast<void*>(data[i]) : nullptr, *dtype,
                                std::span(dims.d, static_cast<std::size_t>(dims.nbDims)), Device::cuda);
      if (!pointers_[places[i]])
        pointers_[places[i]] = &tensor;
      else
        pointers_.push_back(&tensor);  // another one of a variadic input, which is the last
    }
    for (const int place : layout.host()) OPGATE_RETURN_IF_ERROR(read_scalar(signature, place, outputs));
    return {};
  }

  InputPointers pointers() const {
    InputPointers pointers;
    for (const Tensor* tensor : pointers_) pointers.push_back(tensor);
    return pointers;
  }

 private:
  /// TensorRT gives the values of shape inputs to the shapes only. Where one is an output's dim it is read there.
  Status read_scalar(const Signature& signature, int index, const PluginTensorDesc* outputs) {
    const Input& input = signature.inputs[index];
    for (std::size_t o = 0; o < signature.outputs.size(); ++o) {
      const std::vector<OutputDim>& dims = signature.outputs[o].dims;
      if (std::ranges::any_of(dims, [](const OutputDim& dim) { return dim.kind == OutputDim::Kind::ellipsis; }))
        continue;
      for (std::size_t d = 0; d < dims.size(); ++d) {
        if (dims[d].kind != OutputDim::Kind::expr || dims[d].expr.kind != Expr::Kind::name) continue;
        const Slot& slot = signature.slots[dims[d].expr.slot];
        if (slot.kind != Slot::Kind::scalar_input || slot.index != index) continue;
        std::int64_t& value = scalars_.emplace_back(outputs[o].dims.d[d]);
        if (input.type.dtype == DType::i32) {
          const auto narrow = static_cast<std::int32_t>(value);
          std::memcpy(&value, &narrow, sizeof narrow);
        }
        pointers_[index] = &tensors_.emplace_back(&value, input.type.dtype, std::span<const std::int64_t>());
        return {};
      }
    }
    return Status::invalid("input '" + input.name + "' is read on the host, and TensorRT gives its value to a kernel " +
                           "only where it is an output's dim");
  }

  std::deque<Tensor> tensors_;
  std::deque<std::int64_t> scalars_;
  std::vector<const Tensor*> pointers_;
};

// The plugin.

class Plugin final : public nvinfer1::IPluginV3,
                     public nvinfer1::IPluginV3OneCore,
                     public nvinfer1::IPluginV3OneBuild,
                     public nvinfer1::IPluginV3OneRuntime {
 public:
  Plugin(const Op& op, const Attributes& attributes, const GivenInputs& given)
      : op_(op),
        attributes_(attributes),
        given_(given),
        layout_(op.signature, given),
        fields_(op.signature, attributes_, given),
        metadata_(fields_.text()) {
    for (const Slot& slot : op.signature.slots) size_tensors_ += slot.kind == Slot::Kind::kernel;
  }

  // IPluginV3

  nvinfer1::IPluginCapability* getCapabilityInterface(nvinfer1::PluginCapabilityType type) noexcept override {
    switch (type) {
      case nvinfer1::PluginCapabilityType::kCORE: return static_cast<nvinfer1::IPluginV3OneCore*>(this);
      case nvinfer1::PluginCapabilityType::kBUILD: return static_cast<nvinfer1::IPluginV3OneBuild*>(this);
      case nvinfer1::PluginCapabilityType::kRUNTIME: return static_cast<nvinfer1::IPluginV3OneRuntime*>(this);
    }
    return nullptr;
  }

  Plugin* clone() noexcept override {
    std::unique_ptr<Plugin> made;
    guarded(op_, [&]() -> Status {
      made = std::make_unique<Plugin>(op_, attributes_, given_);
      made->allocator_ = allocator_;
      return {};
    });
    return made.release();
  }

  // IPluginV3OneCore

  const char* getPluginName() const noexcept override { return op_.signature.name.c_str(); }
  const char* getPluginVersion() const noexcept override { return "1"; }
  const char* getPluginNamespace() const noexcept override { return ""; }

  // IPluginV3OneBuild

  int getNbOutputs() const noexcept override { return static_cast<int>(op_.signature.outputs.size()) + size_tensors_; }

  int getOutputDataTypes(DataType* outputs, int count, const DataType* inputs,
                         int input_count) const noexcept override {
    return guarded(op_, [&]() -> Status {
      std::vector<std::optional<DType>> types(op_.signature.type_variables.size());
      std::vector<int> places;
      OPGATE_RETURN_IF_ERROR(layout_.device(input_count, places));
      for (int i = 0; i < input_count; ++i) {
        const int variable = op_.signature.inputs[places[i]].type.variable;
        if (variable >= 0 && !types[variable]) types[variable] = dtype_of_data(inputs[i]);
      }
      for (int o = 0; o < count; ++o) {
        if (o >= static_cast<int>(op_.signature.outputs.size())) {
          outputs[o] = DataType::kINT32;  // what TensorRT asks of a size tensor
          continue;
        }
        const ElementType& type = op_.signature.outputs[o].type;
        const std::optional<DType> dtype = type.variable < 0 ? type.dtype : types[type.variable];
        const auto made = dtype ? data_type(*dtype) : std::nullopt;
        if (!made) return Status::invalid("the type of output '" + op_.signature.outputs[o].name + "' is not known");
        outputs[o] = *made;
      }
      return {};
    });
  }

  int getOutputShapes(const DimsExprs* inputs, int input_count, const DimsExprs* scalars, int scalar_count,
                      DimsExprs* outputs, int output_count, IExprBuilder& builder) noexcept override {
    return guarded(op_, [&]() -> Status {
      ShapeBuilder shapes(op_, layout_, attributes_, builder);
      OPGATE_RETURN_IF_ERROR(shapes.bind({inputs, static_cast<std::size_t>(input_count)},
                                         {scalars, static_cast<std::size_t>(scalar_count)}));
      return shapes.outputs({outputs, static_cast<std::size_t>(output_count)});
    });
  }

  bool supportsFormatCombination(int place, const DynamicPluginTensorDesc* tensors, int input_count,
                                 int) noexcept override {
    bool supported = false;
    guarded(op_, [&]() -> Status {
      std::vector<int> places;
      OPGATE_RETURN_IF_ERROR(layout_.device(input_count, places));
      supported = supports(place, tensors, places);
      return {};
    });
    return supported;
  }

  int configurePlugin(const DynamicPluginTensorDesc*, int, const DynamicPluginTensorDesc*, int) noexcept override {
    return 0;
  }

  std::size_t getWorkspaceSize(const DynamicPluginTensorDesc*, int, const DynamicPluginTensorDesc*,
                               int) const noexcept override {
    return static_cast<std::size_t>(size_tensors_) * sizeof(std::int64_t);
  }

  const char* getTimingCacheID() noexcept override { return metadata_.c_str(); }
  const char* getMetadataString() noexcept override { return metadata_.c_str(); }

  // IPluginV3OneRuntime

  int onShapeChange(const PluginTensorDesc* inputs, int input_count, const PluginTensorDesc* outputs,
                    int) noexcept override {
    input_count_ = static_cast<std::size_t>(input_count);
    return guarded(op_, [&]() -> Status {
      CallInputs call;
      OPGATE_RETURN_IF_ERROR(call.read(op_.signature, layout_, {inputs, input_count_}, outputs, nullptr));
      Binding binding;
      return bind(op_.signature, call.pointers(), attributes_, binding);
    });
  }

  int enqueue(const PluginTensorDesc* inputs, const PluginTensorDesc* outputs, const void* const* input_data,
              void* const* output_data, void* workspace, cudaStream_t stream) noexcept override {
    return guarded(op_, [&]() -> Status {
      CallInputs call;
      OPGATE_RETURN_IF_ERROR(call.read(op_.signature, layout_, {inputs, input_count_}, outputs, input_data));
      TrtEngine engine({output_data, op_.signature.outputs.size(), workspace, stream, allocator_});
      return invoke(op_, Device::cuda, call.pointers(), attributes_, engine);
    });
  }

  nvinfer1::IPluginV3* attachToContext(nvinfer1::IPluginResourceContext* context) noexcept override {
    Plugin* attached = clone();
    if (attached && context) attached->allocator_ = context->getGpuAllocator();
    return attached;
  }

  const PluginFieldCollection* getFieldsToSerialize() noexcept override { return fields_.collection(); }

 private:
  /// `places` are the inputs' in the signature.
  bool supports(int place, const DynamicPluginTensorDesc* tensors, const std::vector<int>& places) const {
    const PluginTensorDesc& desc = tensors[place].desc;
    if (desc.format != nvinfer1::TensorFormat::kLINEAR) return false;
    const int inputs = static_cast<int>(places.size()), output = place - inputs;
    if (output >= static_cast<int>(op_.signature.outputs.size())) return desc.type == DataType::kINT32;
    const ElementType& type =
        place < inputs ? op_.signature.inputs[places[place]].type : op_.signature.outputs[output].type;
    if (type.variable < 0) return data_type(type.dtype) == desc.type;
    for (int i = 0; i < std::min(place, inputs); ++i) {  // the first tensor of the variable decides
      if (op_.signature.inputs[places[i]].type.variable == type.variable) return tensors[i].desc.type == desc.type;
    }
    return std::ranges::any_of(op_.signature.type_variables[type.variable].dtypes,
                               [&](DType dtype) { return data_type(dtype) == desc.type; });
  }

  const Op& op_;
  Attributes attributes_;
  GivenInputs given_;
  InputLayout layout_;
  Fields fields_;
  std::string metadata_;
  int size_tensors_ = 0;
  std::size_t input_count_ = 0;  ///< of the shapes that onShapeChange has told
  nvinfer1::IGpuAllocator* allocator_ = nullptr;
};

class Creator final : public nvinfer1::IPluginCreatorV3One {
 public:
  explicit Creator(const Op& op) : op_(op) {
    for (const Attribute& attribute : op.signature.attributes)
      names_.emplace_back(attribute.name.c_str(), nullptr, field_type(attribute), 1);
    names_.emplace_back(kGivenInputs, nullptr, PluginFieldType::kINT64, 1);
    collection_ = {static_cast<int>(names_.size()), names_.data()};
  }

  nvinfer1::IPluginV3* createPlugin(const char*, const PluginFieldCollection* fields,
                                    nvinfer1::TensorRTPhase) noexcept override {
    std::unique_ptr<Plugin> made;
    guarded(op_, [&]() -> Status {
      OPGATE_RETURN_IF_ERROR(check_types());
      const PluginFieldCollection all = fields ? *fields : PluginFieldCollection{};
      Attributes attributes;
      GivenInputs given;
      OPGATE_RETURN_IF_ERROR(read_attributes(op_.signature, all, attributes));
      OPGATE_RETURN_IF_ERROR(read_given_inputs(op_.signature, all, given));
      made = std::make_unique<Plugin>(op_, attributes, given);
      return {};
    });
    return made.release();
  }

  const PluginFieldCollection* getFieldNames() noexcept override { return &collection_; }
  const char* getPluginName() const noexcept override { return op_.signature.name.c_str(); }
  const char* getPluginVersion() const noexcept override { return "1"; }
  const char* getPluginNamespace() const noexcept override { return ""; }

 private:
  /// Tensors of a type that TensorRT doesn't have can't get as far as a plugin.
  Status check_types() const {
    const auto check = [&](const std::string& what, const std::string& name, const ElementType& type) -> Status {
      std::span<const DType> dtypes(&type.dtype, 1);
      if (type.variable >= 0) dtypes = op_.signature.type_variables[type.variable].dtypes;
      if (std::ranges::any_of(dtypes, [](DType dtype) { return data_type(dtype).has_value(); })) return {};
      return Status::invalid(what + " '" + name + "': TensorRT has no tensors of type " +
                             std::string(opgate::name_of(dtypes[0])));
    };
    for (const Input& input : op_.signature.inputs) OPGATE_RETURN_IF_ERROR(check("input", input.name, input.type));
    for (const Output& output : op_.signature.outputs)
      OPGATE_RETURN_IF_ERROR(check("output", output.name, output.type));
    return {};
  }

  const Op& op_;
  std::vector<PluginField> names_;
  PluginFieldCollection collection_{};
};

}  // namespace
}  // namespace opgate

extern "C" __attribute__((visibility("default"))) void setLoggerFinder(nvinfer1::ILoggerFinder* finder) {
  opgate::logger_finder = finder;
}

extern "C" __attribute__((visibility("default"))) nvinfer1::IPluginCreatorInterface* const* getCreators(
    std::int32_t& count) {
  using namespace opgate;
  static std::deque<Creator> creators;
  static std::vector<nvinfer1::IPluginCreatorInterface*> pointers;
  static std::once_flag once;
  std::call_once(once, [] {
    for (const std::string& error : Table::instance().errors()) log_error(error);
    for (const Op& op : Table::instance().ops()) {
      if (op.kernel(Device::cuda)) pointers.push_back(&creators.emplace_back(op));
    }
  });
  count = static_cast<std::int32_t>(pointers.size());
  return pointers.data();
}
