// The encoder of agents with memory over a tape: a linear layer with LayerNorm and LeakyReLU, then linear
// recurrent units (arXiv 2303.06349) with their gates, forward and backward.
#include "networks.h"

// Parameters: of the first layer weight [width, in], bias, scale, shift; then of every unit nu, theta and
// the scale of its inputs [states], scale and shift of its LayerNorm [width], what enters [width, states]
// and what comes out [states, width], real and imaginary each, the skip [width], and weight [width, width]
// and bias of value and gate.
struct Encoder {
  Int rows, in, row, width, states, units;  // of x [rows, in] and its stride
  const float* x;
  const uint8_t* first;  // [rows], where sequences begin: the state before is 0 there
  float** parameters;
  float* out;     // [rows, width]
  float* memory;  // [rows, units, 2, states], the state after every row; null: not wanted
  float* kept;    // of kept_size: what a backward pass needs; null: nothing is kept
};

enum Of : Int { Nu, Theta, InScale, Scale, Shift, IntoReal, IntoImag, OutReal, OutImag, Skip, Value, ValueBias, Gate, GateBias };
static const Int embedding = 4, of_a_unit = 14;

struct Unit {
  float *normal, *inverse, *u, *h, *z, *y, *value, *gate;  // `gate` behind its sigmoid; h [rows, 2 states]
};

struct Kept {
  float *normal, *inverse, *hidden;
  std::vector<Unit> units;
};

extern "C" Int encoder_kept(Int rows, Int width, Int states, Int units) {
  return rows * (2 * width + 1 + units * (6 * width + 2 * states + 1));
}

static Kept lay_out(const Encoder& e, float* at) {
  const Int n = e.rows * e.width;
  Kept kept{at, at + n, at + n + e.rows, {}};
  at += 2 * n + e.rows;
  for (Int i = 0; i < e.units; i++) {
    Unit unit;
    float** const parts[] = {&unit.normal, &unit.u, &unit.z, &unit.y, &unit.value, &unit.gate};
    for (float** part : parts) *part = at, at += n;
    unit.h = at, at += 2 * e.rows * e.states;
    unit.inverse = at, at += e.rows;
    kept.units.push_back(unit);
  }
  return kept;
}

// A unit's decay as real and imaginary parts, and both matrices in real parts: what enters as
// [width, 2 states], scaled, and what comes out as [2 states, width].
struct Real {
  float *decay_real, *decay_imag, *scale, *into, *out;
};

static Real in_real_parts(const Encoder& e, float** p) {
  const Int s = e.states, w = e.width;
  Real real{arena.take(s), arena.take(s), arena.take(s), arena.take(2 * s * w), arena.take(2 * s * w)};
  for (Int i = 0; i < s; i++) {
    const float modulus = std::exp(-std::exp(p[Nu][i])), phase = std::exp(p[Theta][i]);
    real.decay_real[i] = modulus * std::cos(phase);
    real.decay_imag[i] = modulus * std::sin(phase);
    real.scale[i] = std::exp(p[InScale][i]);
  }
  for (Int k = 0; k < w; k++)
    for (Int i = 0; i < s; i++) {
      real.into[k * 2 * s + i] = p[IntoReal][k * s + i] * real.scale[i];
      real.into[k * 2 * s + s + i] = p[IntoImag][k * s + i] * real.scale[i];
    }
  for (Int i = 0; i < s * w; i++) {
    real.out[i] = p[OutReal][i];
    real.out[s * w + i] = -p[OutImag][i];
  }
  return real;
}

// h_t = decay h_{t-1} + h_t down the rows of h [rows, 2 states], in place.
static void scan(const Encoder& e, const Real& real, float* h) {
  const Int s = e.states;
  const float *__restrict ar = real.decay_real, *__restrict ai = real.decay_imag;
  for (Int t = 1; t < e.rows; t++) {
    if (e.first[t]) continue;
    float* __restrict now = h + t * 2 * s;
    const float* __restrict before = h + (t - 1) * 2 * s;
    for (Int i = 0; i < s; i++) {
      const float re = before[i], im = before[s + i];
      now[i] += ar[i] * re - ai[i] * im;
      now[s + i] += ai[i] * re + ar[i] * im;
    }
  }
}

// From the cotangents g of the states, in place, those of what entered; adds to those of the decay.
static void scan_gradient(const Encoder& e, const Real& real, const float* h, float* g, float* __restrict d_real,
                          float* __restrict d_imag) {
  const Int s = e.states;
  const float *__restrict ar = real.decay_real, *__restrict ai = real.decay_imag;
  for (Int t = e.rows - 1; t > 0; t--) {
    if (e.first[t]) continue;
    const float *__restrict now = g + t * 2 * s, *__restrict known = h + (t - 1) * 2 * s;
    float* __restrict before = g + (t - 1) * 2 * s;
    for (Int i = 0; i < s; i++) {
      const float re = now[i], im = now[s + i];
      before[i] += ar[i] * re + ai[i] * im;
      before[s + i] += ar[i] * im - ai[i] * re;
      d_real[i] += re * known[i] + im * known[s + i];
      d_imag[i] += im * known[i] - re * known[s + i];
    }
  }
}

static void sigmoid(float* z, Int count) {
  Int i = 0;
  for (; i + LANES <= count; i += LANES) store(z + i, 1.0f / (1.0f + exp_of(-load(z + i))));
  const Vec rest = 1.0f / (1.0f + exp_of(-load_some(z + i, count - i)));
  std::memcpy(z + i, &rest, (count - i) * sizeof(float));
}

static Int longest(const Encoder& e) {
  Int most = e.rows;
  for (Int n : {e.in, e.width, 2 * e.states}) most = n > most ? n : most;
  return most;
}

static View transpose(View a) { return View{a.data, a.column, a.row}; }

extern "C" void encoder_forward(const Encoder* call) {
  arena.clear();
  const Encoder& e = *call;
  const Int n = e.rows, w = e.width, s = e.states;
  float* panel = arena.take(longest(e) * TILE_VECTORS * LANES);
  float* work = e.kept ? e.kept : arena.take(encoder_kept(n, w, s, e.units));
  Kept kept = lay_out(e, work);
  float** p = e.parameters;
  product(n, w, e.in, View{e.x, e.row, 1}, View{p[0], 1, e.in}, Out{kept.normal, w, Then::Bias, p[1]}, panel);
  layer_norm(kept.normal, kept.inverse, kept.hidden, p[2], p[3], n, w);
  activate(LeakyRelu, kept.hidden, kept.hidden, n * w);
  std::memcpy(e.out, kept.hidden, n * w * sizeof(float));
  p += embedding;
  for (Int l = 0; l < e.units; l++, p += of_a_unit) {
    Unit& k = kept.units[l];
    const Real real = in_real_parts(e, p);
    std::memcpy(k.normal, e.out, n * w * sizeof(float));
    layer_norm(k.normal, k.inverse, k.u, p[Scale], p[Shift], n, w);
    product(n, 2 * s, w, View{k.u, w, 1}, View{real.into, 2 * s, 1}, Out{k.h, 2 * s}, panel);
    scan(e, real, k.h);
    if (e.memory)
      for (Int t = 0; t < n; t++)
        std::memcpy(e.memory + (t * e.units + l) * 2 * s, k.h + t * 2 * s, 2 * s * sizeof(float));
    product(n, w, 2 * s, View{k.h, 2 * s, 1}, View{real.out, w, 1}, Out{k.z, w}, panel);
    for (Int t = 0; t < n; t++)
      for (Int i = 0; i < w; i++) k.z[t * w + i] += k.u[t * w + i] * p[Skip][i];
    activate(Gelu, k.z, k.y, n * w);
    product(n, w, w, View{k.y, w, 1}, View{p[Value], 1, w}, Out{k.value, w, Then::Bias, p[ValueBias]}, panel);
    product(n, w, w, View{k.y, w, 1}, View{p[Gate], 1, w}, Out{k.gate, w, Then::Bias, p[GateBias]}, panel);
    sigmoid(k.gate, n * w);
    for (Int i = 0; i < n * w; i++) e.out[i] += k.value[i] * k.gate[i];
  }
}

struct EncoderGradient {
  Encoder forward;
  const float* cotangent;  // of out
  float** gradients;       // by parameter
  float* input_gradient;   // [rows, in]; null: not wanted
};

static void gate_gradient(const float* __restrict d, const float* __restrict value, const float* __restrict gate,
                          float* __restrict d_value, float* __restrict d_gate, Int count) {
  for (Int i = 0; i < count; i++) {
    d_value[i] = d[i] * gate[i];
    d_gate[i] = d[i] * value[i] * gate[i] * (1.0f - gate[i]);
  }
}

// Of one row: adds to the gradient of the skip, and writes that of what it multiplied.
static void skip_gradient(const float* __restrict dz, const float* __restrict u, const float* __restrict skip,
                          float* __restrict d_skip, float* __restrict du, Int count) {
  for (Int i = 0; i < count; i++) {
    d_skip[i] += dz[i] * u[i];
    du[i] = dz[i] * skip[i];
  }
}

// From the cotangent d [rows, width] of a unit's output, in place, that of its input.
static void unit_gradient(const Encoder& e, const Unit& k, float** p, float** g, float* d, float* panel) {
  const Int n = e.rows, w = e.width, s = e.states, size = n * w;
  const Real real = in_real_parts(e, p);
  float *dv = arena.take(size), *dg = arena.take(size), *dz = arena.take(size), *dh = arena.take(2 * n * s);
  gate_gradient(d, k.value, k.gate, dv, dg, size);
  const View y{k.y, w, 1}, u{k.u, w, 1};
  product(w, w, n, View{dv, 1, w}, y, Out{g[Value], w}, panel);
  product(w, w, n, View{dg, 1, w}, y, Out{g[Gate], w}, panel);
  column_sums(g[ValueBias], dv, nullptr, n, w);
  column_sums(g[GateBias], dg, nullptr, n, w);
  product(n, w, w, View{dv, w, 1}, View{p[Value], w, 1}, Out{dz, w}, panel);
  product(n, w, w, View{dg, w, 1}, View{p[Gate], w, 1}, Out{dz, w, Then::Add}, panel);
  activation_gradient(Gelu, dz, k.z, size);
  float* du = dv;
  std::memset(g[Skip], 0, w * sizeof(float));
  for (Int t = 0; t < n; t++) skip_gradient(dz + t * w, k.u + t * w, p[Skip], g[Skip], du + t * w, w);
  const View h{k.h, 2 * s, 1}, of_z{dz, w, 1};
  product(s, w, n, transpose(h), of_z, Out{g[OutReal], w}, panel);
  product(s, w, n, View{k.h + s, 1, 2 * s}, of_z, Out{g[OutImag], w}, panel);
  for (Int i = 0; i < s * w; i++) g[OutImag][i] = -g[OutImag][i];
  product(n, 2 * s, w, of_z, View{real.out, 1, w}, Out{dh, 2 * s}, panel);
  float *d_real = arena.take(s), *d_imag = arena.take(s), *d_into = arena.take(2 * s * w);
  std::memset(d_real, 0, s * sizeof(float));
  std::memset(d_imag, 0, s * sizeof(float));
  scan_gradient(e, real, k.h, dh, d_real, d_imag);
  const View of_h{dh, 2 * s, 1};
  product(w, 2 * s, n, transpose(u), of_h, Out{d_into, 2 * s}, panel);
  product(n, w, 2 * s, of_h, View{real.into, 1, 2 * s}, Out{du, w, Then::Add}, panel);
  for (Int i = 0; i < s; i++) {
    const float along = d_real[i] * real.decay_real[i] + d_imag[i] * real.decay_imag[i];
    const float across = d_imag[i] * real.decay_real[i] - d_real[i] * real.decay_imag[i];
    g[Nu][i] = -along * std::exp(p[Nu][i]);
    g[Theta][i] = across * std::exp(p[Theta][i]);
    g[InScale][i] = 0.0f;
  }
  for (Int j = 0; j < w; j++)
    for (Int i = 0; i < s; i++) {
      const float *from = d_into + j * 2 * s, *into = real.into + j * 2 * s;
      g[InScale][i] += from[i] * into[i] + from[s + i] * into[s + i];
      g[IntoReal][j * s + i] = from[i] * real.scale[i];
      g[IntoImag][j * s + i] = from[s + i] * real.scale[i];
    }
  std::memset(g[Scale], 0, w * sizeof(float));
  std::memset(g[Shift], 0, w * sizeof(float));
  layer_norm_gradient(du, k.normal, k.inverse, p[Scale], g[Scale], g[Shift], n, w);
  for (Int i = 0; i < size; i++) d[i] += du[i];
}

extern "C" void encoder_backward(const EncoderGradient* call) {
  arena.clear();
  const Encoder& e = call->forward;
  const Int n = e.rows, w = e.width;
  float* panel = arena.take(longest(e) * TILE_VECTORS * LANES);
  Kept kept = lay_out(e, e.kept);
  float* d = arena.take(n * w);
  std::memcpy(d, call->cotangent, n * w * sizeof(float));
  for (Int l = e.units - 1; l >= 0; l--) {
    const Int at = embedding + l * of_a_unit;
    unit_gradient(e, kept.units[l], e.parameters + at, call->gradients + at, d, panel);
  }
  float **p = e.parameters, **g = call->gradients;
  activation_gradient(LeakyRelu, d, kept.hidden, n * w);
  std::memset(g[2], 0, w * sizeof(float));
  std::memset(g[3], 0, w * sizeof(float));
  layer_norm_gradient(d, kept.normal, kept.inverse, p[2], g[2], g[3], n, w);
  product(w, e.in, n, View{d, 1, w}, View{e.x, e.row, 1}, Out{g[0], e.in}, panel);
  column_sums(g[1], d, nullptr, n, w);
  if (call->input_gradient)
    product(n, e.in, w, View{d, w, 1}, View{p[0], e.in, 1}, Out{call->input_gradient, e.in}, panel);
}
