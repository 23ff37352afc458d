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
#include "shapes.h"

namespace opgate::tensorrt {
namespace {

using nvinfer1::DataType;
using nvinfer1::DimsExprs;
using nvinfer1::DynamicPluginTensorDesc;
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

  Status allocate_output(std::size_t index, DType dtype, std::span<const std::int64_t> dims, void** data) override {
    *data = call_.outputs[index];
    if (*data) return {};
    const std::size_t bytes = bytes_of(dtype, dims);  // nobody wants it, or it is empty
    *data = bytes ? scratch(bytes) : &nothing_;
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
      return Status::invalid(what + " '" + name + "': TensorRT's plugins take no tensors of type " +
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
}  // namespace opgate::tensorrt

extern "C" __attribute__((visibility("default"))) void setLoggerFinder(nvinfer1::ILoggerFinder* finder) {
  opgate::tensorrt::logger_finder = finder;
}

extern "C" __attribute__((visibility("default"))) nvinfer1::IPluginCreatorInterface* const* getCreators(
    std::int32_t& count) {
  using namespace opgate;
  using namespace opgate::tensorrt;
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
