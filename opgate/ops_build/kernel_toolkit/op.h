// The header that the sources of an op include.
//
//   nearest.h     OPGATE_OP(Nearest, "Nearest(x: f32[n,c], table: f32[m,c]) -> (row: i32[n])", "The nearest row.")
//   nearest.cpp   OPGATE_CPU_KERNEL(Nearest, NearestCpu)
//   nearest.cu    OPGATE_CUDA_KERNEL(Nearest, NearestCuda)
//
// An op that is elementwise needs its header only:
//
//   cube.h        OPGATE_OP(Cube, "<T: f32|f64> Cube(x: T[...]) -> (y: T[...])", "x cubed, elementwise.")
//                 OPGATE_ELEMENTWISE(Cube, CubeFormula)
#pragma once

#include <concepts>

#include "op_call/c_call.h"
#include "op_call/kernel.h"
#include "op_call/table.h"

namespace opgate {

/// The dtypes of each type variable. The compiler reads them from the signature and instantiates a kernel template for
/// each of them. This code trusts the syntax, because the parser checks it when the library is loaded.
struct TypeLists {
  static constexpr int kMax = 4;
  int count = 0;
  std::array<unsigned, kMax> masks{};  ///< bit d: DType(d) is allowed

  static constexpr TypeLists of(std::string_view text) {
    TypeLists lists;
    std::size_t at = text.find_first_not_of(kSpace);
    if (at == std::string_view::npos || text[at] != '<') return lists;
    bool in_types = false;
    std::size_t word = ++at;
    for (;; ++at) {
      const char c = text[at];
      if (c != ':' && c != '|' && c != ',' && c != '>') continue;
      // The parser reports an unknown dtype, with its column.
      if (const auto dtype = dtype_named(trim(text.substr(word, at - word))); in_types && dtype) {
        lists.masks[lists.count] |= 1u << static_cast<int>(*dtype);
      }
      if (c == ':') in_types = true;
      if (c == ',' || c == '>') {
        in_types = false;
        ++lists.count;
      }
      word = at + 1;
      if (c == '>') return lists;
    }
  }

 private:
  static constexpr std::string_view kSpace = " \t\n\r\v\f";

  static constexpr std::string_view trim(std::string_view word) {
    const std::size_t first = word.find_first_not_of(kSpace), last = word.find_last_not_of(kSpace);
    return first == std::string_view::npos ? std::string_view() : word.substr(first, last + 1 - first);
  }
};

/// Calls the instance of a template that belongs to the dtypes of a call.
template <typename OpTag>
class TypeDispatch {
 public:
  static constexpr TypeLists kTypes = TypeLists::of(OpTag::signature);

  /// call.operator()<Types...>() with the C++ types of types(0), types(1), ... It returns a Status.
  template <typename... Bound, typename Types, typename Call>
  static Status pick(const Types& types, const Call& call) {
    if constexpr (static_cast<int>(sizeof...(Bound)) == kTypes.count)
      return call.template operator()<Bound...>();
    else
      return among<0, Bound...>(types, call);
  }

  /// The C++ type of the first dtype that a variable may have.
  template <std::size_t variable>
  using First = typename CppType<static_cast<DType>(std::countr_zero(kTypes.masks[variable]) % kDTypeCount)>::type;

 private:
  template <int Candidate, typename... Bound, typename Types, typename Call>
  static Status among(const Types& types, const Call& call) {
    constexpr int variable = sizeof...(Bound);
    if constexpr (Candidate == kDTypeCount) {
      return Status::internal("no kernel for type " + std::string(name_of(types(variable))));
    } else {
      if constexpr ((kTypes.masks[variable] >> Candidate) & 1u) {
        constexpr DType dtype = static_cast<DType>(Candidate);
        if (types(variable) == dtype) return pick<Bound..., typename CppType<dtype>::type>(types, call);
      }
      return among<Candidate + 1, Bound...>(types, call);
    }
  }
};

template <typename Class>
concept Checks = requires(const Attributes& attributes, const KnownSizes& sizes) {
  { Class::check(attributes, sizes) } -> std::same_as<Status>;
};

template <typename Class>
concept Prepares = requires(Class& kernel, const Node& node) { kernel.prepare(node); };

template <typename Class>
concept StatesWorkspace = requires(Workspace& workspace, const Inputs& in, const Attributes& attributes) {
  Class::workspace(workspace, in, attributes);
};

template <typename Class, typename... Types>
concept StatesWorkspaceOfTypes = requires(Workspace& workspace, const Inputs& in, const Attributes& attributes) {
  Class::template workspace<Types...>(workspace, in, attributes);
};

/// Classes that have members of these names. With a second member of the same name a name is ambiguous.
struct NamedMembers {
  int check, prepare, workspace;
};
template <typename Class>
struct WithNamedMembers : Class, NamedMembers {};
template <typename Class>
concept NamesCheck = !requires { &WithNamedMembers<Class>::check; };
template <typename Class>
concept NamesPrepare = !requires { &WithNamedMembers<Class>::prepare; };
template <typename Class>
concept NamesWorkspace = !requires { &WithNamedMembers<Class>::workspace; };

/// Makes the Kernel of a class.
template <typename OpTag, typename Class>
class KernelOf {
 public:
  static constexpr Kernel make() {
    static_assert(Checks<Class> || !NamesCheck<Class>,
                  "expected a public function: static Status check(const Attributes&, const KnownSizes&)");
    static_assert(Prepares<Class> || !NamesPrepare<Class>,
                  "expected a public function: Status prepare(const Node& node)");
    static_assert(states_workspace(std::make_index_sequence<Types::kTypes.count>()) || !NamesWorkspace<Class>,
                  "expected a public function: static Memory workspace(Workspace&, const Inputs&, const Attributes&), "
                  "a template over the type variables if operator() is one");
    Kernel kernel{.run = &run};
    if constexpr (Checks<Class>) kernel.check = &Class::check;
    if constexpr (Prepares<Class>) kernel.prepare = &prepare;
    if constexpr (states_workspace(std::make_index_sequence<Types::kTypes.count>())) {
      kernel.take_workspace = &take_workspace;
    }
    return kernel;
  }

 private:
  using Types = TypeDispatch<OpTag>;

  struct Run {
    const Class& kernel;
    Context& context;
    const Inputs& in;
    const Attributes& attributes;
    Outputs& out;

    template <typename... Bound>
    Status operator()() const {
      if constexpr (Types::kTypes.count == 0)
        return kernel(context, in, attributes, out);
      else
        return kernel.template operator()<Bound...>(context, in, attributes, out);
    }
  };

  struct TakeWorkspace {
    Workspace& workspace;
    const Inputs& in;
    const Attributes& attributes;

    template <typename... Bound>
    Status operator()() const {
      if constexpr (StatesWorkspace<Class>)
        static_cast<void>(Class::workspace(workspace, in, attributes));
      else
        static_cast<void>(Class::template workspace<Bound...>(workspace, in, attributes));
      return {};
    }
  };

  /// The dtypes of a call.
  struct BoundTypes {
    const Inputs& in;

    DType operator()(std::size_t variable) const { return in.type(variable); }
  };

  static Status run(const void* kernel, Context& context, const Inputs& in, const Attributes& attributes,
                    Outputs& out) {
    const auto pick = [&](const Class& object) {
      return Types::pick(BoundTypes{in}, Run{object, context, in, attributes, out});
    };
    return kernel ? pick(*static_cast<const Class*>(kernel)) : pick(Class{});
  }

  static Status prepare(const Node& node, std::shared_ptr<const void>& kernel) {
    auto object = std::make_shared<Class>();
    OPGATE_RETURN_IF_ERROR(object->prepare(node));
    kernel = std::move(object);
    return {};
  }

  static Status take_workspace(Workspace& workspace, const Inputs& in, const Attributes& attributes) {
    return Types::pick(BoundTypes{in}, TakeWorkspace{workspace, in, attributes});
  }

  template <std::size_t... variables>
  static constexpr bool states_workspace(std::index_sequence<variables...>) {
    return StatesWorkspace<Class> || StatesWorkspaceOfTypes<Class, typename Types::template First<variables>...>;
  }
};

/// The kernel that a function of C is, for all dtypes of the signature.
template <OpgateKernel function>
struct CKernel {
  template <typename...>
  Status operator()(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) const {
    return run_c_kernel(function, context, in, attributes, out);
  }
};

template <typename OpTag, typename Class, Device device>
struct Registration {
  Registration() { Table::instance().add(OpTag::signature, OpTag::doc, device, KernelOf<OpTag, Class>::make()); }
};

}  // namespace opgate

/// Declares an op: a tag, the signature, one line of documentation.
#define OPGATE_OP(Tag, Signature, Doc)                  \
  namespace opgate::ops {                               \
  struct Tag {                                          \
    static constexpr const char* signature = Signature; \
    static constexpr const char* doc = Doc;             \
  };                                                    \
  }

// Kernels register before the other static objects of a library, so that such an object finds all of them.
#define OPGATE_REGISTRATION(Tag, Kernel, on)                                                                          \
  static const ::opgate::Registration<::opgate::ops::Tag, Kernel, ::opgate::Device::on> opgate_##on##_kernel_of_##Tag \
      __attribute__((init_priority(1000)));

#define OPGATE_CPU_KERNEL(Tag, Kernel) OPGATE_REGISTRATION(Tag, Kernel, cpu)

#define OPGATE_CUDA_KERNEL(Tag, Kernel) OPGATE_REGISTRATION(Tag, Kernel, cuda)

/// The same for a function of C (op_call/c_kernel.h), which any language may have compiled. This declares it.
#define OPGATE_C_KERNEL(Tag, function)       \
  extern "C" int function(OpgateCall* call); \
  OPGATE_CPU_KERNEL(Tag, ::opgate::CKernel<&function>)

/// States in a header that an op is elementwise, with its formula (elementary.h). The build generates <op>.cpp and
/// <op>.cu with the kernels, each unless the op's folder has it.
#define OPGATE_ELEMENTWISE(Tag, ...) using opgate_formula_of_##Tag = __VA_ARGS__;

/// The same for a formula that uses only arithmetic, comparisons and the functions of elementary.h. CUDA computes
/// 16-bit types with the fast approximations of the GPU.
#define OPGATE_FAST_ELEMENTWISE(Tag, ...) OPGATE_ELEMENTWISE(Tag, __VA_ARGS__)

/// States in a header that an op is a formula over rows (row_formula_kernel.h). The build generates its kernels too.
#define OPGATE_ROWS(Tag, ...) using opgate_formula_of_##Tag = __VA_ARGS__;
