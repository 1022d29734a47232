// The Gaussian negative log-likelihood of an ensemble with softly bounded log-variances, and its
// gradients, one member after the other.
#include "networks.h"

struct Likelihood {
  const Network* net;  // out of its last layer: mean, then raw log-variance, of a target
  Int rows, activation;
  const float *x, *target;   // [members, rows, in] and [members, rows, out / 2]
  const float *low, *high;   // bounds of log-variances [out / 2]
  float** gradients;         // by parameter
  float *d_low, *d_high;     // added to
};

static inline Vec some(const float* p, Int count) {
  if (count >= LANES) return load(p);
  Vec v{};
  std::memcpy(&v, p, count * sizeof(float));
  return v;
}

static inline void keep(float* p, Vec v, Int count) {
  if (count >= LANES)
    store(p, v);
  else
    std::memcpy(p, &v, count * sizeof(float));
}

// log(1 + exp(x)), and its derivative.
static inline Vec softplus(Vec x, Vec* slope) {
  const Vec e = exp_of(-absolute(x)), one_over = 1.0f / (1.0f + e);
  *slope = x < 0.0f ? e * one_over : one_over;
  return log1p_of_unit(e) + (x < 0.0f ? Vec{} : x);
}

// sum of (log-variance + (target - mean)^2 / variance) / (rows size) over `out` [rows, 2 size], which
// becomes its gradient.
static double likelihood(const Likelihood& c, float* out, const float* target, Int size) {
  double total = 0.0;
  const float share = 1.0f / (c.rows * size);
  for (Int r = 0; r < c.rows; r++, out += 2 * size, target += size) {
    for (Int i = 0; i < size; i += LANES) {
      const Int left = size - i;
      const Vec low = some(c.low + i, left), high = some(c.high + i, left);
      Vec above, below;
      const Vec capped = high - softplus(high - some(out + size + i, left), &above);
      const Vec spread = low + softplus(capped - low, &below);
      const Vec error = some(target + i, left) - some(out + i, left), inverse = exp_of(-spread);
      const Vec squared = error * error * inverse, value = (squared + spread) * share;
      const Vec d_spread = (1.0f - squared) * share;
      keep(out + i, error * inverse * (-2.0f * share), left);
      keep(out + size + i, d_spread * below * above, left);
      keep(c.d_low + i, some(c.d_low + i, left) + d_spread * (1.0f - below), left);
      keep(c.d_high + i, some(c.d_high + i, left) + d_spread * below * (1.0f - above), left);
      float sum = 0.0f;
      for (Int l = 0; l < (left < LANES ? left : LANES); l++) sum += value[l];
      total += sum;
    }
  }
  return total;
}

extern "C" double likelihood_gradients(const Likelihood* call) {
  arena.clear();
  const Likelihood& c = *call;
  const Network& net = *c.net;
  const Int in = net.in(0), size = net.out(net.depth - 1) / 2, wide = net.widest();
  float* panel = arena.take((wide > c.rows ? wide : c.rows) * TILE_VECTORS * LANES);
  float* const scratch[2] = {arena.take(c.rows * wide), arena.take(c.rows * wide)};
  float* out = arena.take(c.rows * 2 * size);
  Pass pass = new_pass(net, c.x, c.rows, in);
  pass.activation = (Activation)c.activation;
  if (pass.activation == Silu || pass.activation == Gelu)
    for (Int l = 0; l + 1 < net.depth; l++) pass.before.push_back(arena.take(c.rows * net.out(l)));
  Gradients gradients;
  gradients.of.assign(c.gradients, c.gradients + net.tensors());
  double total = 0.0;
  for (Int e = 0; e < net.members; e++) {
    pass.x = c.x + e * c.rows * in;
    forward(net, e, pass, out, panel);
    total += likelihood(c, out, c.target + e * c.rows * size, size);
    backward(net, e, pass, out, &gradients, scratch, panel);
  }
  return total;
}
