#include "my_add.h"

#include "core/elementwise.h"

namespace opgate::ops {
namespace {

struct MyAddCpu {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes&, Outputs& out) const {
    // Integers wrap around as NumPy's do: the sum is formed in the unsigned type.
    const auto sum = [](auto a, auto b) {
      using C = decltype(a);
      if constexpr (std::is_integral_v<C>) {
        using U = std::make_unsigned_t<C>;
        return static_cast<C>(U{2} * static_cast<U>(a) + static_cast<U>(b));
      } else {
        return C{2} * a + b;
      }
    };
    const Tensor& y = out["y"];
    map_elements<T>(context, y.size(), y.data<T>(), sum, static_cast<const T*>(in["a"].data<T>()),
                    static_cast<const T*>(in["b"].data<T>()));
    return {};
  }
};

}  // namespace
}  // namespace opgate::ops

OPGATE_CPU_KERNEL(MyAdd, opgate::ops::MyAddCpu)
