// All that an op's sources include.
//
//   cube.h     OPGATE_OP(Cube, "<T: f32|f64> Cube(x: T[...]) -> (y: T[...])", "x cubed, elementwise.")
//   cube.cpp   OPGATE_CPU_KERNEL(Cube, CubeCpu)
#pragma once

#include "kernel.h"
#include "table.h"

namespace opgate {

/// The dtypes of each type variable, read from a signature by the compiler, so that a kernel template is made for
/// exactly those. It trusts the signature's syntax: the parser checks it when the library loads.
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
      // An unknown dtype is left to the parser, which says its column when the library loads.
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

/// Picks the instance of a kernel template for the types that a call has bound.
template <typename OpTag, typename Kernel>
struct Dispatch {
  static constexpr TypeLists kTypes = TypeLists::of(OpTag::signature);

  static Status run(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) {
    return pick<>(context, in, attributes, out);
  }

 private:
  template <typename... Bound>
  static Status pick(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) {
    if constexpr (static_cast<int>(sizeof...(Bound)) == kTypes.count) {
      if constexpr (kTypes.count == 0)
        return Kernel{}(context, in, attributes, out);
      else
        return Kernel{}.template operator()<Bound...>(context, in, attributes, out);
    } else {
      return among<0, Bound...>(context, in, attributes, out);
    }
  }

  template <int Candidate, typename... Bound>
  static Status among(Context& context, const Inputs& in, const Attributes& attributes, Outputs& out) {
    constexpr int variable = sizeof...(Bound);
    if constexpr (Candidate == kDTypeCount) {
      return Status::internal("no kernel for type " + std::string(name_of(context.type(variable))));
    } else {
      if constexpr ((kTypes.masks[variable] >> Candidate) & 1u) {
        constexpr DType dtype = static_cast<DType>(Candidate);
        if (context.type(variable) == dtype) {
          return pick<Bound..., typename CppType<dtype>::type>(context, in, attributes, out);
        }
      }
      return among<Candidate + 1, Bound...>(context, in, attributes, out);
    }
  }
};

template <typename OpTag, typename Kernel, Device device>
struct Registration {
  Registration() { Table::instance().add(OpTag::signature, OpTag::doc, device, &Dispatch<OpTag, Kernel>::run); }
};

}  // namespace opgate

/// States an op: a tag, the signature, one line of documentation.
#define OPGATE_OP(Tag, Signature, Doc)                  \
  namespace opgate::ops {                               \
  struct Tag {                                          \
    static constexpr const char* signature = Signature; \
    static constexpr const char* doc = Doc;             \
  };                                                    \
  }

#define OPGATE_CPU_KERNEL(Tag, Kernel) \
  static const ::opgate::Registration<::opgate::ops::Tag, Kernel, ::opgate::Device::cpu> opgate_cpu_kernel_of_##Tag;

#define OPGATE_CUDA_KERNEL(Tag, Kernel) \
  static const ::opgate::Registration<::opgate::ops::Tag, Kernel, ::opgate::Device::cuda> opgate_cuda_kernel_of_##Tag;
