#include "c_call.h"

#include <deque>

#include "data_types.h"

namespace opgate {
namespace {

/// The values of one attribute, as C reads them.
class AttributeValues {
 public:
  AttributeValues(const Attribute& declared, const AttributeValue& value) {
    attribute_.name = declared.name.c_str();
    attribute_.is_list = declared.list;
    std::visit([this](const auto& given) { take(given); }, value);
  }

  const OpgateAttribute& attribute() const { return attribute_; }

 private:
  template <typename T>
  void point(int kind, const T* values, std::size_t count) {
    attribute_.kind = kind;
    attribute_.values = values;
    attribute_.count = count;
  }

  void take(const std::int64_t& value) { point(OPGATE_INTEGERS, &value, 1); }
  void take(const double& value) { point(OPGATE_NUMBERS, &value, 1); }
  void take(const bool& value) { take(std::vector<bool>{value}); }
  void take(const std::string& value) { take(std::vector<std::string>{value}); }
  void take(const std::vector<std::int64_t>& values) { point(OPGATE_INTEGERS, values.data(), values.size()); }
  void take(const std::vector<double>& values) { point(OPGATE_NUMBERS, values.data(), values.size()); }
  void take(const std::vector<bool>& values) {
    bytes_.assign(values.begin(), values.end());
    point(OPGATE_BOOLEANS, bytes_.data(), bytes_.size());
  }
  void take(const std::vector<std::string>& values) {
    held_ = values;
    for (const std::string& text : held_) texts_.push_back({text.data(), text.size()});
    point(OPGATE_TEXTS, texts_.data(), texts_.size());
  }

  OpgateAttribute attribute_{};
  std::vector<std::uint8_t> bytes_;
  std::vector<std::string> held_;
  std::vector<OpgateText> texts_;
};

/// A call as the kernel sees it. The functions find this object behind the pointer that the kernel has.
class CCall : private OpgateCall {
 public:
  CCall(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out)
      : OpgateCall{}, context_(context), in_(in), out_(out), output_tensors_(out.count()) {
    OpgateCall::version = OPGATE_CALL_VERSION;
    OpgateCall::op = in.signature().name.c_str();
    OpgateCall::stream = context.stream();
    take_inputs();
    take_attributes(attributes);
    OpgateCall::output_count = out.count();
    OpgateCall::output = [](OpgateCall* call, std::size_t index) { return of(call).output_at(index); };
    OpgateCall::set_size = [](OpgateCall* call, const char* name, std::int64_t value) {
      return of(call).noted([&](CCall& self) { return self.out_.bind(name, value); });
    };
    OpgateCall::set_text = [](OpgateCall* call, std::size_t output, std::size_t element, OpgateText text) {
      of(call).noted([&](CCall& self) {
        self.out_.at(output).data<std::string>()[element].assign(text.characters, text.size);
        return Status();
      });
    };
    OpgateCall::parallel_for = [](OpgateCall* call, std::int64_t count, std::int64_t grain,
                                  void (*body)(void*, std::int64_t, std::int64_t), void* user) {
      of(call).context_.parallel_for(count, grain,
                                     [&](std::int64_t begin, std::int64_t end) { body(user, begin, end); });
    };
    OpgateCall::scratch = [](OpgateCall* call, std::size_t bytes) {
      void* memory = nullptr;
      of(call).noted([&](CCall& self) {
        memory = self.context_.scratch<char>(static_cast<std::int64_t>(bytes)).data();
        return Status();
      });
      return memory;
    };
    OpgateCall::fail = [](OpgateCall* call, int code, const char* message) {
      return of(call).noted([&](CCall&) {
        return code == OPGATE_INVALID_ARGUMENT ? Status::invalid(message) : Status::internal(message);
      });
    };
  }
  CCall(const CCall&) = delete;
  CCall& operator=(const CCall&) = delete;

  Status run(OpgateKernel kernel) {
    const int result = kernel(this);
    if (!status_.ok()) return std::move(status_);
    return result ? Status::internal("the kernel returned " + std::to_string(result) + " and no message") : Status();
  }

 private:
  static CCall& of(OpgateCall* call) { return *static_cast<CCall*>(call); }

  /// Keeps the first status of `step` that is an error. No exception may reach C.
  template <typename Step>
  int noted(Step&& step) {
    Status status;
    try {
      status = step(*this);
    } catch (const std::bad_alloc&) {
      status = Status::internal("out of memory");
    } catch (const std::exception& error) {
      status = Status::internal(error.what());
    }
    const int code = status.ok()                                     ? 0
                     : status.code() == StatusCode::invalid_argument ? OPGATE_INVALID_ARGUMENT
                                                                     : OPGATE_INTERNAL;
    if (code && status_.ok()) status_ = std::move(status);
    return code;
  }

  OpgateTensor tensor(void* data, DType dtype, std::span<const std::int64_t> dims, Device device) const {
    const OpgateDevice on{device == Device::cpu ? 1 : 2, device == Device::cpu ? 0 : context_.ordinal()};
    return {
        data,    on, static_cast<std::int32_t>(dims.size()), kDataTypes[static_cast<std::size_t>(dtype)], dims.data(),
        nullptr, 0};
  }

  void take_inputs() {
    const InputPointers& tensors = in_.tensors();
    input_tensors_.reserve(tensors.size());
    for (const Tensor* const given : tensors) {
      if (!given) {
        input_pointers_.push_back(nullptr);
        continue;
      }
      void* data = const_cast<void*>(given->raw());  // C has no tensor of constant elements
      if (given->dtype() == DType::str) {
        auto& texts = texts_.emplace_back();
        for (const std::string_view text : given->span<std::string_view>()) texts.push_back({text.data(), text.size()});
        data = texts.data();
      }
      input_tensors_.push_back(tensor(data, given->dtype(), given->dims(), given->device()));
      input_pointers_.push_back(&input_tensors_.back());
    }
    // An engine may leave out absent inputs at the end.
    if (input_pointers_.size() < in_.count()) input_pointers_.resize(in_.count());
    OpgateCall::input_count = input_pointers_.size();
    OpgateCall::inputs = input_pointers_.data();
  }

  void take_attributes(const Attributes& attributes) {
    const auto& declared = in_.signature().attributes;
    for (std::size_t i = 0; i < declared.size(); ++i)
      attributes_.push_back(values_.emplace_back(declared[i], attributes.at(i)).attribute());
    OpgateCall::attribute_count = attributes_.size();
    OpgateCall::attributes = attributes_.data();
  }

  const OpgateTensor* output_at(std::size_t index) {
    const MutableTensor* const created = index < out_.count() ? out_.created(index) : nullptr;
    if (!created) return nullptr;
    void* const data = created->dtype() == DType::str ? nullptr : created->raw();
    output_tensors_[index] = tensor(data, created->dtype(), created->dims(), created->device());
    return &output_tensors_[index];
  }

  Context& context_;
  const Inputs& in_;
  Outputs& out_;
  Status status_;
  std::vector<OpgateTensor> input_tensors_, output_tensors_;
  std::vector<const OpgateTensor*> input_pointers_;
  std::deque<std::vector<OpgateText>> texts_;
  std::deque<AttributeValues> values_;
  std::vector<OpgateAttribute> attributes_;
};

}  // namespace

Status run_c_kernel(OpgateKernel kernel, Context& context, const Inputs& in, const Attributes& attributes,
                    Outputs& out) {
  return CCall(context, in, attributes, out).run(kernel);
}

}  // namespace opgate
