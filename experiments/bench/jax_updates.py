"""The same updates as a plain JAX program: jitted, a scan of many updates a call, batches drawn
from device arrays inside it, Adam of optax. Loaded by `peers.py` in an environment with JAX."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

Params = list[tuple[Any, Any]]
BATCH, GAMMA, TAU, RATE = 256, 0.99, 0.005, 3e-4
HALF_LOG_2PI = 0.9189385332


def build(workload: str, arrays: Sequence[np.ndarray]) -> tuple[Callable[[], object], int]:
    """A call that does several updates on rows (obs, action, reward, next_obs), and how many."""
    data = tuple(jnp.asarray(a) for a in arrays)
    make, updates = WORKLOADS[workload]
    state, update = make(data)

    @partial(jax.jit, donate_argnums=0)
    def many(state: Any, key: Any) -> Any:
        return jax.lax.scan(update, state, jax.random.split(key, updates))

    held = {"state": state, "key": jax.random.PRNGKey(1)}

    def step() -> None:
        held["key"], now = jax.random.split(held["key"])
        held["state"], losses = many(held["state"], now)
        jax.block_until_ready(losses)

    return step, updates


def network(
    key: Any, sizes: Sequence[int], members: int | None = None, *, norm: bool = False
) -> Params:
    layers: list[tuple[Any, ...]] = []
    lead = () if members is None else (members,)
    for fan_in, fan_out in zip(sizes[:-1], sizes[1:], strict=True):
        key, one, two = jax.random.split(key, 3)
        bound = fan_in**-0.5
        shape = (*lead, 1, fan_out) if lead else (fan_out,)
        weight = jax.random.uniform(one, (*lead, fan_in, fan_out), minval=-bound, maxval=bound)
        layers.append((weight, jax.random.uniform(two, shape, minval=-bound, maxval=bound)))
        if norm and len(layers) < len(sizes) - 1:
            layers[-1] += (jnp.ones(shape), jnp.zeros(shape))
    return layers


def apply(params: Params, x: Any, activate: Callable[[Any], Any] = jax.nn.relu) -> Any:
    for layer in params[:-1]:
        x = x @ layer[0] + layer[1]
        if len(layer) > 2:
            x = (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
            x = x * layer[2] + layer[3]
        x = activate(x)
    weight, bias = params[-1]
    return x @ weight + bias


def values(critic: Params, obs: Any, action: Any) -> Any:
    return apply(critic, jnp.concatenate([obs, action], -1))[..., 0]


def rows(data: tuple[Any, ...], key: Any) -> tuple[Any, ...]:
    index = jax.random.randint(key, (BATCH,), 0, len(data[0]))
    return tuple(x[index] for x in data)


def sample(actor: Params, obs: Any, key: Any) -> tuple[Any, Any]:
    mean, log_std = jnp.split(apply(actor, obs), 2, -1)
    log_std = jnp.clip(log_std, -5.0, 2.0)
    noise = jax.random.normal(key, mean.shape)
    pre = mean + jnp.exp(log_std) * noise
    gaussian = -0.5 * noise**2 - log_std - HALF_LOG_2PI
    squash = 2.0 * (jnp.log(2.0) - pre - jax.nn.softplus(-2.0 * pre))
    return jnp.tanh(pre), (gaussian - squash).sum(-1)


def diversity(critic: Params, obs: Any, action: Any) -> Any:
    """EDAC's term, with the action gradient of each row and member by `vmap(grad)`."""

    def one(params: Params, s: Any, a: Any) -> Any:
        flat = [(weight, bias[0]) for weight, bias in params]
        return apply(flat, jnp.concatenate([s, a]))[0]

    gradient = jax.vmap(jax.grad(one, 2), (None, 0, 0))
    g = jax.vmap(lambda params: gradient(params, obs, action))(critic)
    g = g / (jnp.linalg.norm(g, axis=-1, keepdims=True) + 1e-10)
    pairs = (g.sum(0) ** 2).sum(-1) - (g**2).sum((0, 2))
    return pairs.mean() / (len(g) - 1)


def conservative_gap(
    actor: Params, critic: Params, obs: Any, next_obs: Any, samples: int, key: Any
) -> Any:
    """Mean over rows, sum over members of CQL's log-sum-exp over `samples` uniform actions and as
    many of the policy's at either observation."""
    one, two, three = jax.random.split(key, 3)
    here = jnp.broadcast_to(obs, (samples, *obs.shape))
    drawn = [sample(actor, here, one), sample(actor, jnp.broadcast_to(next_obs, here.shape), two)]
    shape = drawn[0][0].shape
    uniform = jax.random.uniform(three, shape, minval=-1.0, maxval=1.0)
    actions = jnp.concatenate([uniform, *(action for action, _ in drawn)])
    density = jnp.full(shape[:-1], -shape[-1] * jnp.log(2.0))
    density = jnp.concatenate([density, *(log_prob for _, log_prob in drawn)])
    actions, density = jax.lax.stop_gradient((actions, density))
    flat = actions.reshape(-1, shape[-1])
    q = values(critic, jnp.tile(obs, (len(actions), 1)), flat).reshape(-1, *density.shape)
    return jax.nn.logsumexp(q - density, 1).mean(-1).sum()


def soft_actor_critic(
    members: int, hidden: Sequence[int], eta: float, data: tuple[Any, ...], samples: int = 0
) -> tuple[Any, Callable[..., Any]]:
    """SAC, SAC-N and EDAC; with `samples` CQL of weight 5, whose targets have no entropy."""
    obs_dim, action_dim = data[0].shape[1], data[1].shape[1]
    one, two = jax.random.split(jax.random.PRNGKey(0))
    critic = network(two, (obs_dim + action_dim, *hidden, 1), members)
    parts = {
        "actor": network(one, (obs_dim, *hidden, 2 * action_dim)),
        "critic": critic,
        "log_alpha": jnp.zeros(()),
    }
    adam = optax.adam(RATE)
    state = {
        **parts,
        "target": jax.tree.map(jnp.copy, critic),
        "moments": {name: adam.init(part) for name, part in parts.items()},
    }

    def update(state: Any, key: Any) -> Any:
        state, moments = dict(state), dict(state["moments"])

        def descend(name: str, gradient: Any) -> None:
            change, moments[name] = adam.update(gradient, moments[name])
            state[name] = optax.apply_updates(state[name], change)

        draw, first, second, third = jax.random.split(key, 4)
        obs, action, reward, next_obs = rows(data, draw)

        def actor_loss(actor: Params, alpha: Any) -> Any:
            chosen, log_prob = sample(actor, obs, first)
            value = values(state["critic"], obs, chosen).min(0)
            return (alpha * log_prob - value).mean(), log_prob

        log_prob = sample(state["actor"], obs, first)[1]
        descend("log_alpha", -(log_prob - action_dim).mean())
        alpha = jnp.exp(state["log_alpha"])
        (loss, _), gradient = jax.value_and_grad(actor_loss, has_aux=True)(state["actor"], alpha)
        descend("actor", gradient)
        next_action, next_log_prob = sample(state["actor"], next_obs, second)
        next_value = values(state["target"], next_obs, next_action).min(0)
        goal = reward + GAMMA * (next_value if samples else next_value - alpha * next_log_prob)

        def critic_loss(critic: Params) -> Any:
            q = values(critic, obs, action)
            error = ((q - goal) ** 2).mean(-1).sum()
            if samples:
                actor = state["actor"]
                gap = conservative_gap(actor, critic, obs, next_obs, samples, third)
                return error + 5.0 * (gap - q.mean(-1).sum())
            return error + eta * diversity(critic, obs, action) if eta > 0 else error

        error, gradient = jax.value_and_grad(critic_loss)(state["critic"])
        descend("critic", gradient)
        state["target"] = optax.incremental_update(state["critic"], state["target"], TAU)
        return {**state, "moments": moments}, (loss, error)

    return state, update


def td3_bc(
    hidden: Sequence[int], penalties: tuple[float, float] | None, data: tuple[Any, ...]
) -> tuple[Any, Callable[..., Any]]:
    """A critic update a step, actor and targets every second; with `penalties` it is ReBRAC, of
    actor and critics with LayerNorm."""
    obs_dim, action_dim = data[0].shape[1], data[1].shape[1]
    data = (*data, jnp.roll(data[1], -1, 0))
    one, two = jax.random.split(jax.random.PRNGKey(0))
    nets = {
        "actor": network(one, (obs_dim, *hidden, action_dim)),
        "critic": network(two, (obs_dim + action_dim, *hidden, 1), 2, norm=penalties is not None),
    }
    adam = optax.adam(RATE)
    state = {
        "nets": nets,
        "targets": jax.tree.map(jnp.copy, nets),
        "moments": {name: adam.init(net) for name, net in nets.items()},
        "count": jnp.zeros((), jnp.int32),
    }

    def update(state: Any, key: Any) -> Any:
        nets, targets, moments = dict(state["nets"]), state["targets"], dict(state["moments"])
        draw, noisy = jax.random.split(key)
        obs, action, reward, next_obs, logged = rows(data, draw)
        noise = jnp.clip(0.2 * jax.random.normal(noisy, action.shape), -0.5, 0.5)
        next_action = jnp.clip(jnp.tanh(apply(targets["actor"], next_obs)) + noise, -1, 1)
        value = values(targets["critic"], next_obs, next_action).min(0)
        if penalties:
            value = value - penalties[1] * ((next_action - logged) ** 2).sum(-1)
        goal = reward + GAMMA * value

        def critic_loss(critic: Params) -> Any:
            return ((values(critic, obs, action) - goal) ** 2).mean(-1).sum()

        def actor_loss(actor: Params) -> Any:
            chosen = jnp.tanh(apply(actor, obs))
            if penalties:
                q = values(nets["critic"], obs, chosen).min(0)
                scale = 1.0 / jax.lax.stop_gradient(jnp.abs(q).mean())
                return -scale * q.mean() + penalties[0] * ((chosen - action) ** 2).sum(-1).mean()
            q = apply([(w[0], b[0]) for w, b in nets["critic"]], jnp.concatenate([obs, chosen], -1))
            scale = 2.5 / jax.lax.stop_gradient(jnp.abs(q).mean())
            return -scale * q.mean() + ((chosen - action) ** 2).mean()

        loss, gradient = jax.value_and_grad(critic_loss)(nets["critic"])
        change, moments["critic"] = adam.update(gradient, moments["critic"])
        nets["critic"] = optax.apply_updates(nets["critic"], change)

        def policy_step(_: Any) -> Any:
            change, moment = adam.update(jax.grad(actor_loss)(nets["actor"]), moments["actor"])
            moved = {**nets, "actor": optax.apply_updates(nets["actor"], change)}
            return moved, optax.incremental_update(moved, targets, TAU), moment

        unmoved = (nets, targets, moments["actor"])
        nets, targets, moments["actor"] = jax.lax.cond(
            state["count"] % 2 == 0, policy_step, lambda _: unmoved, None
        )
        count = state["count"] + 1
        return {"nets": nets, "targets": targets, "moments": moments, "count": count}, loss

    return state, update


def model_fit(data: tuple[Any, ...]) -> tuple[Any, Callable[..., Any]]:
    """Seven Gaussian members of 4 x 200 SiLU, a batch of its own for each."""
    obs, action, reward, next_obs = data
    x = jnp.concatenate([obs, action], -1)
    y = jnp.concatenate([next_obs - obs, reward[:, None]], -1)
    outputs = y.shape[1]
    net = network(jax.random.PRNGKey(0), (x.shape[1], 200, 200, 200, 200, 2 * outputs), 7)
    params = {"net": net, "low": jnp.full(outputs, -10.0), "high": jnp.full(outputs, 0.5)}
    adam = optax.chain(optax.add_decayed_weights(5e-5), optax.adam(1e-3))

    def loss(params: Any, inputs: Any, goals: Any) -> Any:
        mean, raw = jnp.split(apply(params["net"], inputs, jax.nn.silu), 2, -1)
        raw = params["high"] - jax.nn.softplus(params["high"] - raw)
        spread = params["low"] + jax.nn.softplus(raw - params["low"])
        error = ((mean - goals) ** 2 * jnp.exp(-spread) + spread).mean((1, 2)).sum()
        return error + 0.01 * (params["high"].sum() - params["low"].sum())

    def update(state: Any, key: Any) -> Any:
        params, moments = state
        index = jax.random.randint(key, (7, BATCH), 0, len(x))
        value, gradient = jax.value_and_grad(loss)(params, x[index], y[index])
        change, moments = adam.update(gradient, moments, params)
        return (optax.apply_updates(params, change), moments), value

    return (params, adam.init(params)), update


def encoder(key: Any, size: int, width: int, states: int) -> Any:
    """A linear layer with LayerNorm, and one linear recurrent unit with its gate."""
    keys = jax.random.split(key, 8)
    modulus = jnp.sqrt(jax.random.uniform(keys[0], (states,)) * 0.81 + 1e-6)

    def normal(key: Any, fan: int, *shape: int) -> Any:
        return jax.random.normal(key, shape) / fan**0.5

    return {
        "embed": network(keys[1], (size, width)),
        "norms": [(jnp.ones(width), jnp.zeros(width)) for _ in range(2)],
        "nu": jnp.log(-jnp.log(modulus)),
        "theta": jnp.log(6.28 * jax.random.uniform(keys[2], (states,)) + 1e-6),
        "scale": jnp.log(jnp.sqrt(1 - modulus**2)),
        "into": [normal(k, 2 * width, width, states) for k in jax.random.split(keys[3])],
        "out": [normal(k, states, states, width) for k in jax.random.split(keys[4])],
        "skip": jax.random.normal(keys[5], (width,)),
        "gate": network(keys[6], (width, 2 * width)),
    }


def standardised(x: Any, norm: tuple[Any, Any]) -> Any:
    x = (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
    return x * norm[0] + norm[1]


def encoded(p: Any, x: Any, first: Any) -> Any:
    """Features of a tape on which sequences begin at `first`, by a parallel scan."""
    x = jax.nn.leaky_relu(standardised(apply(p["embed"], x), p["norms"][0]))
    u = standardised(x, p["norms"][1])
    entering = (u @ p["into"][0] + 1j * (u @ p["into"][1])) * jnp.exp(p["scale"])
    decay = jnp.exp(-jnp.exp(p["nu"]) + 1j * jnp.exp(p["theta"]))
    factors = jnp.where(first[:, None], 0.0, decay[None])
    h = jax.lax.associative_scan(
        lambda a, b: (b[0] * a[0], b[0] * a[1] + b[1]), (factors, entering)
    )[1]
    y = h.real @ p["out"][0] - h.imag @ p["out"][1] + p["skip"] * u
    value, gate = jnp.split(apply(p["gate"], jax.nn.gelu(y, approximate=False)), 2, -1)
    return x + value * jax.nn.sigmoid(gate)


LENGTH, OF_EPISODE, HEADS, HIDDEN = 512, 200, 5, (64, 64)  # of NEUBAY's local preset


def tape(data: tuple[Any, ...], key: Any) -> tuple[Any, ...]:
    """Random episodes one after the other: inputs, where episodes begin, actions, rewards, and the
    weights of positions."""
    episodes = jax.random.randint(key, (-(-LENGTH // OF_EPISODE),), 0, len(data[0]) // OF_EPISODE)
    index = (episodes[:, None] * OF_EPISODE + jnp.arange(OF_EPISODE)).reshape(-1)[:LENGTH]
    obs, action, reward, _ = (column[index] for column in data)
    first = jnp.arange(LENGTH) % OF_EPISODE == 0
    before = jnp.roll(jnp.concatenate([action, reward[:, None]], -1), 1, 0)
    x = jnp.concatenate([obs, jnp.where(first[:, None], 0.0, before)], -1)
    weights = jnp.where(jnp.roll(first, -1), 0.0, 1.0)
    return x, first, action, reward, weights / weights.sum()


def of_history(actor: Any, x: Any, first: Any, noise: Any) -> tuple[Any, Any]:
    """Actions along a tape, and their log-probabilities."""
    features = encoded(actor["encoder"], x, first)
    mean, log_std = jnp.split(apply(actor["head"], features, jax.nn.leaky_relu), 2, -1)
    log_std = jnp.clip(log_std, -5.0, 2.0)
    pre = mean + jnp.exp(log_std) * noise
    gaussian = -0.5 * noise**2 - log_std - HALF_LOG_2PI
    squash = 2.0 * (jnp.log(2.0) - pre - jax.nn.softplus(-2.0 * pre))
    return jnp.tanh(pre), (gaussian - squash).sum(-1)


def head_values(head: Any, features: Any, action: Any) -> Any:
    return apply(head, jnp.concatenate([features, action], -1), jax.nn.leaky_relu)[..., 0]


def recurrent(data: tuple[Any, ...]) -> tuple[Any, Callable[..., Any]]:
    """NEUBAY's learner, with the least of two random heads as the target."""
    obs_dim, action_dim = data[0].shape[1], data[1].shape[1]
    keys, size = jax.random.split(jax.random.PRNGKey(0), 4), obs_dim + action_dim + 1
    actor = {
        "encoder": encoder(keys[0], size, 64, 64),
        "head": network(keys[1], (64, *HIDDEN, 2 * action_dim), norm=True),
    }
    critic = {
        "encoder": encoder(keys[2], size, 64, 64),
        "head": network(keys[3], (64 + action_dim, *HIDDEN, 1), HEADS, norm=True),
    }
    rates = {"encoder": optax.adam(3e-4), "head": optax.adam(1e-3)}
    each = optax.multi_transform(rates, {name: name for name in rates})
    adam = optax.chain(optax.clip_by_global_norm(1000.0), each)
    slow = optax.adam(1e-3)
    target, log_alpha = jax.tree.map(jnp.copy, critic), jnp.log(jnp.array(0.2))
    moments = adam.init(actor), adam.init(critic), slow.init(log_alpha)

    def update(state: Any, key: Any) -> Any:
        actor, critic, target, log_alpha, (of_actor, of_critic, of_alpha) = state
        draw, noisy, which = jax.random.split(key, 3)
        x, first, action, reward, weights = tape(data, draw)
        noise, alpha = jax.random.normal(noisy, (2, *action.shape)), jnp.exp(log_alpha)
        features = encoded(critic["encoder"], x, first)

        def actor_loss(actor: Any) -> Any:
            chosen, log_prob = of_history(actor, x, first, noise[0])
            value = head_values(critic["head"], features, chosen).mean(0)
            return ((alpha * log_prob - value) * weights).sum(), log_prob

        (loss, log_prob), gradient = jax.value_and_grad(actor_loss, has_aux=True)(actor)
        moved, of_actor = adam.update(gradient, of_actor)
        actor = optax.apply_updates(actor, moved)
        moved, of_alpha = slow.update(-((log_prob - action_dim) * weights).sum(), of_alpha)
        log_alpha = log_alpha + moved
        chosen, log_prob = of_history(actor, x, first, noise[1])
        ahead = encoded(target["encoder"], x, first)
        two = jax.random.permutation(which, HEADS)[:2]
        least = head_values(target["head"], ahead, chosen)[two].min(0)
        goal = reward + GAMMA * jnp.roll(least - jnp.exp(log_alpha) * log_prob, -1)

        def critic_loss(critic: Any) -> Any:
            q = head_values(critic["head"], encoded(critic["encoder"], x, first), action)
            return (optax.huber_loss(q, goal[None]).mean(0) * weights).sum()

        error, gradient = jax.value_and_grad(critic_loss)(critic)
        moved, of_critic = adam.update(gradient, of_critic)
        critic = optax.apply_updates(critic, moved)
        target = optax.incremental_update(critic, target, TAU)
        return (actor, critic, target, log_alpha, (of_actor, of_critic, of_alpha)), (loss, error)

    return (actor, critic, target, log_alpha, moments), update


WORKLOADS: dict[str, tuple[Callable[..., Any], int]] = {
    "sac_small": (partial(soft_actor_critic, 2, (64, 64), 0.0), 100),
    "edac_small": (partial(soft_actor_critic, 10, (64, 64), 1.0), 50),
    "sac": (partial(soft_actor_critic, 2, (256, 256), 0.0), 50),
    "sac_n": (partial(soft_actor_critic, 10, (256, 256, 256), 0.0), 10),
    "edac": (partial(soft_actor_critic, 10, (256, 256, 256), 1.0), 4),
    "cql_small": (partial(soft_actor_critic, 2, (64, 64), 0.0, samples=10), 10),
    "td3_bc_small": (partial(td3_bc, (64, 64), None), 100),
    "td3_bc": (partial(td3_bc, (256, 256), None), 50),
    "rebrac_small": (partial(td3_bc, (64, 64), (0.01, 0.01)), 100),
    "model_fit": (model_fit, 10),
    "recurrent": (recurrent, 20),
}
