#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <thread>

#include "core/elementwise.h"
#include "core/op.h"

namespace opgate {
namespace {

/// An engine that owns its outputs and runs each task on a thread of its own.
class TestEngine : public Engine {
 public:
  Status allocate_output(std::size_t index, DType dtype, std::span<const std::int64_t> dims, void** data) override {
    if (unwanted == static_cast<int>(index)) return {};
    std::size_t count = 1;
    for (std::int64_t dim : dims) count *= static_cast<std::size_t>(dim);
    outputs[index].assign(count * size_of(dtype) + 1, 0);
    *data = outputs[index].data();
    return {};
  }
  void parallel_for(std::size_t tasks, void (*task)(void*, std::size_t), void* user) override {
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < tasks; ++i) threads.emplace_back(task, user, i);
    for (std::thread& thread : threads) thread.join();
  }
  void* scratch(std::size_t bytes) override {
    if (bytes > (std::size_t{1} << 40)) throw std::bad_alloc();
    scratches.emplace_back(bytes);
    return scratches.back().data();
  }

  std::map<std::size_t, std::vector<char>> outputs;
  std::deque<std::vector<char>> scratches;
  int unwanted = -1;
};

template <typename T>
Tensor view(std::vector<T>& values, const std::vector<std::int64_t>& dims, DType dtype) {
  return Tensor(values.data(), dtype, dims);
}

std::int64_t evaluated(const std::string& text, std::int64_t n) {
  const Signature signature = parse_signature("E(x: f32[n]) -> (y: f32[" + text + "])");
  Binding binding;
  binding.sizes.resize(signature.slots.size());
  binding.sizes[0] = n;
  std::int64_t value = 0;
  const Status status = evaluate(signature, signature.outputs[0].dims[0].expr, binding, value);
  return status.ok() ? value : std::numeric_limits<std::int64_t>::min();
}

constexpr std::int64_t kFailed = std::numeric_limits<std::int64_t>::min();

TEST(Expressions, FollowArithmetic) {
  EXPECT_EQ(evaluated("n+2*3", 4), 10);
  EXPECT_EQ(evaluated("(n+2)*3", 4), 18);
  EXPECT_EQ(evaluated("10-n-3", 4), 3);
  EXPECT_EQ(evaluated("min(n,3)+max(n,9)", 4), 12);
}

TEST(Expressions, DivisionFloors) {
  EXPECT_EQ(evaluated("n/2", 7), 3);
  EXPECT_EQ(evaluated("(n-10)/2", 7), -2);
  EXPECT_EQ(evaluated("(n-10)%2", 7), 1);
  EXPECT_EQ(evaluated("ceildiv(n,2)", 7), 4);
  EXPECT_EQ(evaluated("ceildiv(n-10,2)", 7), -1);
  EXPECT_EQ(evaluated("ceildiv(n,7)", 7), 1);
}

TEST(Expressions, OverflowAndZeroDivisorsFail) {
  EXPECT_EQ(evaluated("n*9223372036854775807", 2), kFailed);
  EXPECT_EQ(evaluated("n+9223372036854775807", 1), kFailed);
  EXPECT_EQ(evaluated("0-9223372036854775807-n", 2), kFailed);
  EXPECT_EQ(evaluated("n/(n-n)", 2), kFailed);
  EXPECT_EQ(evaluated("n%(n-n)", 2), kFailed);
  EXPECT_EQ(evaluated("ceildiv(n,n-n)", 2), kFailed);
}

Status bound(const Signature& signature, const std::vector<const Tensor*>& tensors, Binding& binding) {
  Attributes attributes;
  std::vector<std::optional<AttributeValue>> none(signature.attributes.size());
  OPGATE_RETURN_IF_ERROR(Attributes::make(signature, none, attributes));
  return bind(signature, InputPointers(tensors), attributes, binding);
}

TEST(Binding, EllipsisIsTheSameEverywhere) {
  const Signature signature = parse_signature("X(a: f32[b,...,c], d: f32[...,c]) -> (y: f32[...,b])");
  std::vector<float> data(120);
  const std::vector<std::int64_t> four{2, 3, 4, 5}, three{3, 4, 5}, wrong{3, 3, 5}, two{2, 5}, one{5};
  Binding binding;
  const Tensor a = view(data, four, DType::f32), d = view(data, three, DType::f32), e = view(data, wrong, DType::f32);
  ASSERT_TRUE(bound(signature, {&a, &d}, binding).ok());
  Dims dims;
  bool known = false;
  ASSERT_TRUE(output_dims(signature, signature.outputs[0], binding, dims, known).ok());
  EXPECT_TRUE(known);
  EXPECT_EQ(dims_text(dims), "[3, 4, 2]");
  const Status status = bound(signature, {&a, &e}, binding);
  EXPECT_EQ(status.message(), "input 'd': expected f32[..., c] with ... = [3, 4], got f32[3, 3, 5]");
  const Tensor flat = view(data, two, DType::f32), last = view(data, one, DType::f32);
  ASSERT_TRUE(bound(signature, {&flat, &last}, binding).ok());  // `...` may be empty
  EXPECT_FALSE(bound(signature, {&last, &last}, binding).ok());
}

TEST(Binding, NamesTheInputTheExpectationAndWhatCame) {
  const Signature signature = parse_signature("<T: f32|i32> X(a: T[n,3], b?: T[m=n]; k: int=2) -> (y: T[m,k])");
  std::vector<float> data(12);
  std::vector<std::int32_t> whole(12);
  const std::vector<std::int64_t> good{4, 3}, short_rank{4}, wrong{4, 2};
  const Tensor a = view(data, good, DType::f32), flat = view(data, short_rank, DType::f32),
               w = view(data, wrong, DType::f32);
  const Tensor other = view(whole, short_rank, DType::i32);
  std::vector<double> doubles(12);
  const Tensor d = view(doubles, good, DType::f64);
  Binding binding;
  EXPECT_TRUE(bound(signature, {&a}, binding).ok());
  EXPECT_TRUE(bound(signature, {&a, nullptr}, binding).ok());
  EXPECT_TRUE(bound(signature, {&a, &flat}, binding).ok());
  EXPECT_EQ(bound(signature, {nullptr}, binding).message(), "input 'a' is required and absent");
  EXPECT_EQ(bound(signature, {}, binding).message(), "input 'a' is required and absent");
  EXPECT_EQ(bound(signature, {&a, &flat, &flat}, binding).message(), "expected at most 2 inputs, got 3");
  EXPECT_EQ(bound(signature, {&flat}, binding).message(), "input 'a': expected T[n, 3], got f32[4]");
  EXPECT_EQ(bound(signature, {&w}, binding).message(), "input 'a': expected T[n, 3], got f32[4, 2]");
  EXPECT_EQ(bound(signature, {&a, &other}, binding).message(), "input 'b': expected T[m] with T = f32, got i32[4]");
  EXPECT_EQ(bound(signature, {&d}, binding).message(),
            "input 'a': expected T[n, 3] with T one of f32, i32, got f64[4, 3]");
}

TEST(Attributes_, AreCheckedAndDefaulted) {
  const Signature signature =
      parse_signature("X(a: f32[n]; k: int, m: float[3]=[1,2,3], c: {one|two}=two) -> (y: f32[n])");
  Attributes attributes;
  const auto make = [&](std::optional<AttributeValue> k, std::optional<AttributeValue> m,
                        std::optional<AttributeValue> c) {
    return Attributes::make(signature, {k, m, c}, attributes).message();
  };
  EXPECT_EQ(make(AttributeValue(std::int64_t{5}), {}, {}), "");
  EXPECT_EQ(attributes.integer("k"), 5);
  EXPECT_EQ(attributes.numbers("m"), (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(attributes.text("c"), "two");
  EXPECT_THROW(attributes.integer("nothing"), std::logic_error);
  EXPECT_EQ(make({}, {}, {}), "attribute 'k' is required: int");
  EXPECT_EQ(make(AttributeValue(1.5), {}, {}), "attribute 'k': expected int, got a value of another type");
  EXPECT_EQ(make(AttributeValue(std::int64_t{5}), AttributeValue(std::vector<double>{1}), {}),
            "attribute 'm': expected float[3], got 1 values");
  EXPECT_EQ(make(AttributeValue(std::int64_t{5}), {}, AttributeValue(std::string("three"))),
            "attribute 'c': expected {one|two}, got 'three'");
}

TEST(Attributes_, ListsOfTextTravelAsLines) {
  EXPECT_TRUE(lines("").empty());
  EXPECT_EQ(lines("a"), (std::vector<std::string>{"a"}));
  EXPECT_EQ(lines("a\n\nb\n"), (std::vector<std::string>{"a", "", "b", ""}));
}

TEST(ShapeInference, KeepsNamesAndNumbers) {
  const Signature signature = parse_signature(
      "X(a: f32[n,3], q?: f32[m=n,3]; k: int=2) -> (y: f32[m,k], z: f32[n+1], v: f32[u<=n], w: f32[u])");
  std::vector<std::optional<SymbolicShape>> outputs;
  const auto infer = [&](SymbolicInput a, SymbolicInput q) { return infer_shapes(signature, {a, q}, {2}, outputs); };
  const SymbolicInput named{true, SymbolicShape{{-1, "rows"}, {3, ""}}},
      numbered{true, SymbolicShape{{7, ""}, {3, ""}}};
  ASSERT_TRUE(infer(named, {}).ok());
  EXPECT_EQ((*outputs[0])[0].symbol, "rows");
  EXPECT_EQ((*outputs[0])[1].value, 2);
  EXPECT_EQ((*outputs[1])[0].value, -1);
  EXPECT_FALSE((*outputs[1])[0].symbol.empty());
  EXPECT_EQ((*outputs[2])[0].symbol, (*outputs[3])[0].symbol);  // one size that the kernel binds
  ASSERT_TRUE(infer(named, numbered).ok());
  EXPECT_EQ((*outputs[0])[0].value, 7);
  EXPECT_EQ((*outputs[1])[0].value, -1);
  ASSERT_TRUE(infer(numbered, {true, std::nullopt}).ok());
  EXPECT_EQ((*outputs[0])[0].value, -1);  // present, of unknown rank: its default does not apply
  EXPECT_EQ((*outputs[1])[0].value, 8);
  EXPECT_FALSE(infer({true, SymbolicShape{{7, ""}, {4, ""}, {1, ""}}}, {}).ok());
}

TEST(Types, SixteenBitFloatsRoundToNearestEven) {
  EXPECT_EQ(bf16(1.0f).bits, 0x3f80);
  EXPECT_EQ(bf16(1.00390625f).bits, 0x3f80);  // half way: to even
  EXPECT_EQ(bf16(1.01171875f).bits, 0x3f82);
  EXPECT_TRUE(std::isnan(static_cast<float>(bf16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_EQ(bf16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(f16(65504.0f).bits, 0x7bff);
  EXPECT_EQ(static_cast<float>(f16(0.1f)), 0.0999755859375f);
}

TEST(Types, ListsAreReadFromTheSignatureByTheCompiler) {
  constexpr TypeLists lists = TypeLists::of(" < T : f16 | f32,\n I: i64> X(a: T[n], b: I[n]) -> (y: T[n])");
  static_assert(lists.count == 2);
  EXPECT_EQ(lists.masks[0], 0b101u);
  EXPECT_EQ(lists.masks[1], 1u << static_cast<int>(DType::i64));
  static_assert(TypeLists::of("X(a: f32[n]) -> (y: f32[n])").count == 0);
}

TEST(InlineVector_, GrowsPastItsInlineSpace) {
  InlineVector<std::int64_t, 2> values;
  for (std::int64_t i = 0; i < 100; ++i) values.push_back(i);
  const InlineVector<std::int64_t, 2> copy(values);
  values = copy;
  ASSERT_EQ(values.size(), 100u);
  for (std::int64_t i = 0; i < 100; ++i) EXPECT_EQ(values[i], i);
}

TEST(ParallelFor, CoversEachElementOnceAndPassesOnWhatIsThrown) {
  TestEngine engine;
  Binding binding;
  Context context(engine, binding);
  for (const std::int64_t count : {0, 1, 9, 10, 11, 99, 1000}) {
    std::vector<std::atomic<int>> seen(static_cast<std::size_t>(count));
    context.parallel_for(count, 10, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) ++seen[static_cast<std::size_t>(i)];
    });
    for (const auto& times : seen) EXPECT_EQ(times.load(), 1);
  }
  EXPECT_THROW(context.parallel_for(100, 1, [](std::int64_t, std::int64_t) { throw std::runtime_error("x"); }),
               std::runtime_error);
}

struct Halves {
  template <typename T>
  Status operator()(Context&, const Inputs& in, const Attributes&, Outputs& out) const {
    OPGATE_RETURN_IF_ERROR(out.bind("v", in.size("n") / 2));
    for (std::int64_t i = 0; i < in.size("n") / 2; ++i)
      out["y"].template data<T>()[i] = in["x"].template data<T>()[2 * i];
    if (out.has("sum")) *out["sum"].template data<T>() = T{42};
    return {};
  }
};

/// Stands for a kernel on a device: it writes its count beside outputs at their upper bound. A negative first element
/// makes it write that count.
struct DeviceEvens {
  Status operator()(Context&, const Inputs& in, const Attributes&, Outputs& out) const {
    const auto* x = in["x"].data<std::int32_t>();
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < in.size("n"); ++i) {
      if (x[i] % 2 == 0) out["y"].data<std::int32_t>()[count++] = x[i];
    }
    *out.device_size("v") = in.size("n") && x[0] < 0 ? x[0] : count;
    *out["all"].data<std::int64_t>() = in.size("n");
    return {};
  }
};

/// An engine whose outputs of unknown size are cut after the kernel, or which leaves that to somebody else.
class BoundedEngine final : public TestEngine {
 public:
  Status allocate_sizes(std::size_t count, std::int64_t** sizes) override {
    counts.assign(count, -7);
    *sizes = counts.data();
    return {};
  }
  Status allocate_bounded(std::size_t index, DType dtype, std::span<const std::int64_t> dims, void** data) override {
    bounds.assign(dims.begin(), dims.end());
    return allocate_output(index, dtype, dims, data);
  }
  Status read_sizes(std::span<std::int64_t> sizes, bool& known) override {
    known = reads;
    std::ranges::copy(counts, sizes.begin());
    return {};
  }
  Status trim(std::size_t, DType, std::span<const std::int64_t> dims) override {
    trimmed.assign(dims.begin(), dims.end());
    return {};
  }

  std::vector<std::int64_t> counts, bounds, trimmed;
  bool reads = true;
};

struct Nothing {
  Status operator()(Context&, const Inputs&, const Attributes&, Outputs&) const { return {}; }
};

}  // namespace
}  // namespace opgate

OPGATE_OP(HalvesOp, "<T: f32|i32> Halves(x: T[n]) -> (y: T[v<=n], sum?: T[])", "Every other element.")
OPGATE_CPU_KERNEL(HalvesOp, opgate::Halves)
OPGATE_OP(EvensOp, "Evens(x: i32[n]) -> (y: i32[v<=n,1], all: i64[])", "The even elements.")
OPGATE_CUDA_KERNEL(EvensOp, opgate::DeviceEvens)
OPGATE_OP(BadOp, "Bad(x: f32[n) -> (y: f32[n])", "A typo.")
OPGATE_CPU_KERNEL(BadOp, opgate::Nothing)
OPGATE_OP(OtherHalvesOp, "<T: f32> Halves(x: T[n]) -> (y: T[v<=n], sum?: T[])", "Stated twice.")
OPGATE_CPU_KERNEL(OtherHalvesOp, opgate::Halves)

namespace opgate {
namespace {

TEST(Table_, KeepsWhatIsWrongWithAnOp) {
  const auto& errors = Table::instance().errors();
  ASSERT_EQ(errors.size(), 2u);
  EXPECT_NE(errors[0].find("column 13: expected ']', got ')'"), std::string::npos) << errors[0];
  EXPECT_EQ(errors[1], "op Halves is stated twice with different signatures");
  ASSERT_EQ(Table::instance().ops().size(), 2u);
  EXPECT_EQ(Table::instance().find("Bad"), nullptr);
}

TEST(Invoke, BindsRunsAndReports) {
  const Op& op = *Table::instance().find("Halves");
  Attributes attributes;
  ASSERT_TRUE(Attributes::make(op.signature, {}, attributes).ok());
  std::vector<std::int32_t> values{1, 2, 3, 4, 5};
  const std::vector<std::int64_t> dims{5}, matrix{5, 1};
  const Tensor x = view(values, dims, DType::i32), wrong = view(values, matrix, DType::i32);
  InputPointers inputs, bad;
  inputs.push_back(&x);
  bad.push_back(&wrong);
  for (const int unwanted : {-1, 1}) {
    TestEngine engine;
    engine.unwanted = unwanted;
    ASSERT_TRUE(invoke(op, Device::cpu, inputs, attributes, engine).ok());
    EXPECT_EQ(reinterpret_cast<std::int32_t*>(engine.outputs[0].data())[1], 3);
    EXPECT_EQ(engine.outputs.count(1), unwanted == 1 ? 0u : 1u);
  }
  TestEngine engine;
  const Status status = invoke(op, Device::cpu, bad, attributes, engine);
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_EQ(status.message(), "opgate::Halves: input 'x': expected T[n], got i32[5, 1]");
  EXPECT_EQ(invoke(op, Device::cuda, inputs, attributes, engine).message(), "opgate::Halves: no kernel for cuda");
}

TEST(Invoke, CutsWhatAKernelOnADeviceHasFilled) {
  const Op& op = *Table::instance().find("Evens");
  Attributes attributes;
  ASSERT_TRUE(Attributes::make(op.signature, {}, attributes).ok());
  const auto run = [&](std::vector<std::int32_t> values, Engine& engine) {
    const std::vector<std::int64_t> dims{static_cast<std::int64_t>(values.size())};
    const Tensor x = view(values, dims, DType::i32);
    InputPointers inputs;
    inputs.push_back(&x);
    return invoke(op, Device::cuda, inputs, attributes, engine);
  };
  using Dims_ = std::vector<std::int64_t>;
  BoundedEngine engine;
  ASSERT_TRUE(run({1, 2, 3, 4, 6}, engine).ok());
  EXPECT_EQ(engine.bounds, (Dims_{5, 1}));
  EXPECT_EQ(engine.trimmed, (Dims_{3, 1}));
  EXPECT_EQ(reinterpret_cast<std::int32_t*>(engine.outputs[0].data())[2], 6);
  BoundedEngine empty;
  ASSERT_TRUE(run({}, empty).ok());
  EXPECT_EQ(empty.trimmed, (Dims_{0, 1}));
  BoundedEngine leaves;
  leaves.reads = false;
  ASSERT_TRUE(run({2, 4}, leaves).ok());
  EXPECT_EQ(leaves.counts, (Dims_{2}));
  EXPECT_TRUE(leaves.trimmed.empty());
  BoundedEngine wrong;
  EXPECT_EQ(run({-3, 4}, wrong).message(), "opgate::Evens: the kernel made 'v' -3, which is not in 0..2");
  TestEngine cannot;
  EXPECT_EQ(run({2}, cannot).message(),
            "opgate::Evens: this engine can't carry sizes that only the kernel knows, on a device");
}

}  // namespace
}  // namespace opgate
