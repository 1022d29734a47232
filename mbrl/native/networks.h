// Ensembles of multi-layer perceptrons, with or without LayerNorm, one member after the other, so that
// a member's activations stay in cache; Adam; averages of weights.
#pragma once
#include <cmath>
#include <cstdlib>
#include <vector>

#include "vector_math.h"

// Scratch memory of one call: pieces are handed out one after the other and all taken back at the
// next call's `clear`.
class Arena {
 public:
  void clear() { block_ = used_ = 0; }
  float* take(Int count) {
    count = (count + 31) / 16 * 16;  // a vector may be read beyond the end
    while (block_ < blocks_.size() && used_ + count > sizes_[block_]) block_++, used_ = 0;
    if (block_ == blocks_.size()) {
      const Int size = count > (1 << 18) ? count : (1 << 18);
      blocks_.push_back((float*)std::aligned_alloc(64, size * sizeof(float)));
      sizes_.push_back(size);
      used_ = 0;
    }
    float* piece = blocks_[block_] + used_;
    used_ += count;
    return piece;
  }
  ~Arena() {
    for (float* b : blocks_) std::free(b);
  }

 private:
  std::vector<float*> blocks_;
  std::vector<Int> sizes_;
  size_t block_ = 0;
  Int used_ = 0;
};

static thread_local Arena arena;

// Parameters as torch holds them. Weights of layer l are [members, in, out], or with `transposed`
// one member's [out, in]; biases [members, out]; with `norm` scales and shifts [members, out] of the
// LayerNorm after every hidden layer's product. `parameters` holds all weights, then all biases, all
// scales and all shifts; so do the moments and step counts of its Adam, which are null where it is not
// trained.
struct Network {
  Int members, depth, transposed, norm;
  const Int* sizes;
  float** parameters;
  float** first_moments;
  float** second_moments;
  float** steps;

  Int in(Int l) const { return sizes[l]; }
  Int out(Int l) const { return sizes[l + 1]; }
  Int weights_size(Int l) const { return in(l) * out(l); }
  const float* weight(Int l, Int e) const { return parameters[l] + e * weights_size(l); }
  const float* bias(Int l, Int e) const { return parameters[depth + l] + e * out(l); }
  const float* scale(Int l, Int e) const { return parameters[2 * depth + l] + e * out(l); }
  const float* shift(Int l, Int e) const { return parameters[3 * depth - 1 + l] + e * out(l); }
  Int tensors() const { return norm ? 4 * depth - 2 : 2 * depth; }
  Int count(Int i) const {
    if (i < depth) return members * weights_size(i);
    return members * out(i < 2 * depth ? i - depth : (i - 2 * depth) % (depth - 1));
  }
  // W of a layer as [in, out], and its transpose.
  View forward_view(Int l, Int e) const {
    return transposed ? View{weight(l, e), 1, in(l)} : View{weight(l, e), out(l), 1};
  }
  View backward_view(Int l, Int e) const {
    const View w = forward_view(l, e);
    return View{w.data, w.column, w.row};
  }
  Int widest() const {
    Int most = 0;
    for (Int l = 0; l <= depth; l++) most = sizes[l] > most ? sizes[l] : most;
    return most;
  }
};

enum Activation : Int { Relu, LeakyRelu, Tanh, Silu, Gelu };

// What one member's passes over a batch need: an input, and the activations of its hidden layers;
// with SiLU and GELU also what they are activations of; with LayerNorm the rows that it standardised and one
// over the deviation of each.
struct Pass {
  const float* x;
  Int rows, row;  // rows of x and their stride
  std::vector<float*> hidden, before;
  Activation activation = Relu;
  std::vector<float*> normal = {}, inverse = {};
};

struct Gradients {
  std::vector<float*> of;  // by parameter, as in Network

  Gradients() = default;
  explicit Gradients(const Network& net) {
    for (Int i = 0; i < net.tensors(); i++) of.push_back(arena.take(net.count(i)));
  }
  float* weight(const Network& net, Int l, Int e) { return of[l] + e * net.weights_size(l); }
  float* bias(const Network& net, Int l, Int e) { return of[net.depth + l] + e * net.out(l); }
  float* scale(const Network& net, Int l, Int e) { return of[2 * net.depth + l] + e * net.out(l); }
  float* shift(const Network& net, Int l, Int e) { return of[3 * net.depth - 1 + l] + e * net.out(l); }
};

static Pass new_pass(const Network& net, const float* x, Int rows, Int row) {
  Pass pass{x, rows, row, {}, {}};
  for (Int l = 0; l + 1 < net.depth; l++) {
    pass.hidden.push_back(arena.take(rows * net.out(l)));
    if (!net.norm) continue;
    pass.normal.push_back(arena.take(rows * net.out(l)));
    pass.inverse.push_back(arena.take(rows));
  }
  return pass;
}

static float dot(const float* a, const float* b, Int n) {
  Vec sum{};
  Int i = 0;
  for (; i + LANES <= n; i += LANES) sum += load(a + i) * load(b + i);
  float total = sum_of(sum);
  for (; i < n; i++) total += a[i] * b[i];
  return total;
}

static inline Vec activation(Activation kind, Vec z) {
  switch (kind) {
    case Relu: return z < 0.0f ? Vec{} : z;
    case LeakyRelu: return z < 0.0f ? z * 0.01f : z;
    case Tanh: return tanh_of(z, exp_of(absolute(z) * -2.0f));
    case Silu: return z / (1.0f + exp_of(-z));
    case Gelu: return z * normal_cdf(z, exp_of(z * z * -0.5f));
  }
  return z;
}

// The derivative at z, from h = activation(z), or with SiLU and GELU from z itself.
static inline Vec slope(Activation kind, Vec h) {
  switch (kind) {
    case Relu: return h > 0.0f ? all(1.0f) : Vec{};
    case LeakyRelu: return h > 0.0f ? all(1.0f) : all(0.01f);
    case Tanh: return 1.0f - h * h;
    case Silu: {
      const Vec s = 1.0f / (1.0f + exp_of(-h));
      return s * (1.0f + h * (1.0f - s));
    }
    case Gelu: {
      const Vec e = exp_of(h * h * -0.5f);
      return normal_cdf(h, e) + h * e * 0.39894228f;
    }
  }
  return h;
}

// The last numbers of an array, as a vector.
static inline Vec load_some(const float* p, Int count) {
  Vec v{};
  std::memcpy(&v, p, count * sizeof(float));
  return v;
}

// h = activation(z), in place where z is h.
static void activate(Activation kind, const float* z, float* h, Int count) {
  Int i = 0;
  for (; i + LANES <= count; i += LANES) store(h + i, activation(kind, load(z + i)));
  const Vec rest = activation(kind, load_some(z + i, count - i));
  std::memcpy(h + i, &rest, (count - i) * sizeof(float));
}

// d *= activation'(z), from `h` as `slope` takes it.
static void activation_gradient(Activation kind, float* d, const float* h, Int count) {
  Int i = 0;
  for (; i + LANES <= count; i += LANES) store(d + i, load(d + i) * slope(kind, load(h + i)));
  const Vec rest = load_some(d + i, count - i) * slope(kind, load_some(h + i, count - i));
  std::memcpy(d + i, &rest, (count - i) * sizeof(float));
}

static inline float sum_of_row(const float* z, Int n) {
  Vec sum{};
  Int i = 0;
  for (; i + LANES <= n; i += LANES) sum += load(z + i);
  float total = sum_of(sum);
  for (; i < n; i++) total += z[i];
  return total;
}

static const float norm_epsilon = 1e-5f;  // torch's, added to the variance

// LayerNorm of the rows of z [rows, n], which becomes the standardised ones: y = z scale + shift.
static void layer_norm(float* z, float* inverse, float* y, const float* scale, const float* shift, Int rows, Int n) {
  for (Int m = 0; m < rows; m++, z += n, y += n) {
    const float mean = sum_of_row(z, n) / n;
    Vec squares{};
    Int i = 0;
    for (; i + LANES <= n; i += LANES) {
      const Vec v = load(z + i) - mean;
      squares += v * v;
    }
    float variance = sum_of(squares);
    for (; i < n; i++) variance += (z[i] - mean) * (z[i] - mean);
    // A variance beyond float32 is no number in PyTorch: not 0, which nobody would notice.
    const float one_over = inverse[m] = variance < INFINITY ? 1.0f / std::sqrt(variance / n + norm_epsilon) : NAN;
    for (i = 0; i + LANES <= n; i += LANES) {
      const Vec v = (load(z + i) - mean) * one_over;
      store(z + i, v);
      store(y + i, v * load(scale + i) + load(shift + i));
    }
    for (; i < n; i++) {
      z[i] = (z[i] - mean) * one_over;
      y[i] = z[i] * scale[i] + shift[i];
    }
  }
}

// From the cotangent d [rows, n] of y, in place, that of what was normalised; adds the sums over rows of
// `d` to `d_shift` and of `d` times `normal` to `d_scale`, where they are given.
static void layer_norm_gradient(float* d, const float* normal, const float* inverse, const float* scale, float* d_scale,
                                float* d_shift, Int rows, Int n) {
  for (Int m = 0; m < rows; m++, d += n, normal += n) {
    Vec sum{}, product{};
    float total = 0.0f, along = 0.0f;
    Int i = 0;
    for (; i + LANES <= n; i += LANES) {
      const Vec g = load(d + i), v = load(normal + i), s = g * load(scale + i);
      if (d_scale) {
        store(d_shift + i, load(d_shift + i) + g);
        store(d_scale + i, load(d_scale + i) + g * v);
      }
      store(d + i, s);
      sum += s;
      product += s * v;
    }
    for (; i < n; i++) {
      if (d_scale) {
        d_shift[i] += d[i];
        d_scale[i] += d[i] * normal[i];
      }
      d[i] *= scale[i];
      total += d[i];
      along += d[i] * normal[i];
    }
    total = (total + sum_of(sum)) / n;
    along = (along + sum_of(product)) / n;
    for (i = 0; i + LANES <= n; i += LANES)
      store(d + i, (load(d + i) - total - load(normal + i) * along) * inverse[m]);
    for (; i < n; i++) d[i] = (d[i] - total - normal[i] * along) * inverse[m];
  }
}

// Activations of the hidden layers, and outputs [rows, out].
static void forward(const Network& net, Int e, Pass& pass, float* out, float* panel) {
  View h{pass.x, pass.row, 1};
  const Int last = net.depth - 1;
  for (Int l = 0; l < last; l++) {
    const bool relu = pass.activation == Relu;
    float* y = pass.before.empty() ? pass.hidden[l] : pass.before[l];  // whose activation follows
    float* z = net.norm ? pass.normal[l] : y;
    product(pass.rows, net.out(l), net.in(l), h, net.forward_view(l, e),
            Out{z, net.out(l), relu && !net.norm ? Then::Relu : Then::Bias, net.bias(l, e)}, panel);
    if (net.norm) layer_norm(z, pass.inverse[l], y, net.scale(l, e), net.shift(l, e), pass.rows, net.out(l));
    if (!relu || net.norm) activate(pass.activation, y, pass.hidden[l], pass.rows * net.out(l));
    h = View{pass.hidden[l], net.out(l), 1};
  }
  if (net.out(last) == 1) {  // a product with a vector
    const float *w = net.weight(last, e), b = *net.bias(last, e);
    for (Int m = 0; m < pass.rows; m++) out[m] = dot(h.data + m * h.row, w, net.in(last)) + b;
    return;
  }
  product(pass.rows, net.out(last), net.in(last), h, net.forward_view(last, e),
          Out{out, net.out(last), Then::Bias, net.bias(last, e)}, panel);
}

// d [rows, n] = g [rows] times w [n].
static void outer(float* d, const float* g, const float* w, Int rows, Int n) {
  for (Int m = 0; m < rows; m++, d += n)
    for (Int i = 0; i < n; i++) d[i] = g[m] * w[i];
}

// d [rows, n] = g [rows] times w [n] where h [rows, n] is above 0, else 0; without g: times 1.
static void head_chain(float* d, const float* g, const float* w, const float* h, Int rows, Int n) {
  for (Int m = 0; m < rows; m++, d += n, h += n) {
    const float scale = g ? g[m] : 1.0f;
    Int i = 0;
    for (; i + LANES <= n; i += LANES) {
      const Vec v = load(w + i) * scale;
      store(d + i, load(h + i) > 0.0f ? v : Vec{});
    }
    for (; i < n; i++) d[i] = h[i] > 0.0f ? w[i] * scale : 0.0f;
  }
}

// sums [n] of the rows of d [rows, n], each times g [rows] where it is given; with `more` added to what is there.
static void column_sums(float* sums, const float* d, const float* g, Int rows, Int n, bool more = false) {
  Int i = 0;
  for (; i + LANES <= n; i += LANES) {
    Vec a{}, b{};
    Int m = 0;
    for (; m + 2 <= rows; m += 2) {
      const Vec x = load(d + m * n + i), y = load(d + (m + 1) * n + i);
      a += g ? x * g[m] : x;
      b += g ? y * g[m + 1] : y;
    }
    if (m < rows) a += g ? load(d + m * n + i) * g[m] : load(d + m * n + i);
    store(sums + i, more ? load(sums + i) + (a + b) : a + b);
  }
  for (; i < n; i++) {
    float total = 0.0f;
    for (Int m = 0; m < rows; m++) total += d[m * n + i] * (g ? g[m] : 1.0f);
    sums[i] = more ? sums[i] + total : total;
  }
}

// The gradient of layer l's weights, below^T d, in the layout of the parameter; with `more` added to `out`.
static void weight_gradient(const Network& net, Int l, Int rows, View below, const float* d, float* out,
                            float* panel, bool more = false) {
  const Then then = more ? Then::Add : Then::Store;
  const Int in = net.in(l), width = net.out(l);
  const View below_t{below.data, below.column, below.row};
  if (net.transposed)
    product(width, in, rows, View{d, 1, width}, below, Out{out, in, then}, panel);
  else
    product(in, width, rows, below_t, View{d, width, 1}, Out{out, width, then}, panel);
}

// Gradients of one member from the cotangent `g` [rows, out] of its outputs. `scratch` [2] hold
// [rows, widest] each; with `more` gradients are added to what is there. Returns d [rows, out of layer 0],
// the cotangent of the first product.
static const float* backward(const Network& net, Int e, const Pass& pass, const float* g, Gradients* gradients,
                             float* const scratch[2], float* panel, bool more = false) {
  const Int last = net.depth - 1, rows = pass.rows;
  const float* d = g;
  for (Int l = last; l >= 0; l--) {
    const View below = l ? View{pass.hidden[l - 1], net.in(l), 1} : View{pass.x, pass.row, 1};
    if (gradients) {
      float* dw = gradients->weight(net, l, e);
      if (net.out(l) == 1 && l > 0)
        column_sums(dw, below.data, d, rows, net.in(l), more);
      else
        weight_gradient(net, l, rows, below, d, dw, panel, more);
      column_sums(gradients->bias(net, l, e), d, nullptr, rows, net.out(l), more);
    }
    if (l == 0) break;
    float* next = scratch[l % 2];
    const float* h = pass.hidden[l - 1];
    const bool relu = pass.activation == Relu;
    if (net.out(l) == 1 && relu)
      head_chain(next, d, net.weight(l, e), h, rows, net.in(l));
    else if (net.out(l) == 1)
      outer(next, d, net.weight(l, e), rows, net.in(l));
    else
      product(rows, net.in(l), net.out(l), View{d, net.out(l), 1}, net.backward_view(l, e),
              Out{next, net.in(l), relu ? Then::Gate : Then::Store, h}, panel);
    if (!relu) {
      const float* z = pass.before.empty() ? h : pass.before[l - 1];
      activation_gradient(pass.activation, next, z, rows * net.in(l));
    }
    if (net.norm) {
      const Int n = net.in(l);
      float* const scale = gradients ? gradients->scale(net, l - 1, e) : nullptr;
      float* const shift = gradients ? gradients->shift(net, l - 1, e) : nullptr;
      if (gradients && !more) {
        std::memset(scale, 0, n * sizeof(float));
        std::memset(shift, 0, n * sizeof(float));
      }
      layer_norm_gradient(next, pass.normal[l - 1], pass.inverse[l - 1], net.scale(l - 1, e), scale, shift, rows, n);
    }
    d = next;
  }
  return d;
}

struct Adam {
  double rate, beta1, beta2, eps;
  double l2, decay;  // weight times this added to the gradient; share of a weight taken off, a step
};

// One step of Adam (arXiv 1412.6980) on `count` numbers, as torch takes it.
static void adam_step(float* p, const float* g, float* m, float* v, float* step, Int count, const Adam& adam) {
  *step += 1.0f;
  const double t = *step;
  const float size = (float)(adam.rate / (1.0 - std::pow(adam.beta1, t)));
  const float root = (float)(1.0 / std::sqrt(1.0 - std::pow(adam.beta2, t)));
  const float b1 = (float)(1.0 - adam.beta1), b2 = (float)adam.beta2, c2 = (float)(1.0 - adam.beta2);
  const float eps = (float)adam.eps, l2 = (float)adam.l2, kept = (float)(1.0 - adam.decay);
  Int i = 0;
  for (; i + LANES <= count; i += LANES) {
    const Vec old = load(m + i), w = load(p + i), x = load(g + i) + w * l2;
    const Vec mean = old + (x - old) * b1, square = load(v + i) * b2 + x * x * c2;
    store(m + i, mean);
    store(v + i, square);
    store(p + i, w * kept - mean * size / (square_root(square) * root + eps));
  }
  for (; i < count; i++) {
    const float x = g[i] + p[i] * l2;
    m[i] += (x - m[i]) * b1;
    v[i] = v[i] * b2 + x * x * c2;
    p[i] = p[i] * kept - m[i] * size / (std::sqrt(v[i]) * root + eps);
  }
}

static inline void descend(const Network& net, Gradients& gradients, const Adam& adam) {
  for (Int i = 0; i < net.tensors(); i++)
    adam_step(net.parameters[i], gradients.of[i], net.first_moments[i], net.second_moments[i], net.steps[i],
              net.count(i), adam);
}

// target += rate (source - target).
static inline void average(float* target, const float* source, Int count, float rate) {
  Int i = 0;
  for (; i + LANES <= count; i += LANES) {
    const Vec t = load(target + i);
    store(target + i, t + (load(source + i) - t) * rate);
  }
  for (; i < count; i++) target[i] += (source[i] - target[i]) * rate;
}
