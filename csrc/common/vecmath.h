// Elementary functions in float32 on vectors, as inlined polynomials.
//
// Coefficients come from fit_polynomials.py; tests/cpu/test_vecmath.py measures the errors that
// are stated here (in units of the last place of the exact result, ulp, over the stated domain).
#pragma once

#include "inline.h"

namespace fastlbbnn {
namespace FASTLBBNN_ARCH {

// exp(x) for x <= 0; below -87 the result stays at exp(-87), the smallest that is still a normal
// number, so that a quotient or logarithm of it is finite.           error < 5 ulp, < 1.2 for x > -10
template <class V>
FL_INLINE typename V::F exp_nonpositive(typename V::F x) {
  using F = typename V::F;
  // x = n log(2) + r with |r| <= log(2)/2; adding 1.5 * 2^23 leaves the rounded n in the low bits.
  const F magic = V::set1(12582912.0f);
  x = V::max(x, V::set1(-87.0f));
  const F shifted = V::fma(x, V::set1(0x1.715476p+0f), magic);
  const F n = V::sub(shifted, magic);
  const F r = V::minus_n_log2(x, n);
  F p = V::set1(0x1.6a5198p-10f);
  p = V::fma(p, r, V::set1(0x1.12397cp-7f));
  p = V::fma(p, r, V::set1(0x1.5558acp-5f));
  p = V::fma(p, r, V::set1(0x1.555492p-3f));
  p = V::fma(p, r, V::set1(0x1.fffffcp-2f));
  p = V::fma(p, r, V::set1(1.0f));
  p = V::fma(p, r, V::set1(1.0f));
  return V::times_power_of_two(p, n, shifted);
}

// log(x) for positive normal x.                                                  error < 2 ulp
template <class V>
FL_INLINE typename V::F log_positive(typename V::F x) {
  using F = typename V::F;
  using I = typename V::I;
  // x = 2^e m with m in [sqrt(1/2), sqrt(2)).
  const I offset = V::subi(V::bits(x), V::seti(0x3f3504f3u));
  const I e = V::template sar<23>(offset);
  const F m = V::floats(V::subi(V::bits(x), V::template shl<23>(e)));
  const F t = V::sub(m, V::set1(1.0f));
  const F n = V::to_float(e);
  F p = V::set1(0x1.6603a4p-4f);
  p = V::fma(p, t, V::set1(-0x1.25113cp-3f));
  p = V::fma(p, t, V::set1(0x1.317ee0p-3f));
  p = V::fma(p, t, V::set1(-0x1.535aa8p-3f));
  p = V::fma(p, t, V::set1(0x1.98d330p-3f));
  p = V::fma(p, t, V::set1(-0x1.0004aep-2f));
  p = V::fma(p, t, V::set1(0x1.5556f2p-2f));
  p = V::fma(p, t, V::set1(-0x1.fffffap-2f));
  p = V::fma(V::mul(t, t), p, V::mul(n, V::set1(0x1.7f7d1cp-20f)));
  return V::fma(n, V::set1(0x1.62e400p-1f), V::add(t, p));
}

// log(1 + t) for 0 <= t <= 1.                                                    error < 3 ulp
template <class V>
FL_INLINE typename V::F log1p_unit(typename V::F t) {
  using F = typename V::F;
  F p = V::set1(0x1.fce776p-9f);
  p = V::fma(p, t, V::set1(-0x1.8d3010p-6f));
  p = V::fma(p, t, V::set1(0x1.1e6428p-4f));
  p = V::fma(p, t, V::set1(-0x1.09e636p-3f));
  p = V::fma(p, t, V::set1(0x1.8101eep-3f));
  p = V::fma(p, t, V::set1(-0x1.fb40dap-3f));
  p = V::fma(p, t, V::set1(0x1.5518bap-2f));
  p = V::fma(p, t, V::set1(-0x1.fffda0p-2f));
  return V::mul(V::fma(p, t, V::set1(0x1.fffffep-1f)), t);
}

// alpha = sigmoid(omega), with what its derivative and its entropy need.
template <class V>
struct Inclusion {
  typename V::F alpha;       // sigmoid(omega)                                    error < 3 ulp
  typename V::F slope;       // alpha (1 - alpha)
  typename V::F decay;       // exp(-|omega|)
  typename V::F complement;  // the smaller of alpha and 1 - alpha
};

// e = exp(-|omega|)
template <class V>
FL_INLINE Inclusion<V> inclusion_from_decay(typename V::F omega, typename V::F e) {
  using F = typename V::F;
  const F one = V::set1(1.0f);
  const F larger = V::div(one, V::add(one, e));
  const F smaller = V::mul(e, larger);
  const F alpha = V::select(V::lt(omega, V::set1(0.0f)), smaller, larger);
  return {alpha, V::mul(smaller, larger), e, smaller};
}

template <class V>
FL_INLINE Inclusion<V> inclusion(typename V::F omega) {
  return inclusion_from_decay<V>(omega, exp_nonpositive<V>(V::minus_abs(omega)));
}

// -(alpha log alpha + (1-alpha) log(1-alpha)) = log1p(e) + |omega| min(alpha, 1-alpha), e = exp(-|omega|):
// a sum of two positive terms, so nothing cancels when the indicator is nearly certain.
template <class V>
FL_INLINE typename V::F entropy(const Inclusion<V>& q, typename V::F omega) {
  return V::fma(V::abs(omega), q.complement, log1p_unit<V>(q.decay));
}

// tau = softplus(rho) and its companions.   each error < 5 ulp, log_tau of max(1, |log_tau|)
template <class V>
struct Scale {
  typename V::F tau;
  typename V::F log_tau;
  typename V::F sigmoid_over_tau;  // (d tau / d rho) / tau = d log tau / d rho
};

// With t = exp(rho): tau = log1p(t), log tau = rho + log(log1p(t)/t) and
// (d tau/d rho)/tau = t / ((1+t) log1p(t)). For rho <= -2, where posterior scales mostly are, all
// three are short polynomials in t: no logarithm and no division.
template <class V, bool kDerivative>
FL_INLINE Scale<V> small_scale(typename V::F rho, typename V::F t) {
  using F = typename V::F;
  Scale<V> s;
  F p = V::set1(0x1.3b4de8p-3f);
  p = V::fma(p, t, V::set1(-0x1.f5ed3cp-3f));
  p = V::fma(p, t, V::set1(0x1.551d5ap-2f));
  p = V::fma(p, t, V::set1(-0x1.ffff3cp-2f));
  s.tau = V::fma(V::mul(p, t), t, t);
  F q = V::set1(0x1.198a66p-4f);
  q = V::fma(q, t, V::set1(-0x1.f7ecbep-4f));
  q = V::fma(q, t, V::set1(0x1.aa7ddcp-3f));
  q = V::fma(q, t, V::set1(-0x1.ffffb2p-2f));
  s.log_tau = V::fma(q, t, rho);
  s.sigmoid_over_tau = V::set1(0.0f);
  if (kDerivative) {
    F r = V::set1(0x1.098244p-2f);
    r = V::fma(r, t, V::set1(-0x1.764e40p-2f));
    r = V::fma(r, t, V::set1(0x1.aa3f6cp-2f));
    r = V::fma(r, t, V::set1(-0x1.fffe8ap-2f));
    s.sigmoid_over_tau = V::fma(r, t, V::set1(1.0f));
  }
  return s;
}

// t = exp(-|rho|)
template <class V, bool kDerivative>
FL_INLINE Scale<V> scale_from_decay(typename V::F rho, typename V::F t) {
  using F = typename V::F;
  const F zero = V::set1(0.0f), one = V::set1(1.0f), edge = V::set1(-2.0f);
  const Scale<V> small = small_scale<V, kDerivative>(rho, t);
  const auto large = V::lt(edge, rho);
  if (__builtin_expect(!V::any(large), 1)) return small;
  Scale<V> s;
  const F tau = V::add(V::max(rho, zero), log1p_unit<V>(t));
  s.tau = V::select(large, tau, small.tau);
  s.log_tau = V::select(large, log_positive<V>(V::max(tau, V::set1(1e-30f))), small.log_tau);
  s.sigmoid_over_tau = zero;
  if (kDerivative) {
    const F sigmoid = V::div(V::select(V::lt(rho, zero), t, one), V::add(one, t));
    s.sigmoid_over_tau =
        V::select(large, V::div(sigmoid, V::max(tau, V::set1(1e-30f))), small.sigmoid_over_tau);
  }
  return s;
}

// 1/x to about one ulp, faster than a division where a loop already has several.
template <class V>
FL_INLINE typename V::F reciprocal(typename V::F x) {
  using F = typename V::F;
  const F r = V::reciprocal_guess(x);
  return V::fma(V::nfma(x, r, V::set1(1.0f)), r, r);
}

}  // namespace FASTLBBNN_ARCH
}  // namespace fastlbbnn
