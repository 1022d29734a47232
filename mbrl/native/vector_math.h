// Exponentials of arrays, to two units in the last place; what is not a number stays so.
#pragma once
#include "tiles.h"

#if defined(__AVX__)
#include <immintrin.h>
#endif

// exp(x), with x held in [-87.3, 88.7]: the range reduction and polynomial of Cephes' expf.
static inline Vec exp_of(Vec x) {
  x = x > 88.7f ? all(88.7f) : x;
  x = x < -87.3f ? all(-87.3f) : x;
  const Vec magic = all(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Vec n = (x * 1.44269504088896341f + magic) - magic;
  const Vec r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const VecI power = (__builtin_convertvector(n, VecI) + 127) << 23;
  return p * (Vec)power;
}

// log(1 + e) for e in [0, 1]: 2 artanh(e / (2 + e)) as a series.
static inline Vec log1p_of_unit(Vec e) {
  const Vec s = e / (e + 2.0f), q = s * s;
  Vec p = q * (1.0f / 15.0f) + 1.0f / 13.0f;
  p = p * q + 1.0f / 11.0f;
  p = p * q + 1.0f / 9.0f;
  p = p * q + 1.0f / 7.0f;
  p = p * q + 1.0f / 5.0f;
  p = p * q + 1.0f / 3.0f;
  p = p * q + 1.0f;
  return 2.0f * s * p;
}

static inline Vec absolute(Vec x) { return x < 0.0f ? -x : x; }

// tanh(x), for |x| below 0.625 by the polynomial of Cephes' tanhf; `e` is exp(-2 |x|).
static inline Vec tanh_of(Vec x, Vec e) {
  const Vec q = x * x;
  Vec p = q * -5.70498872745e-3f + 2.06390887954e-2f;
  p = p * q - 5.37397155531e-2f;
  p = p * q + 1.33314422036e-1f;
  p = p * q - 3.33332819422e-1f;
  const Vec near = x + x * q * p, far = (1.0f - e) / (1.0f + e);
  return absolute(x) < 0.625f ? near : x < 0.0f ? -far : far;
}

// The normal distribution function; `e` is exp(-z^2 / 2). Error function by formula 7.1.26 of Abramowitz
// and Stegun, to 1.5e-7.
static inline Vec normal_cdf(Vec z, Vec e) {
  const Vec t = 1.0f / (1.0f + absolute(z) * (0.3275911f * 0.70710678f));
  Vec p = t * 1.061405429f - 1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t - 0.284496736f;
  p = p * t + 0.254829592f;
  const Vec tail = 0.5f * p * t * e;
  return z < 0.0f ? tail : 1.0f - tail;
}

static inline Vec square_root(Vec x) {
#if defined(__AVX512F__)
  return (Vec)_mm512_sqrt_ps((__m512)x);
#elif defined(__AVX__)
  return (Vec)_mm256_sqrt_ps((__m256)x);
#else
  for (int i = 0; i < LANES; i++) x[i] = __builtin_sqrtf(x[i]);
  return x;
#endif
}

// By halves: one lane after the other would be a chain of additions that wait for each other.
static inline float sum_of(Vec x) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)x);
#elif defined(__AVX__)
  __m128 s = _mm_add_ps(_mm256_castps256_ps128((__m256)x), _mm256_extractf128_ps((__m256)x, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
#else
  float total = 0.0f;
  for (int i = 0; i < LANES; i++) total += x[i];
  return total;
#endif
}
