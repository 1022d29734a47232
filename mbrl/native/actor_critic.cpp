// The steps of the soft actor-critic learner, each one call: forward passes, losses, their
// gradients, Adam. The definition of all of them is `algorithms/learners/soft_actor_critic.py`.
#include "actor_critic.h"

// A squashed Gaussian's actions and what their gradients need, all [rows * action_dim].
struct Sample {
  float *raw_log_std, *std, *action, *log_prob;  // log_prob [rows]
};

static Sample sample(const Network& actor, Pass& pass, const float* noise, Int actions, float* panel) {
  const Int rows = pass.rows, count = rows * actions;
  float* out = arena.take(2 * count);
  forward(actor, 0, pass, out, panel);
  Sample s{arena.take(count), arena.take(count), arena.take(count), arena.take(rows)};
  float *mean = arena.take(count), *terms = arena.take(count), *draws = arena.take(count);
  std::memcpy(draws, noise, count * sizeof(float));  // which may be read beyond its end
  for (Int m = 0; m < rows; m++) {
    std::memcpy(mean + m * actions, out + 2 * m * actions, actions * sizeof(float));
    std::memcpy(s.raw_log_std + m * actions, out + (2 * m + 1) * actions, actions * sizeof(float));
  }
  for (Int i = 0; i < count; i += LANES) {
    Vec l = load(s.raw_log_std + i);
    l = l < minimum_log_std ? all(minimum_log_std) : l;
    l = l > maximum_log_std ? all(maximum_log_std) : l;
    const Vec std = exp_of(l), n = load(draws + i), pre = load(mean + i) + std * n;
    const Vec e = exp_of(absolute(pre) * -2.0f);
    const Vec softplus = log1p_of_unit(e) + (pre < 0.0f ? pre * -2.0f : Vec{});  // of -2 pre
    store(s.std + i, std);
    store(s.action + i, tanh_of(pre, e));
    store(terms + i, n * n * -0.5f - l - 0.91893853320467274f - 2.0f * (0.69314718055994531f - pre - softplus));
  }
  for (Int m = 0; m < rows; m++) {
    float total = 0.0f;
    for (Int a = 0; a < actions; a++) total += terms[m * actions + a];
    s.log_prob[m] = total;
  }
  return s;
}

// Actions drawn at a step's observations: the actor's pass, the sample, and the critics' inputs there.
struct Draw {
  Pass pass;
  Sample sample;
  float* x;  // [rows, obs_dim + action_dim]
};

template <class Step>
static Draw new_draw(const Network& actor, const Step& step, float* panel) {
  const Int rows = step.rows, S = step.obs_dim, A = step.action_dim, width = S + A;
  float *inputs = arena.take(rows * S), *x = arena.take(rows * width);
  write_inputs(inputs, S, step.obs, rows, S, step.actor_inputs);
  Pass pass = new_pass(actor, inputs, rows, S);
  const Sample s = sample(actor, pass, step.noise, A, panel);
  write_inputs(x, width, step.obs, rows, S, step.critic_inputs);
  write_actions(x, width, S, Column{s.action, A}, rows, A);
  return Draw{pass, s, x};
}

struct PolicyStep {
  const Network *actor, *critic;
  Normaliser actor_inputs, critic_inputs;
  Column obs;
  const float* noise;  // [rows, action_dim]
  Int rows, obs_dim, action_dim;
  float *log_alpha, *alpha_moment, *alpha_square, *alpha_step;
  Int learn_alpha, of_mean;  // of_mean: climb the mean of the critics and not their minimum
  float target_entropy;
  Adam actor_adam, alpha_adam;
  float* metrics;  // [3]: loss, entropy, temperature
};

// A step of the temperature and of the actor on mean (alpha log pi - Q).
extern "C" void policy_step(const PolicyStep* step) {
  arena.clear();
  const Network &actor = *step->actor, &critic = *step->critic;
  const Int rows = step->rows, A = step->action_dim, width = step->obs_dim + A;
  float* panel = new_panel(actor, critic, rows);
  const Draw draw = new_draw(actor, *step, panel);
  const Sample& s = draw.sample;

  double entropy = 0.0;
  for (Int m = 0; m < rows; m++) entropy -= s.log_prob[m];
  entropy /= rows;
  if (step->learn_alpha) {
    const float gradient = (float)(entropy - step->target_entropy);
    adam_step(step->log_alpha, &gradient, step->alpha_moment, step->alpha_square, step->alpha_step, 1,
              step->alpha_adam);
  }
  const float alpha = std::exp(*step->log_alpha);

  float *q = arena.take(rows), *dq_da = arena.take(rows * A);
  value_gradients(critic, draw.x, rows, width, critic.members, step->of_mean, A, q, dq_da, panel);
  double value = 0.0;
  for (Int m = 0; m < rows; m++) value += q[m];

  // Through the squash: log pi depends on the draw by -log(1 - tanh^2), whose derivative is 2 tanh.
  float* g = arena.take(2 * rows * A);
  for (Int m = 0; m < rows; m++)
    for (Int a = 0; a < A; a++) {
      const Int i = m * A + a;
      const float t = s.action[i], raw = s.raw_log_std[i];
      const float pre = (2.0f * alpha * t - dq_da[i] * (1.0f - t * t)) / rows;
      const bool inside = raw >= minimum_log_std && raw <= maximum_log_std;
      g[2 * m * A + a] = pre;
      g[(2 * m + 1) * A + a] = inside ? pre * s.std[i] * step->noise[i] - alpha / rows : 0.0f;
    }
  Gradients gradients(actor);
  const Int wide = actor.widest();
  float* const two[2] = {arena.take(rows * wide), arena.take(rows * wide)};
  backward(actor, 0, draw.pass, g, &gradients, two, panel);
  descend(actor, gradients, step->actor_adam);
  step->metrics[0] = (float)(-alpha * entropy - value / rows);
  step->metrics[1] = (float)entropy;
  step->metrics[2] = alpha;
}

struct SoftTarget {
  const Network *actor, *critic;  // the critic: the target average
  Normaliser actor_inputs, critic_inputs;
  Column obs, reward, discount;  // obs: the next ones
  const float* noise;
  const int64_t* subset;  // the members whose minimum counts; null: all
  Int subset_size, rows, obs_dim, action_dim;
  float log_alpha;
  Int with_entropy;
  float* target;  // [rows]
};

// y = r + discount (min_n Q_n(s', a') - alpha log pi(a'|s')).
extern "C" void soft_target(const SoftTarget* step) {
  arena.clear();
  const Network &actor = *step->actor, &critic = *step->critic;
  const Int rows = step->rows, A = step->action_dim, width = step->obs_dim + A;
  float* panel = new_panel(actor, critic, rows);
  const Draw draw = new_draw(actor, *step, panel);
  const Sample& s = draw.sample;
  Pass values = new_pass(critic, draw.x, rows, width);
  float *q = arena.take(rows), *lowest = arena.take(rows);
  const Int count = step->subset ? step->subset_size : critic.members;
  for (Int n = 0; n < count; n++) {
    forward(critic, step->subset ? step->subset[n] : n, values, n ? q : lowest, panel);
    if (n) lower(lowest, q, rows);
  }
  const float alpha = step->with_entropy ? std::exp(step->log_alpha) : 0.0f;
  for (Int m = 0; m < rows; m++) {
    const float value = step->with_entropy ? lowest[m] - alpha * s.log_prob[m] : lowest[m];
    step->target[m] = step->reward.data[m * step->reward.row] + step->discount.data[m * step->discount.row] * value;
  }
}

struct CriticStep {
  const Network* critic;
  Normaliser inputs;
  Column obs, action;
  const float* target;
  Int rows, obs_dim, action_dim;
  float huber, eta;  // 0: squared errors; no diversity term
  double scale;      // of the errors
  Adam adam;
  float* metrics;  // [5]: loss, mean, spread over members, mean less minimum, diversity
};

// Without LayerNorm: unit gradients of one member down to the first layer: chain[l] = dq/dz_l [rows, out of l].
static void unit_chain(const Network& net, Int e, const Pass& pass, std::vector<float*>& chain, float* panel) {
  const Int last = net.depth - 1;
  head_chain(chain[last - 1], nullptr, net.weight(last, e), pass.hidden[last - 1], pass.rows, net.in(last));
  for (Int l = last - 1; l > 0; l--)
    product(pass.rows, net.in(l), net.out(l), View{chain[l], net.out(l), 1}, net.backward_view(l, e),
            Out{chain[l - 1], net.in(l), Then::Gate, pass.hidden[l - 1]}, panel);
}

// The cotangent of each dq/da, in place of it, of `eta` times EDAC's diversity term; returns the
// term. `g` is [members, rows, actions].
static double diversity(float* g, Int N, Int rows, Int A, float eta) {
  double loss = 0.0;
  std::vector<float> length(N), total(A);
  for (Int m = 0; m < rows; m++) {
    std::fill(total.begin(), total.end(), 0.0f);
    float squares = 0.0f, pairs = 0.0f;
    for (Int n = 0; n < N; n++) {
      float* v = g + (n * rows + m) * A;
      float square = 0.0f;
      for (Int a = 0; a < A; a++) square += v[a] * v[a];
      length[n] = std::sqrt(square);
      for (Int a = 0; a < A; a++) {
        v[a] /= length[n] + 1e-10f;
        total[a] += v[a];
        squares += v[a] * v[a];
      }
    }
    for (Int a = 0; a < A; a++) pairs += total[a] * total[a];
    loss += pairs - squares;
    const float scale = 2.0f * eta / ((float)rows * (N - 1));
    for (Int n = 0; n < N; n++) {
      float* v = g + (n * rows + m) * A;
      const float outer = length[n] + 1e-10f;
      float along = 0.0f;
      for (Int a = 0; a < A; a++) along += (total[a] - v[a]) * v[a];
      // v is g / outer, so g / length is v outer / length; the norm has no gradient at 0.
      const float unit = length[n] > 0.0f ? outer / length[n] : 0.0f;
      for (Int a = 0; a < A; a++) v[a] = scale * ((total[a] - v[a]) - along * v[a] * unit) / outer;
    }
  }
  return loss / rows / (N - 1);
}

// Parameter gradients from cotangents `g` [rows] of q and `big` [rows, A] of dq/da:
// (g h_{l-1} + u_{l-1})^T d_l, with the adjoint chain u_0 = [0, big], u_l = (u_{l-1} W_l) gated.
static void merged_gradients(const Network& net, Int e, const Pass& pass, const std::vector<float*>& chain,
                             const float* g, const float* big, Int A, Gradients& gradients,
                             float* const scratch[3], float* panel) {
  const Int rows = pass.rows, in = net.in(0), last = net.depth - 1;
  float* mixed = scratch[2];
  for (Int m = 0; m < rows; m++) {
    for (Int i = 0; i < in; i++) mixed[m * in + i] = pass.x[m * pass.row + i] * g[m];
    for (Int a = 0; a < A; a++) mixed[m * in + in - A + a] += big[m * A + a];
  }
  View u{big, A, 1};
  for (Int l = 0; l < last; l++) {
    const Int n = net.out(l), below = net.in(l);
    weight_gradient(net, l, rows, View{mixed, below, 1}, chain[l], gradients.weight(net, l, e), panel);
    column_sums(gradients.bias(net, l, e), chain[l], g, rows, n);
    View w = net.forward_view(l, e);
    if (l == 0) w.data += (in - A) * w.row;
    float* next = scratch[l % 2];
    product(rows, n, l ? below : A, u, w, Out{next, n, Then::Gate, pass.hidden[l]}, panel);
    u = View{next, n, 1};
    const float* h = pass.hidden[l];
    if (l < last - 1) {
      for (Int m = 0; m < rows; m++)
        for (Int i = 0; i < n; i++) mixed[m * n + i] = next[m * n + i] + h[m * n + i] * g[m];
    }
  }
  const Int n = net.in(last);
  float* head = gradients.weight(net, last, e);
  column_sums(head, pass.hidden[last - 1], g, rows, n);
  column_sums(scratch[2], u.data, nullptr, rows, n);
  for (Int i = 0; i < n; i++) head[i] += scratch[2][i];
  float total = 0.0f;
  for (Int m = 0; m < rows; m++) total += g[m];
  *gradients.bias(net, last, e) = total;
}

// A step of all critics on their errors against `target`, and EDAC's term.
extern "C" void critic_step(const CriticStep* step) {
  arena.clear();
  const Network& critic = *step->critic;
  const Int rows = step->rows, S = step->obs_dim, A = step->action_dim, width = S + A;
  const Int N = critic.members, widest = critic.widest();
  float* panel = new_panel(critic, critic, rows);
  float* x = arena.take(rows * width);
  write_inputs(x, width, step->obs, rows, S, step->inputs);
  write_actions(x, width, S, step->action, rows, A);
  float *q = arena.take(N * rows), *g = arena.take(N * rows);
  float* const scratch[3] = {arena.take(rows * widest), arena.take(rows * widest), arena.take(rows * widest)};
  std::vector<Pass> passes;
  std::vector<std::vector<float*>> chains;
  const bool diverse = step->eta > 0.0f;
  float* dq_da = diverse ? arena.take(N * rows * A) : nullptr;
  Gradients gradients(critic);
  double loss = 0.0;
  const float y = (float)step->scale / rows, threshold = step->huber;
  for (Int e = 0; e < N; e++) {
    // Without the diversity term a member's activations are done with when its turn is over.
    if (diverse || e == 0) passes.push_back(new_pass(critic, x, rows, width));
    Pass& pass = passes.back();
    float *values = q + e * rows, *cotangent = g + e * rows;
    forward(critic, e, pass, values, panel);
    double sum = 0.0;
    for (Int m = 0; m < rows; m++) {
      const float error = values[m] - step->target[m], size = std::fabs(error);
      if (threshold > 0.0f && size >= threshold) {
        sum += threshold * (size - 0.5f * threshold);
        cotangent[m] = y * (error > 0.0f ? threshold : -threshold);
      } else {
        sum += (threshold > 0.0f ? 0.5f : 1.0f) * error * error;
        cotangent[m] = y * (threshold > 0.0f ? 1.0f : 2.0f) * error;
      }
    }
    loss += step->scale * sum / rows;
    if (!diverse) {
      backward(critic, e, pass, cotangent, &gradients, scratch, panel);
      continue;
    }
    chains.emplace_back();
    for (Int l = 0; l + 1 < critic.depth; l++) chains[e].push_back(arena.take(rows * critic.out(l)));
    unit_chain(critic, e, pass, chains[e], panel);
    View w = critic.backward_view(0, e);
    w.data += S * w.column;
    product(rows, A, critic.out(0), View{chains[e][0], critic.out(0), 1}, w, Out{dq_da + e * rows * A, A}, panel);
  }
  if (diverse) {
    step->metrics[4] = (float)diversity(dq_da, N, rows, A, step->eta);
    for (Int e = 0; e < N; e++)
      merged_gradients(critic, e, passes[e], chains[e], g + e * rows, dq_da + e * rows * A, A, gradients, scratch,
                       panel);
  }
  descend(critic, gradients, step->adam);

  double mean = 0.0, spread = 0.0, lower = 0.0;
  for (Int m = 0; m < rows; m++) {
    float total = 0.0f, least = q[m], squares = 0.0f;
    for (Int e = 0; e < N; e++) {
      const float value = q[e * rows + m];
      total += value;
      least = value < least ? value : least;
    }
    const float middle = total / N;
    for (Int e = 0; e < N; e++) squares += (q[e * rows + m] - middle) * (q[e * rows + m] - middle);
    mean += middle;
    spread += std::sqrt(squares / N);
    lower += middle - least;
  }
  step->metrics[0] = (float)loss;
  step->metrics[1] = (float)(mean / rows);
  step->metrics[2] = (float)(spread / rows);
  step->metrics[3] = (float)(lower / rows);
}

extern "C" void average_weights(const Network* target, const Network* source, double rate) {
  for (Int i = 0; i < target->tensors(); i++)
    average(target->parameters[i], source->parameters[i], target->count(i), (float)rate);
}
