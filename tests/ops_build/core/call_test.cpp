#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <thread>

#include "kernel_toolkit/elementwise.h"
#include "kernel_toolkit/op.h"
#include "op_call/invoke.h"

namespace opgate {
namespace {

/// An engine that owns its outputs and runs each task on a new thread.
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

TEST(ParallelFor, CoversEachElementOnceAndPassesOnExceptions) {
  TestEngine engine;
  Context context(engine);
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

/// Stands for a kernel on a device: its output has the upper bound as size, and it writes the actual size beside it. If
/// the first element is negative, it writes that element as the size.
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

/// An engine that trims outputs of unknown size after the kernel has run. With `padded` it leaves them as they are.
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
  bool takes_padded_outputs() const override { return padded; }
  Status read_sizes(std::span<std::int64_t> sizes) override {
    std::ranges::copy(counts, sizes.begin());
    return {};
  }
  Status trim(std::size_t, DType, std::span<const std::int64_t> dims) override {
    trimmed.assign(dims.begin(), dims.end());
    return {};
  }

  std::vector<std::int64_t> counts, bounds, trimmed;
  bool padded = false;
};

struct Nothing {
  Status operator()(Context&, const Inputs&, const Attributes&, Outputs&) const { return {}; }
};

/// Breaks the rule that the attribute `how` names.
struct Careless {
  Status operator()(Context&, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    switch (attributes.integer("how")) {
      case 0: return in["x"].data<double>() ? Status() : Status();
      case 1: return in["absent"].size() ? Status() : Status();
      case 2: *out["y"].data<float>() = 1; return {};
      case 3: *out["unwanted"].data<float>() = 1; return {};
      default: return out.bind("v", 0);
    }
  }
};

/// Asks for memory that no machine has: from the engine or for a vector.
struct Greedy {
  Status operator()(Context& context, const Inputs&, const Attributes& attributes, Outputs&) const {
    const std::int64_t count = attributes.integer("count");
    if (count < 0) std::vector<double>().reserve(std::numeric_limits<std::size_t>::max());
    return context.scratch<double>(count).empty() ? Status() : Status();
  }
};

/// A formula of two values.
struct Sum {
  template <typename V>
  V operator()(V a, V b) const {
    return a + b;
  }
};

/// Writes `most` rows, which must be 10 at most and an even number. Counts the calls of check().
struct Checking {
  static inline int checked = 0;

  static Status check(const Attributes& attributes, const KnownSizes& sizes) {
    ++checked;
    if (attributes.integer("most") > 10) return attributes.refuse("most", "at most 10");
    const std::optional<std::int64_t> n = sizes["n"];
    return n && *n % 2 ? Status::invalid("input 'x': expected an even n, got " + std::to_string(*n)) : Status();
  }

  Status operator()(Context&, const Inputs&, const Attributes&, Outputs&) const { return {}; }
};

/// Adds a number that prepare() computes from an attribute and a size. Counts the calls of prepare().
struct AddPrepared {
  static inline int prepared = 0;
  std::int64_t summand = 0;

  Status prepare(const Node& node) {
    ++prepared;
    summand = node.attributes().integer("k") + node.size("n").value_or(1000);
    return summand < 0 ? Status::invalid("the sum is negative") : Status();
  }

  struct Memory {
    std::span<std::int32_t> copy;
    std::span<char> rest;
  };

  static Memory workspace(Workspace& workspace, const Inputs& in, const Attributes& attributes) {
    return {workspace.take<std::int32_t>(in.size("n") * in.size("m")), workspace.take<char>(attributes.integer("k"))};
  }

  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    const Memory memory = workspace(context.workspace(), in, attributes);
    std::ranges::copy(in["x"].span<std::int32_t>(), memory.copy.begin());
    for (std::size_t i = 0; i < memory.copy.size(); ++i)
      out["y"].data<std::int32_t>()[i] = memory.copy[i] + static_cast<std::int32_t>(summand);
    return {};
  }
};

}  // namespace
}  // namespace opgate

OPGATE_OP(HalvesOp, "<T: f32|i32> Halves(x: T[n]) -> (y: T[v<=n], sum?: T[])", "Every other element.")
OPGATE_CPU_KERNEL(HalvesOp, opgate::Halves)
OPGATE_OP(EvensOp, "Evens(x: i32[n]) -> (y: i32[v<=n,1], all: i64[])", "The even elements.")
OPGATE_CUDA_KERNEL(EvensOp, opgate::DeviceEvens)
OPGATE_OP(CarelessOp, "Careless(x: f32[n], absent?: f32[n]; how: int=0) -> (y: f32[v<=n], unwanted?: f32[n])",
          "Breaks a rule.")
OPGATE_CPU_KERNEL(CarelessOp, opgate::Careless)
OPGATE_OP(GreedyOp, "Greedy(x: f32[n]; count: int) -> (y: f32[n])", "Asks for much memory.")
OPGATE_CPU_KERNEL(GreedyOp, opgate::Greedy)
OPGATE_OP(AddPreparedOp, "AddPrepared(x: i32[n,m]; k: int=1) -> (y: i32[n,m])", "x + k + n.")
OPGATE_CPU_KERNEL(AddPreparedOp, opgate::AddPrepared)
OPGATE_OP(CheckingOp, "Checking(x: i32[n]; most: int=4, rate: float=1) -> (y: i32[n,most])", "Refuses much.")
OPGATE_CPU_KERNEL(CheckingOp, opgate::Checking)
OPGATE_OP(TwoFormulaOp, "<T: f32|i32> TwoFormula(x: T[...]) -> (y: T[...])", "A formula of two values for one input.")
OPGATE_CPU_KERNEL(TwoFormulaOp, opgate::CpuElementwise<opgate::Sum>)
OPGATE_OP(BadOp, "Bad(x: f32[n) -> (y: f32[n])", "A typo.")
OPGATE_CPU_KERNEL(BadOp, opgate::Nothing)
OPGATE_OP(OtherHalvesOp, "<T: f32> Halves(x: T[n]) -> (y: T[v<=n], sum?: T[])", "Stated twice.")
OPGATE_CPU_KERNEL(OtherHalvesOp, opgate::Halves)

namespace opgate {
namespace {

TEST(Table_, KeepsTheErrorsOfBadOps) {
  const auto& errors = Table::instance().errors();
  ASSERT_EQ(errors.size(), 2u);
  EXPECT_NE(errors[0].find("column 13: expected ']', got ')'"), std::string::npos) << errors[0];
  EXPECT_NE(errors[1].find("op Halves is stated twice with different signatures: '<T"), std::string::npos) << errors[1];
  EXPECT_NE(errors[1].find("' and '<T"), std::string::npos) << errors[1];
  ASSERT_EQ(Table::instance().ops().size(), 7u);
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

TEST(Invoke, TrimsTheOutputsOfAKernelOnADevice) {
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
  BoundedEngine untrimmed;
  untrimmed.padded = true;
  ASSERT_TRUE(run({2, 4}, untrimmed).ok());
  EXPECT_EQ(untrimmed.counts, (Dims_{2}));
  EXPECT_TRUE(untrimmed.trimmed.empty());
  BoundedEngine wrong;
  EXPECT_EQ(run({-3, 4}, wrong).message(), "opgate::Evens: the kernel set 'v' to -3, which is not in 0..2");
  TestEngine without_sizes;
  EXPECT_EQ(run({2}, without_sizes).message(),
            "opgate::Evens: this engine can't carry sizes that only the kernel knows, on a device");
}

TEST(Invoke, ReportsTheRuleThatAKernelBreaks) {
  const Op& op = *Table::instance().find("Careless");
  std::vector<float> values{1, 2};
  const std::vector<std::int64_t> dims{2};
  const Tensor x(values.data(), DType::f32, dims, Device::cpu, "x");
  InputPointers inputs;
  inputs.push_back(&x);
  const auto message = [&](std::int64_t how) {
    Attributes attributes;
    EXPECT_TRUE(Attributes::make(op.signature, {AttributeValue(how)}, attributes).ok());
    TestEngine engine;
    engine.unwanted = 1;
    const Status status = invoke(op, Device::cpu, inputs, attributes, engine);
    EXPECT_EQ(status.code(), how < 4 ? StatusCode::internal : StatusCode::ok);
    return status.message();
  };
  EXPECT_EQ(message(0), "opgate::Careless: the kernel accesses tensor 'x', which is f32[2], as f64");
  EXPECT_EQ(message(1), "opgate::Careless: the kernel reads input 'absent', which is absent");
  EXPECT_EQ(message(2), "opgate::Careless: the kernel writes output 'y', whose size it has not bound");
  EXPECT_EQ(message(3), "opgate::Careless: the kernel writes output 'unwanted', which nobody asked for");
  EXPECT_EQ(message(4), "");
}

TEST(Invoke, RefusesAFormulaThatDoesNotFitTheSignature) {
  const Op& op = *Table::instance().find("TwoFormula");
  std::vector<float> values{1, 2};
  const std::vector<std::int64_t> dims{2};
  const Tensor x = view(values, dims, DType::f32);
  InputPointers inputs;
  inputs.push_back(&x);
  Attributes attributes;
  ASSERT_TRUE(Attributes::make(op.signature, {}, attributes).ok());
  TestEngine engine;
  EXPECT_EQ(invoke(op, Device::cpu, inputs, attributes, engine).message(),
            "opgate::TwoFormula: the formula takes 2 values and gives 1; the signature has 1 inputs and 1 outputs");
}

TEST(Check, RefusesWhatIsKnownSoFarAndEverythingInACall) {
  const Op& op = *Table::instance().find("Checking");
  Attributes attributes;
  const auto make = [&](std::int64_t most) {
    return Attributes::make(op.signature, {AttributeValue(most), std::nullopt}, attributes);
  };
  EXPECT_EQ(make(-1).message(), "'most' is a size: expected a number from 0, got -1");
  ASSERT_TRUE(make(11).ok());
  const std::string too_many = "attribute 'most': expected at most 10, got 11";
  EXPECT_EQ(check_node(op, Device::cpu, attributes).message(), too_many);
  EXPECT_EQ(attributes.refuse("rate", "2").message(), "attribute 'rate': expected 2, got 1");
  EXPECT_TRUE(check_node(op, Device::cuda, attributes).ok());  // no kernel

  ASSERT_TRUE(make(4).ok());
  std::vector<std::optional<std::int64_t>> sizes(op.signature.slots.size());
  EXPECT_TRUE(check_node(op, Device::cpu, attributes, sizes).ok());
  sizes[0] = 3;
  const std::string odd = "input 'x': expected an even n, got 3";
  EXPECT_EQ(check_node(op, Device::cpu, attributes, sizes).message(), odd);
  EXPECT_THROW(static_cast<void>(KnownSizes(op.signature)["nothing"]), std::logic_error);

  std::vector<std::int32_t> values{1, 2, 3};
  const std::vector<std::int64_t> three{3}, two{2};
  const Tensor x = view(values, three, DType::i32), good = view(values, two, DType::i32);
  InputPointers inputs;
  inputs.push_back(&x);
  TestEngine engine;
  Checking::checked = 0;
  EXPECT_EQ(invoke(op, Device::cpu, inputs, attributes, engine).message(), "opgate::Checking: " + odd);
  EXPECT_TRUE(engine.outputs.empty());
  inputs[0] = &good;
  EXPECT_TRUE(invoke(op, Device::cpu, inputs, attributes, engine).ok());
  EXPECT_EQ(Checking::checked, 2);
}

/// An engine without memory.
class EmptyEngine final : public TestEngine {
 public:
  Status allocate_output(std::size_t, DType, std::span<const std::int64_t>, void**) override {
    if (throws == 1) throw std::bad_alloc();
    if (throws == 2) throw std::length_error("vector");
    return Status::internal("no memory");
  }
  int throws = 0;
};

TEST(Memory, ThatIsMissingNamesTheOutputAndItsDims) {
  const Op& op = *Table::instance().find("Checking");
  Attributes attributes;
  ASSERT_TRUE(Attributes::make(op.signature, {std::nullopt, std::nullopt}, attributes).ok());
  std::vector<std::int32_t> values{1, 2};
  const std::vector<std::int64_t> dims{2};
  const Tensor x = view(values, dims, DType::i32);
  InputPointers inputs;
  inputs.push_back(&x);
  EmptyEngine engine;
  const std::string output = "opgate::Checking: output 'y', i32[2, 4]: ";
  EXPECT_EQ(invoke(op, Device::cpu, inputs, attributes, engine).message(), output + "no memory");
  for (engine.throws = 1; engine.throws <= 2; ++engine.throws)
    EXPECT_EQ(invoke(op, Device::cpu, inputs, attributes, engine).message(), output + "out of memory");
}

TEST(Memory, ThatNoMachineHasIsOutOfMemory) {
  const Op& op = *Table::instance().find("Greedy");
  std::vector<float> values{1};
  const std::vector<std::int64_t> dims{1};
  const Tensor x = view(values, dims, DType::f32);
  InputPointers inputs;
  inputs.push_back(&x);
  // 2^61 + 1 doubles have 8 bytes, if their number is computed with 64 bits.
  for (const std::int64_t count : {std::int64_t{-1}, (std::int64_t{1} << 61) + 1, std::int64_t{1} << 62}) {
    Attributes attributes;
    ASSERT_TRUE(Attributes::make(op.signature, {AttributeValue(count)}, attributes).ok());
    TestEngine engine;
    EXPECT_EQ(invoke(op, Device::cpu, inputs, attributes, engine).message(), "opgate::Greedy: out of memory");
    EXPECT_TRUE(engine.scratches.empty());
  }
}

TEST(Memory, ThatIsTooLargeIsRefused) {
  const std::int64_t huge = std::int64_t{1} << 32;
  EXPECT_THROW(bytes_of(DType::i64, std::vector<std::int64_t>{huge, huge}), std::bad_alloc);
  EXPECT_EQ(bytes_of(DType::i64, std::vector<std::int64_t>{huge, huge, 0}), 0u);
  EXPECT_EQ(bytes_of(DType::i64, std::vector<std::int64_t>{huge, 2}), std::size_t{1} << 36);
  Workspace measured;
  const auto take = [&] { static_cast<void>(measured.take<char>(std::int64_t{1} << 62)); };
  for (int i = 0; i < 3; ++i) take();
  EXPECT_THROW(take(), std::bad_alloc);
}

/// An engine that lets no kernel be prepared for the sizes of a call.
class AnySizeEngine final : public TestEngine {
 public:
  bool prepares_for_sizes() const override { return false; }
};

/// Calls AddPrepared on zeros. Returns the number that it adds, or -1 if the call fails.
template <typename EngineOfCall = TestEngine>
std::int32_t added(const std::vector<std::int64_t>& dims, std::int64_t k, KernelCache* kernels,
                   std::string* message = nullptr) {
  const Op& op = *Table::instance().find("AddPrepared");
  std::vector<std::int32_t> zeros(static_cast<std::size_t>(dims[0] * dims[1]));
  const Tensor x = view(zeros, dims, DType::i32);
  InputPointers inputs;
  inputs.push_back(&x);
  Attributes attributes;
  EXPECT_TRUE(Attributes::make(op.signature, {AttributeValue(k)}, attributes).ok());
  EngineOfCall engine;
  const Status status = invoke(op, Device::cpu, inputs, attributes, engine, kernels);
  if (message) *message = status.message();
  return status.ok() ? *reinterpret_cast<std::int32_t*>(engine.outputs[0].data()) : -1;
}

TEST(Prepare, RunsOnceForEachValueThatItReads) {
  KernelCache kernels(2);
  const int before = AddPrepared::prepared;
  EXPECT_EQ(added({2, 3}, 1, &kernels), 3);
  EXPECT_EQ(added({2, 3}, 1, &kernels), 3);
  EXPECT_EQ(added({2, 9}, 1, &kernels), 3);  // prepare() doesn't read m
  EXPECT_EQ(AddPrepared::prepared, before + 1);
  EXPECT_EQ(added({4, 3}, 1, &kernels), 5);
  EXPECT_EQ(added({2, 3}, 1, &kernels), 3);  // its kernel is still there
  EXPECT_EQ(AddPrepared::prepared, before + 2);
  EXPECT_EQ(added({2, 3}, 7, &kernels), 9);  // replaces the kernel for n = 4
  EXPECT_EQ(added({2, 3}, 1, &kernels), 3);
  EXPECT_EQ(AddPrepared::prepared, before + 3);
  EXPECT_EQ(added({4, 3}, 1, &kernels), 5);
  EXPECT_EQ(AddPrepared::prepared, before + 4);
  EXPECT_EQ(added({4, 3}, 1, nullptr), 5);  // without a cache every call prepares
  EXPECT_EQ(AddPrepared::prepared, before + 5);
  std::string message;
  EXPECT_EQ(added({1, 1}, -2, &kernels, &message), -1);
  EXPECT_EQ(message, "opgate::AddPrepared: the sum is negative");
}

TEST(Prepare, ServesEverySizeIfItKnowsNone) {
  const Op& op = *Table::instance().find("AddPrepared");
  KernelCache kernels(2);
  Attributes attributes;
  ASSERT_TRUE(Attributes::make(op.signature, {AttributeValue(std::int64_t{1})}, attributes).ok());
  NodeFacts facts;
  facts.sizes.resize(op.signature.slots.size());  // the graph knows no size
  facts.present.resize(1);
  facts.present[0] = true;
  facts.constants.resize(1);
  std::shared_ptr<const void> kernel;
  const int before = AddPrepared::prepared;
  ASSERT_TRUE(kernels.find(op, Device::cpu, attributes, facts, kernel).ok());
  EXPECT_EQ(added({2, 3}, 1, &kernels), 1001);
  EXPECT_EQ(added({9, 3}, 1, &kernels), 1001);
  EXPECT_EQ(AddPrepared::prepared, before + 1);
}

TEST(Prepare, SeesNoSizeIfTheEngineWantsOneKernelForAllCalls) {
  KernelCache kernels(2);
  const int before = AddPrepared::prepared;
  EXPECT_EQ(added<AnySizeEngine>({2, 3}, 1, &kernels), 1001);
  EXPECT_EQ(added<AnySizeEngine>({4, 3}, 1, &kernels), 1001);
  EXPECT_EQ(AddPrepared::prepared, before + 1);
}

TEST(Prepare, IsSafeOnManyThreads) {
  KernelCache kernels(3);
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (std::int64_t i = 0; i < 200; ++i) wrong += added({i % 5 + 1, 2}, 1, &kernels) != i % 5 + 2;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

/// An engine that lends one block of memory for the workspace.
class BlockEngine final : public TestEngine {
 public:
  explicit BlockEngine(std::size_t bytes) : block(bytes + Workspace::kAlignment) {}
  std::span<char> workspace() override { return std::span(block).subspan(0, block.size() - Workspace::kAlignment); }

  std::vector<char> block;
};

TEST(Workspaces, AreMeasuredBeforehandAndTakenFromOneBlock) {
  const Op& op = *Table::instance().find("AddPrepared");
  const std::vector<std::int64_t> dims{50, 2};
  std::vector<std::int32_t> values(100, 5);
  const Tensor x = view(values, dims, DType::i32), without_data(nullptr, DType::i32, dims);
  InputPointers inputs, shapes;
  inputs.push_back(&x);
  shapes.push_back(&without_data);
  Attributes attributes;
  ASSERT_TRUE(Attributes::make(op.signature, {AttributeValue(std::int64_t{1})}, attributes).ok());
  std::size_t bytes = 0;
  ASSERT_TRUE(measure_workspace(op, Device::cpu, shapes, attributes, bytes).ok());
  EXPECT_EQ(bytes, 512u + 256u);  // 400 and 1 bytes, each rounded up
  BlockEngine engine(bytes);
  ASSERT_TRUE(invoke(op, Device::cpu, inputs, attributes, engine).ok());
  EXPECT_TRUE(engine.scratches.empty());
  EXPECT_EQ(reinterpret_cast<std::int32_t*>(engine.block.data())[99], 5);
  BlockEngine small(512);
  EXPECT_EQ(invoke(op, Device::cpu, inputs, attributes, small).message(),
            "opgate::AddPrepared: the kernel takes 768 bytes of workspace or more and has stated 512");
  TestEngine without_block;
  ASSERT_TRUE(invoke(op, Device::cpu, inputs, attributes, without_block).ok());
  EXPECT_EQ(without_block.scratches.size(), 2u);
  const Op& halves = *Table::instance().find("Halves");
  ASSERT_TRUE(measure_workspace(halves, Device::cpu, shapes, attributes, bytes).ok());
  EXPECT_EQ(bytes, 0u);
}

}  // namespace
}  // namespace opgate
