#include "mish.h"

#include "core/elementwise.h"

namespace opgate::ops {
namespace {

/// exp(x) for x in [-87, 20]: 2^k times a polynomial on [-ln2/2, ln2/2] (Cephes' expf), without a branch so that the
/// loop around it vectorizes. Within 2 ulp.
inline float exp_in_range(float x) {
  const float k = std::floor(x * 1.44269504088896341f + 0.5f);
  const float r = (x - k * 0.693359375f) + k * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float power = std::bit_cast<float>((static_cast<std::int32_t>(k) + 127) << 23);
  return (p * r * r + r + 1.0f) * power;
}

inline double exp_in_range(double x) { return std::exp(x); }

/// tanh(ln(1 + e)) = ((1 + e)^2 - 1) / ((1 + e)^2 + 1) = n / (n + 2) with n = e (e + 2) and e = exp(x): one exponential
/// and no cancellation. From x = 20 on the factor is 1 in either precision. Below -87 (f32) or -700 (f64), where e is
/// about to become denormal, |mish(x)| is under 1e-35 and taken as 0, which is also the limit at -inf.
template <typename C>
C mish(C x) {
  constexpr C kLow = std::is_same_v<C, float> ? C(-87) : C(-700);
  const C above = x >= kLow ? x : kLow;  // NaN too: it must not reach the conversion to an integer
  const C e = exp_in_range(above > C(20) ? C(20) : above);
  const C n = e * (e + C(2));
  return x < kLow ? C(0) : x > C(20) ? x : x * (n / (n + C(2)));
}

struct MishCpu {
  template <typename T>
  Status operator()(Context& context, const Inputs& in, const Attributes&, Outputs& out) const {
    const Tensor& y = out["y"];
    map_elements<T>(
        context, y.size(), y.data<T>(), [](auto x) { return mish(x); }, static_cast<const T*>(in["x"].data<T>()));
    return {};
  }
};

}  // namespace
}  // namespace opgate::ops

OPGATE_CPU_KERNEL(Mish, opgate::ops::MishCpu)
