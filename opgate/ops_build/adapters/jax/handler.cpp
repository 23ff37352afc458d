// Runs an op for XLA, which JAX compiles to. All ops have one handler: the attribute `call` has the bytes of a call,
// which functions.py packs. JAX makes the outputs, with the dims that functions.py finds by the signature.
#include <algorithm>
#include <bit>
#include <cfenv>

#include "adapters/direct.h"
#include "op_call/packed_attributes.h"
#include "op_call/running_op.h"
#include "xla_ffi.h"

namespace opgate::xla {
namespace {

std::optional<DType> dtype_of(int number) {
  switch (number) {
    case 1: return DType::boolean;
    case 2: return DType::i8;
    case 4: return DType::i32;
    case 5: return DType::i64;
    case 6: return DType::u8;
    case 10: return DType::f16;
    case 11: return DType::f32;
    case 12: return DType::f64;
    case 16: return DType::bf16;
    default: return std::nullopt;
  }
}

std::span<const std::int64_t> dims_of(const Buffer& buffer) {
  return {buffer.dims, static_cast<std::size_t>(buffer.rank)};
}

class XlaEngine final : public DirectEngine {
 public:
  XlaEngine(std::uint64_t wanted, std::size_t threads, const Buffers& results)
      : DirectEngine(threads), wanted_(wanted), results_(results) {}

  Status allocate_output(std::size_t index, DType dtype, std::span<const std::int64_t> dims, void** data) override {
    if (!(wanted_ >> index & 1)) return {};
    const auto place = std::popcount(wanted_ & ((std::uint64_t{1} << index) - 1));
    if (place >= results_.count) return Status::internal("JAX made too few outputs");
    const Buffer& made = *results_.values[place];
    if (dtype_of(made.dtype) != dtype || !std::ranges::equal(dims_of(made), dims))
      return Status::internal("JAX made output " + std::to_string(index) + " with the shape " +
                              dims_text(dims_of(made)) + ", the op gives " + std::string(name_of(dtype)) +
                              dims_text(dims));
    static std::int64_t nothing;  // an array without elements may have no address
    *data = made.data ? made.data : &nothing;
    return {};
  }

 private:
  std::uint64_t wanted_;
  const Buffers& results_;
};

Status run(const Op& op, packed::Bytes& call, const CallFrame& frame) {
  const auto wanted = packed::read<std::uint64_t>(call);
  const auto threads = packed::read<std::uint32_t>(call);
  const auto present = packed::read_list<bool>(call);
  std::vector<Tensor> tensors;
  tensors.reserve(present.size());
  InputPointers inputs(present.size());
  const auto& declared = op.signature.inputs;
  for (std::size_t i = 0; i < present.size(); ++i) {
    if (!present[i]) continue;
    if (static_cast<std::int64_t>(tensors.size()) >= frame.arguments.count)
      return Status::internal("JAX gave too few inputs");
    const Buffer& given = *frame.arguments.values[tensors.size()];
    const std::string_view name =
        declared.empty() ? std::string_view() : declared[std::min(i, declared.size() - 1)].name;
    const std::optional<DType> dtype = dtype_of(given.dtype);
    if (!dtype) return Status::invalid("input '" + std::string(name) + "': JAX gave a dtype that no op takes");
    tensors.emplace_back(given.data, *dtype, dims_of(given), Device::cpu, name);
    inputs[i] = &tensors.back();
  }
  opgate::Attributes attributes;
  OPGATE_RETURN_IF_ERROR(packed::make_attributes(op.signature, packed::read_attributes(call), attributes));
  XlaEngine engine(wanted, threads, frame.results);
  return invoke(op, Device::cpu, inputs, attributes, engine, kernels_of(op));
}

Status run(const CallFrame& frame) {
  for (std::int64_t i = 0; i < frame.attributes.count; ++i) {
    const Name& name = *frame.attributes.names[i];
    if (std::string_view(name.text, name.size) != "call" || frame.attributes.kinds[i] != kArray) continue;
    const auto& bytes = *static_cast<const Array*>(frame.attributes.values[i]);
    packed::Bytes call({static_cast<const char*>(bytes.data), bytes.count});
    const std::string op_name = packed::read_text(call);
    const Op* const op = Table::instance().find(op_name);
    if (!op) return Status::invalid("the library of " + std::string(Table::domain()) + " has no op " + op_name);
    const Running running(*op);
    return named(*op, [&] { return run(*op, call, frame); });
  }
  return Status::internal("the call has no attribute 'call'");
}

/// The usual arithmetic, while it lives: XLA takes very small numbers for zero on its threads.
class UsualArithmetic {
 public:
  UsualArithmetic() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  UsualArithmetic(const UsualArithmetic&) = delete;
  UsualArithmetic& operator=(const UsualArithmetic&) = delete;
  ~UsualArithmetic() { std::fesetenv(&before_); }

 private:
  std::fenv_t before_;
};

Error* error_of(const CallFrame& frame, const char* message, ErrorCode code) {
  CreateError error{sizeof(CreateError), nullptr, message, code};
  return frame.api->create_error(&error);
}

}  // namespace
}  // namespace opgate::xla

/// The handler of XLA for the ops of this library on the CPU.
extern "C" __attribute__((visibility("default"))) opgate::xla::Error* opgate_xla(opgate::xla::CallFrame* frame) {
  using namespace opgate;
  if (frame->extensions && frame->extensions->kind == xla::kMetadata) {
    auto& metadata = *reinterpret_cast<xla::MetadataExtension*>(frame->extensions)->metadata;
    metadata.version.major = xla::kMajor;
    metadata.version.minor = xla::kMinor;
    return nullptr;
  }
  const xla::UsualArithmetic arithmetic;
  try {
    const Status status = xla::run(*frame);
    if (status.ok()) return nullptr;
    const bool invalid = status.code() == StatusCode::invalid_argument;
    return xla::error_of(*frame, status.message().c_str(),
                         invalid ? xla::ErrorCode::invalid_argument : xla::ErrorCode::internal);
  } catch (const std::exception& error) {
    return xla::error_of(*frame, error.what(), xla::ErrorCode::internal);
  } catch (...) {
    return xla::error_of(*frame, "out of memory", xla::ErrorCode::internal);
  }
}
