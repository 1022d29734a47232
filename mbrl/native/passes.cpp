// Forward and backward passes of whole ensembles for autograd, and Adam over a list of tensors.
#include "networks.h"

struct ForwardPass {
  const Network* net;
  const float* x;
  Int row, member, rows;  // strides of x [rows, in], or [members, rows, in]
  Int activation;
  float *out, *hidden, *before;  // out [members, rows, out]; the others null: nothing is kept
  float *normal, *inverse;       // of LayerNorm: of the size of hidden, and a number a row and layer
};

// Rows at a time, whose activations fit the cache; the last ones are up to twice as many.
static const Int chunk = 512;

static Int longest_chunk(Int rows) { return rows < 2 * chunk ? rows : 2 * chunk - 1; }

static Int chunk_from(Int begin, Int rows) { return rows - begin < 2 * chunk ? rows - begin : chunk; }

// Activations of layer l of all members lie behind those of the layers below; those of row `begin` and after.
static float* kept(float* base, const Network& net, Int rows, Int l, Int e, Int begin) {
  Int offset = 0;
  for (Int i = 0; i < l; i++) offset += net.members * rows * net.out(i);
  return base + offset + (e * rows + begin) * net.out(l);
}

// The pass of a chunk of rows.
static Pass kept_pass(const ForwardPass& f, Int e, Int begin) {
  const Network& net = *f.net;
  const float* x = f.x + e * f.member + begin * f.row;
  Pass pass{x, chunk_from(begin, f.rows), f.row, {}, {}, (Activation)f.activation};
  for (Int l = 0; l + 1 < net.depth; l++) {
    pass.hidden.push_back(kept(f.hidden, net, f.rows, l, e, begin));
    if (f.before) pass.before.push_back(kept(f.before, net, f.rows, l, e, begin));
    if (!net.norm) continue;
    pass.normal.push_back(kept(f.normal, net, f.rows, l, e, begin));
    pass.inverse.push_back(f.inverse + (l * net.members + e) * f.rows + begin);
  }
  return pass;
}

extern "C" void forward_pass(const ForwardPass* call) {
  arena.clear();
  const Network& net = *call->net;
  const Int out = net.out(net.depth - 1);
  float* panel = arena.take(net.widest() * TILE_VECTORS * LANES);
  Pass shared = new_pass(net, call->x, longest_chunk(call->rows), call->row);
  shared.activation = (Activation)call->activation;
  for (Int e = 0; e < net.members; e++) {
    float* to = call->out + e * call->rows * out;
    for (Int begin = 0, count; begin < call->rows; begin += count) {
      count = chunk_from(begin, call->rows);
      if (call->hidden) {
        Pass pass = kept_pass(*call, e, begin);
        forward(net, e, pass, to + begin * out, panel);
        continue;
      }
      shared.x = call->x + e * call->member + begin * call->row;
      shared.rows = count;
      forward(net, e, shared, to + begin * out, panel);
    }
  }
}

struct BackwardPass {
  ForwardPass forward;
  const float* cotangent;  // of out
  float** gradients;       // by parameter; null: not wanted
  float* input_gradient;   // [rows, in], or [members, rows, in]; null: not wanted
  Int input_member;        // 0: the sum over members
};

extern "C" void backward_pass(const BackwardPass* call) {
  arena.clear();
  const ForwardPass& f = call->forward;
  const Network& net = *f.net;
  const Int most = longest_chunk(f.rows), wide = net.widest(), out = net.out(net.depth - 1), in = net.in(0);
  float* panel = arena.take((wide > most ? wide : most) * TILE_VECTORS * LANES);
  float* const scratch[2] = {arena.take(most * wide), arena.take(most * wide)};
  Gradients gradients;
  if (call->gradients) gradients.of.assign(call->gradients, call->gradients + net.tensors());
  for (Int e = 0; e < net.members; e++) {
    for (Int begin = 0, count; begin < f.rows; begin += count) {
      count = chunk_from(begin, f.rows);
      const Pass pass = kept_pass(f, e, begin);
      const float* d = backward(net, e, pass, call->cotangent + (e * f.rows + begin) * out,
                                call->gradients ? &gradients : nullptr, scratch, panel, begin > 0);
      if (call->input_gradient) {
        const Then then = e && !call->input_member ? Then::Add : Then::Store;
        product(pass.rows, in, net.out(0), View{d, net.out(0), 1}, net.backward_view(0, e),
                Out{call->input_gradient + e * call->input_member + begin * in, in, then}, panel);
      }
    }
  }
}

// A step of Adam on `count` tensors with `sizes` numbers each.
extern "C" void adam_steps(Int count, const Int* sizes, float** p, float** g, float** m, float** v, float** steps,
                           const Adam* adam) {
  for (Int i = 0; i < count; i++) adam_step(p[i], g[i], m[i], v[i], steps[i], sizes[i], *adam);
}
