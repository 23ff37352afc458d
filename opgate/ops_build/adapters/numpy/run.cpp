// Runs an op on NumPy's arrays, without a graph. Python calls it through ctypes (functions.py), which releases the
// interpreter's lock.
//
// The inputs are read where they lie. The outputs are arrays that Python creates when their dims are known. An array is
// known by its array interface, the C struct that NumPy gives as __array_struct__
// (https://numpy.org/doc/stable/reference/arrays.interface.html), so this file needs no header of NumPy's or Python's.
#include <cstring>
#include <deque>

#include "adapters/direct.h"
#include "op_call/packed_attributes.h"
#include "op_call/running_op.h"

namespace opgate::numpy {
namespace {

/// PyArrayInterface, as NumPy documents it.
struct ArrayInterface {
  int two;  ///< 2, to check that it is one
  int rank;
  char kind;
  int element_size;
  int flags;
  std::intptr_t* dims;
  std::intptr_t* strides;
  void* data;
};
static_assert(std::is_same_v<std::intptr_t, std::int64_t>);

/// Creates an array for an output and returns its interface, or nullptr if it can't. `user` is what Python gave.
using Allocate = const ArrayInterface* (*)(void* user, std::int64_t output, std::int64_t dtype, std::int64_t rank,
                                           const std::int64_t* dims);

/// An input of a call. Can't be moved, because the Tensor points into it.
class InputValue {
 public:
  InputValue() = default;
  InputValue(const InputValue&) = delete;
  InputValue& operator=(const InputValue&) = delete;

  /// `array` has the elements. Those of `str` lie in `characters` one after the other, and `array` has the end of each.
  void read(DType dtype, const ArrayInterface& array, const ArrayInterface* characters, std::string_view name) {
    const std::span dims(array.dims, static_cast<std::size_t>(array.rank));
    const void* data = array.data;
    if (dtype == DType::str) {
      const auto* const ends = static_cast<const std::int64_t*>(array.data);
      const auto* const first = static_cast<const char*>(characters->data);
      const auto count = static_cast<std::size_t>(Tensor(nullptr, dtype, dims).size());
      texts_.reserve(count + 1);
      for (std::size_t i = 0; i < count; ++i) {
        const std::int64_t begin = i ? ends[i - 1] : 0;
        texts_.emplace_back(first + begin, static_cast<std::size_t>(ends[i] - begin));
      }
      data = texts_.data();
    }
    tensor_ = Tensor(data, dtype, dims, Device::cpu, name);
  }

  const Tensor& tensor() const { return tensor_; }

 private:
  Tensor tensor_;
  std::vector<std::string_view> texts_;
};

class NumpyEngine final : public DirectEngine {
 public:
  NumpyEngine(std::uint64_t wanted, std::size_t threads, Allocate allocate, void* user)
      : DirectEngine(threads), wanted_(wanted), allocate_(allocate), user_(user) {}

  Status allocate_output(std::size_t index, DType dtype, std::span<const std::int64_t> dims, void** data) override {
    if (!(wanted_ >> index & 1)) return {};
    if (dtype != DType::str) return make_array(index, dtype, dims, data);
    Texts& texts = texts_.emplace_back();
    texts.output = index;
    texts.dims = Dims(dims);
    texts.values.resize(static_cast<std::size_t>(Tensor(nullptr, dtype, dims).size()) + 1);
    *data = texts.values.data();
    return {};
  }

  /// Gives Python the strings that the kernel has written: for each output an array of the end of each string, and one
  /// of all characters.
  Status hand_over_texts() {
    for (const Texts& texts : texts_) {
      void *ends = nullptr, *characters = nullptr;
      std::int64_t total = 0;
      OPGATE_RETURN_IF_ERROR(make_array(texts.output, DType::i64, texts.dims, &ends));
      const std::size_t count = texts.values.size() - 1;
      for (std::size_t i = 0; i < count; ++i) {
        total += static_cast<std::int64_t>(texts.values[i].size());
        static_cast<std::int64_t*>(ends)[i] = total;
      }
      OPGATE_RETURN_IF_ERROR(make_array(texts.output, DType::u8, {&total, 1}, &characters));
      auto* next = static_cast<char*>(characters);
      for (std::size_t i = 0; i < count; ++i) next = std::ranges::copy(texts.values[i], next).out;
    }
    return {};
  }

 private:
  struct Texts {
    std::size_t output;
    Dims dims;
    std::vector<std::string> values;  // one more than the output has, so that there is memory for an empty output
  };

  Status make_array(std::size_t output, DType dtype, std::span<const std::int64_t> dims, void** data) {
    const ArrayInterface* const array =
        allocate_(user_, static_cast<std::int64_t>(output), static_cast<std::int64_t>(dtype),
                  static_cast<std::int64_t>(dims.size()), dims.data());
    if (!array || array->two != 2) return Status::internal("NumPy made no array");
    *data = array->data;
    return {};
  }

  std::uint64_t wanted_;
  Allocate allocate_;
  void* user_;
  std::deque<Texts> texts_;
};

Status run(const Op& op, packed::Bytes& call, Allocate allocate, void* user) {
  const auto wanted = packed::read<std::uint64_t>(call);
  const auto threads = packed::read<std::uint32_t>(call);
  const std::size_t count = packed::read<std::uint32_t>(call);
  std::vector<InputValue> values(count);
  InputPointers inputs(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto dtype = packed::read<std::int64_t>(call);
    const auto* const array = packed::read<const ArrayInterface*>(call);
    const auto* const characters = packed::read<const ArrayInterface*>(call);
    if (dtype < 0) continue;  // absent
    const auto& declared = op.signature.inputs;
    values[i].read(static_cast<DType>(dtype), *array, characters,
                   declared.empty() ? std::string_view() : declared[std::min(i, declared.size() - 1)].name);
    inputs[i] = &values[i].tensor();
  }
  Attributes attributes;
  OPGATE_RETURN_IF_ERROR(packed::make_attributes(op.signature, packed::read_attributes(call), attributes));
  NumpyEngine engine(wanted, threads, allocate, user);
  OPGATE_RETURN_IF_ERROR(invoke(op, Device::cpu, inputs, attributes, engine, kernels_of(op)));
  return engine.hand_over_texts();
}

thread_local std::string message;  // of the last call that failed

/// Does something with the op of a name. Returns 0, or 1 if the op can't work with what it got, or 2 for any other
/// failure. Then the message of the thread says why.
template <typename Work>
int with_op(const char* name, Work&& work) {
  try {
    const Op* const op = Table::instance().find(name);
    Status status = Status::invalid("the library of " + std::string(Table::domain()) + " has no op " + name);
    if (op) {
      const Running running(*op);
      status = named(*op, [&] { return work(*op); });
    }
    if (status.ok()) return 0;
    message = status.message();
    return status.code() == StatusCode::invalid_argument ? 1 : 2;
  } catch (...) {
    message.clear();  // there is no memory for a message
    return 2;
  }
}

}  // namespace
}  // namespace opgate::numpy

#define OPGATE_EXPORT extern "C" __attribute__((visibility("default")))

/// Runs an op on the CPU. `call` has the bytes of a call, which functions.py packs. For each output that the call
/// wants, `allocate` creates an array. Returns as with_op does.
OPGATE_EXPORT int opgate_run(const char* op, const char* call, std::size_t size, opgate::numpy::Allocate allocate,
                             void* user) {
  using namespace opgate;
  return numpy::with_op(op, [&](const Op& found) {
    packed::Bytes bytes({call, size});
    return numpy::run(found, bytes, allocate, user);
  });
}

/// Refuses attributes and sizes with which no call of an op can work on the CPU. `node` has the attributes, and the
/// sizes that are known: a u32 count, and for each its name and an i64. Returns as with_op does.
OPGATE_EXPORT int opgate_check(const char* op, const char* node, std::size_t size) {
  using namespace opgate;
  return numpy::with_op(op, [&](const Op& found) -> Status {
    packed::Bytes bytes({node, size});
    Attributes attributes;
    OPGATE_RETURN_IF_ERROR(packed::make_attributes(found.signature, packed::read_attributes(bytes), attributes));
    const auto& slots = found.signature.slots;
    std::vector<std::optional<std::int64_t>> sizes(slots.size());
    for (auto count = packed::read<std::uint32_t>(bytes); count > 0; --count) {
      const std::string name = packed::read_text(bytes);
      const auto known = packed::read<std::int64_t>(bytes);
      const auto slot = std::ranges::find(slots, name, &Slot::name);
      if (slot != slots.end()) sizes[static_cast<std::size_t>(slot - slots.begin())] = known;
    }
    return check_node(found, Device::cpu, attributes, sizes);
  });
}

/// Why the last call of this thread that failed did so. The text is valid until the next one fails.
OPGATE_EXPORT const char* opgate_run_message() { return opgate::numpy::message.c_str(); }
