#include "node.h"

#include <cstdlib>
#include <limits>

#include "adapters/tensorflow_names.h"

namespace opgate::litert {
namespace {

/// LiteRT's types by DType.
constexpr std::array<TfLiteType, kDTypeCount> kTypes = {kTfLiteFloat16, kTfLiteBFloat16, kTfLiteFloat32, kTfLiteFloat64,
                                                        kTfLiteInt8,    kTfLiteUInt8,    kTfLiteInt32,   kTfLiteInt64,
                                                        kTfLiteBool,    kTfLiteString};

std::optional<DType> dtype_of(TfLiteType type) {
  const auto found = std::ranges::find(kTypes, type);
  return found == kTypes.end() ? std::nullopt : std::optional(static_cast<DType>(found - kTypes.begin()));
}

const Input& input_at(const Signature& signature, std::size_t index) {
  return signature.inputs[std::min(index, signature.inputs.size() - 1)];
}

Status check_type(const Input& input, const TfLiteTensor& tensor) {
  if (dtype_of(tensor.type)) return {};
  return Status::invalid("input '" + input.name + "': a tensor of LiteRT's type " + std::to_string(tensor.type) +
                         ", which no signature can state");
}

/// An input as a Tensor. Can't be moved, because the Tensor points into it.
class InputValue {
 public:
  InputValue(const Input& input, const TfLiteTensor& tensor) {
    for (int i = 0; i < tensor.dims->size; ++i) dims_.push_back(tensor.dims->data[i]);
    tensor_ = Tensor(tensor.data.raw_const, *dtype_of(tensor.type), dims_, Device::cpu, input.name);
  }
  InputValue(const InputValue&) = delete;
  InputValue& operator=(const InputValue&) = delete;

  const Tensor& tensor() const { return tensor_; }

 private:
  Tensor tensor_;
  Dims dims_;
};

/// Gives a tensor its dims. LiteRT allocates a dynamic tensor at once, and any other before the run.
Status resize(TfLiteContext& context, TfLiteTensor& tensor, std::span<const std::int64_t> dims) {
  // LiteRT frees the array with free().
  auto* sizes = static_cast<TfLiteIntArray*>(std::malloc(sizeof(TfLiteIntArray) + dims.size() * sizeof(int)));
  if (!sizes) throw std::bad_alloc();
  sizes->size = static_cast<int>(dims.size());
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] > std::numeric_limits<int>::max()) {
      std::free(sizes);
      return Status::invalid("LiteRT's tensors have sizes below 2^31, got " + dims_text(dims));
    }
    sizes->data[i] = static_cast<int>(dims[i]);
  }
  if (context.ResizeTensor(&context, &tensor, sizes) == kTfLiteOk) return {};
  return Status::internal("LiteRT can't make a tensor of shape " + dims_text(dims));
}

bool has_dims(const TfLiteTensor& tensor, std::span<const std::int64_t> dims) {
  return tensor.dims &&
         std::ranges::equal(std::span(tensor.dims->data, static_cast<std::size_t>(tensor.dims->size)), dims);
}

class LiteRtEngine final : public Engine {
 public:
  LiteRtEngine(TfLiteContext& context, const Signature& signature, const std::vector<int>& outputs, Threads& threads)
      : context_(context), signature_(signature), outputs_(outputs), threads_(threads) {}

  ~LiteRtEngine() override {
    for (void* memory : scratch_) std::free(memory);
  }

  Status allocate_output(std::size_t index, DType dtype, std::span<const std::int64_t> dims, void** data) override {
    *data = nullptr;
    if (outputs_[index] < 0) {  // nobody reads it
      if (!signature_.outputs[index].optional) *data = scratch(bytes_of(dtype, dims) + 1);
      return {};
    }
    TfLiteTensor& tensor = context_.tensors[outputs_[index]];
    if (tensor.allocation_type == kTfLiteDynamic) {
      OPGATE_RETURN_IF_ERROR(resize(context_, tensor, dims));
    } else if (!has_dims(tensor, dims)) {
      return Status::internal("LiteRT has memory for other dims");
    }
    if (tensor.bytes < bytes_of(dtype, dims)) return Status::internal("LiteRT has less memory for it");
    *data = tensor.data.raw ? tensor.data.raw : &nothing_;  // a tensor without elements has no memory
    return {};
  }

  void parallel_for(std::size_t tasks, void (*task)(void*, std::size_t), void* user) override {
    threads_.run(tasks, task, user);
  }

  void* scratch(std::size_t bytes) override {
    void* memory = nullptr;
    if (posix_memalign(&memory, 64, bytes) != 0) throw std::bad_alloc();
    scratch_.push_back(memory);
    return memory;
  }

 private:
  TfLiteContext& context_;
  const Signature& signature_;
  const std::vector<int>& outputs_;
  Threads& threads_;
  std::vector<void*> scratch_;
  char nothing_ = 0;
};

/// The inputs of a node before it runs.
class KnownInputs {
 public:
  Status read(const Signature& signature, const TfLiteContext& context, const std::vector<int>& places) {
    for (std::size_t i = 0; i < places.size(); ++i) {
      constants_.push_back(nullptr);
      KnownInput<SymbolicSize>& known = known_.emplace_back();
      if (places[i] < 0) continue;
      const Input& input = input_at(signature, i);
      const TfLiteTensor& tensor = context.tensors[places[i]];
      OPGATE_RETURN_IF_ERROR(check_type(input, tensor));
      std::vector<SymbolicSize>& sizes = sizes_.emplace_back();
      for (int axis = 0; axis < tensor.dims->size; ++axis) sizes.push_back(Symbols::constant(tensor.dims->data[axis]));
      known = {true, dtype_of(tensor.type), sizes, std::nullopt};
      if (tensor.allocation_type != kTfLiteMmapRo) continue;
      constants_.back() = &values_.emplace_back(input, tensor).tensor();
      if (const auto scalar = input.host ? integer_scalar(*constants_.back()) : std::nullopt)
        known.value = Symbols::constant(*scalar);
    }
    return {};
  }

  std::span<const KnownInput<SymbolicSize>> known() const { return known_; }

  NodeFacts facts(const SymbolicWalk& walk) const {
    NodeFacts facts;
    for (const std::optional<SymbolicSize>& size : walk.binding().sizes)
      facts.sizes.push_back(size ? size->number : std::nullopt);
    facts.types = walk.binding().types;
    const auto& declared = walk.signature().inputs;
    for (std::size_t i = 0; i < declared.size(); ++i) {
      facts.present.push_back(i < known_.size() && known_[i].present);
      facts.constants.push_back(i < known_.size() && !declared[i].variadic ? constants_[i] : nullptr);
    }
    return facts;
  }

 private:
  std::vector<KnownInput<SymbolicSize>> known_;
  std::vector<const Tensor*> constants_;
  std::deque<std::vector<SymbolicSize>> sizes_;  // what `known_` points into
  std::deque<InputValue> values_;
};

/// The value of an attribute as the options have it. nullopt if they have it with another type.
std::optional<AttributeValue> value_of(const Attribute& attribute, const OptionValue& option) {
  return std::visit(
      [&]<typename Held>(const Held& held) -> std::optional<AttributeValue> {
        const bool number = attribute.kind == Attribute::Kind::number;
        if constexpr (std::is_same_v<Held, std::monostate>) {
          return std::nullopt;
        } else if constexpr (std::is_same_v<Held, EmptyList>) {
          if (!attribute.list) return std::nullopt;
          if (number) return std::vector<double>();
          if (attribute.kind == Attribute::Kind::boolean) return std::vector<bool>();
          if (attribute.kind == Attribute::Kind::text) return std::vector<std::string>();
          return std::vector<std::int64_t>();
        } else if constexpr (std::is_same_v<Held, std::int64_t>) {
          if (attribute.kind == Attribute::Kind::boolean) return held != 0;
          if (number) return static_cast<double>(held);
          return held;
        } else if constexpr (std::is_same_v<Held, double>) {
          return static_cast<double>(static_cast<float>(held));
        } else if constexpr (std::is_same_v<Held, std::vector<std::int64_t>>) {
          if (number) return std::vector<double>(held.begin(), held.end());
          if (attribute.kind == Attribute::Kind::boolean) return std::vector<bool>(held.begin(), held.end());
          return held;
        } else if constexpr (std::is_same_v<Held, std::vector<double>>) {
          std::vector<double> rounded;
          for (const double element : held) rounded.push_back(static_cast<float>(element));
          return rounded;
        } else {
          return held;
        }
      },
      option);
}

}  // namespace

const Op* op_of(const char* custom_name) {
  if (!custom_name) return nullptr;
  for (const Op& op : Table::instance().ops()) {
    if (op.has_kernel(Device::cpu) && tf::type_name(op.signature) == custom_name) return &op;
  }
  return nullptr;
}

NodeKernel::NodeKernel(const Op& op, const TfLiteNode& node, const TfLiteIntArray& read, Threads& threads)
    : op_(op), threads_(threads) {
  made_ = named(op_, [&]() -> Status {
    const auto* first = static_cast<const std::uint8_t*>(node.custom_initial_data);
    const auto size = static_cast<std::size_t>(std::max(node.custom_initial_data_size, 0));
    OPGATE_RETURN_IF_ERROR(read_options({first, first ? size : 0}, options_));
    OPGATE_RETURN_IF_ERROR(read_attributes());
    const tf::NodeNames names(op_.signature);
    const bool variadic = !op_.signature.inputs.empty() && op_.signature.inputs.back().variadic;
    OPGATE_RETURN_IF_ERROR(read_places(*node.inputs, names.input_lengths, variadic, inputs_));
    OPGATE_RETURN_IF_ERROR(read_places(*node.outputs, names.output_lengths, false, outputs_));
    const std::span wanted(read.data, static_cast<std::size_t>(read.size));
    for (int& place : outputs_) {
      if (!std::ranges::count(wanted, place)) place = -1;
    }
    return {};
  });
}

Status NodeKernel::read_attributes() {
  const Signature& signature = op_.signature;
  const tf::NodeNames names(signature);
  std::vector<std::optional<AttributeValue>> values(signature.attributes.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Attribute& attribute = signature.attributes[i];
    auto option = options_.find(names.attributes[i]);
    if (option == options_.end()) option = options_.find(attribute.name);  // not made from a model of TensorFlow
    if (option == options_.end()) continue;
    values[i] = value_of(attribute, option->second);
    if (!values[i]) {
      return Status::invalid("attribute '" + attribute.name + "': expected " + type_text(attribute) +
                             ", got a value of another type");
    }
  }
  return Attributes::make(signature, std::move(values), attributes_);
}

/// A model that was made from one of TensorFlow's states the lengths of lists. In any other, -1 stands for an absent
/// tensor, and absent ones at the end may be left out.
Status NodeKernel::read_places(const TfLiteIntArray& tensors, const std::vector<std::string>& lengths, bool variadic,
                               Places& places) const {
  int next = 0;
  const auto take = [&] { return next < tensors.size ? tensors.data[next++] : -1; };
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const auto option = lengths[i].empty() ? options_.end() : options_.find(lengths[i]);
    if (variadic && i + 1 == lengths.size()) {
      while (next < tensors.size) places.push_back(take());
    } else if (option == options_.end()) {
      places.push_back(take());
    } else {
      const auto* length = std::get_if<std::int64_t>(&option->second);
      if (!length || *length < 0 || *length > 1)
        return Status::invalid("attribute '" + lengths[i] + "': expected 0 or 1");
      places.push_back(*length ? take() : -1);
    }
  }
  if (next == tensors.size) return {};
  return Status::invalid("the node has " + std::to_string(tensors.size) + " tensors, the signature fewer");
}

Status NodeKernel::prepare(TfLiteContext& context) {
  OPGATE_RETURN_IF_ERROR(made_);
  return named(op_, [&]() -> Status {
    KnownInputs inputs;
    OPGATE_RETURN_IF_ERROR(inputs.read(op_.signature, context, inputs_));
    SymbolicWalk walk(op_.signature);
    OPGATE_RETURN_IF_ERROR(walk.bind(inputs.known(), [&](int attribute) -> std::optional<std::int64_t> {
      return std::get<std::int64_t>(attributes_.at(static_cast<std::size_t>(attribute)));
    }));
    const NodeFacts facts = inputs.facts(walk);
    OPGATE_RETURN_IF_ERROR(check_node(op_, Device::cpu, attributes_, facts.sizes));
    OPGATE_RETURN_IF_ERROR(check_outputs(context, walk));
    std::shared_ptr<const void> kernel;
    return kernels_.find(op_, Device::cpu, attributes_, facts, kernel);
  });
}

Status NodeKernel::check_outputs(TfLiteContext& context, SymbolicWalk& walk) {
  std::deque<std::string> names;
  std::vector<SymbolicShape> shapes;
  OPGATE_RETURN_IF_ERROR(output_shapes(walk, names, shapes));
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const Output& output = op_.signature.outputs[i];
    if (outputs_[i] < 0) continue;
    TfLiteTensor& tensor = context.tensors[outputs_[i]];
    const std::optional<DType> dtype = walk.dtype_of(output.type);
    if (!dtype || tensor.type != kTypes[static_cast<std::size_t>(*dtype)]) {
      return Status::invalid("output '" + output.name + "': expected " +
                             std::string(dtype ? name_of(*dtype) : "a type") + ", the model has LiteRT's type " +
                             std::to_string(tensor.type));
    }
    Dims dims;
    bool known = shapes[i].has_value();
    for (std::size_t axis = 0; known && axis < shapes[i]->size(); ++axis) {
      known = (*shapes[i])[axis].number.has_value();
      if (known) dims.push_back(*(*shapes[i])[axis].number);
    }
    if (known && tensor.allocation_type != kTfLiteDynamic) {
      OPGATE_RETURN_IF_ERROR(resize(context, tensor, dims));
    } else if (tensor.allocation_type != kTfLiteDynamic) {
      tensor.allocation_type = kTfLiteDynamic;
      tensor.data.raw = nullptr;
    }
  }
  return {};
}

Status NodeKernel::invoke(TfLiteContext& context) {
  return named(op_, [&]() -> Status {
    std::deque<InputValue> values;
    InputPointers inputs;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      if (inputs_[i] < 0) {
        inputs.push_back(nullptr);
        continue;
      }
      values.emplace_back(input_at(op_.signature, i), context.tensors[inputs_[i]]);
      inputs.push_back(&values.back().tensor());
    }
    LiteRtEngine engine(context, op_.signature, outputs_, threads_);
    return opgate::invoke(op_, Device::cpu, inputs, attributes_, engine, &kernels_);
  });
}

}  // namespace opgate::litert
