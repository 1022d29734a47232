"""What runs inside the peers' processes.

Run as a script by the interpreter of an environment that holds the peer, it builds one workload
and answers each line `SECONDS` on its input with the rate over that long, so that the caller can
measure peer and library in turn, and the line `peak` with the peak resident size. Only the standard
library is imported before that.
"""

import importlib
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Step = Callable[[], object]
OBS, ACTIONS, ROWS, BATCH = 17, 6, 100_000, 256
PEAK = "peak"
WITHOUT_TORCH = ("JAX",)


def window(step: Step, count: int, seconds: float) -> float:
    """Units a second of `step`, which does `count` of them, over at least `seconds`."""
    began, done = time.perf_counter(), 0
    while True:
        step()
        done += count
        passed = time.perf_counter() - began
        if passed >= seconds:
            return done / passed


def peak() -> float:
    """The peak resident size of this process in MB. (That of `getrusage` may be the size of the
    process that started this one.)"""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(x.split()[1]) for x in lines if x.startswith("VmHWM")) / 1024
    except OSError:  # no Linux
        import resource

        size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return size / (2**20 if sys.platform == "darwin" else 2**10)


def _arrays() -> tuple[Any, ...]:
    import numpy as np

    draw = np.random.default_rng(0)
    obs = draw.standard_normal((ROWS, OBS), dtype=np.float32)
    action = draw.uniform(-1, 1, (ROWS, ACTIONS)).astype(np.float32)
    reward = draw.standard_normal(ROWS, dtype=np.float32)
    return obs, action, reward, np.roll(obs, -1, 0)


def _spaces() -> Any:
    import gymnasium as gym
    import numpy as np

    class Space(gym.Env):
        observation_space = gym.spaces.Box(-np.inf, np.inf, (OBS,), np.float32)
        action_space = gym.spaces.Box(-1.0, 1.0, (ACTIONS,), np.float32)

        def reset(self, **kwargs: Any) -> Any:
            return np.zeros(OBS, np.float32), {}

        def step(self, action: Any) -> Any:
            return np.zeros(OBS, np.float32), 0.0, False, False, {}

    return Space()


def _sb3(workload: str) -> tuple[Step, int]:
    from stable_baselines3 import SAC

    return _sac(SAC, workload, 20)


def _sac(kind: Any, workload: str, count: int) -> tuple[Step, int]:
    """`count` updates of stable-baselines3's SAC, or of SBX's, which has its interface; `online`:
    as many steps in Pendulum with an update after each."""
    import gymnasium as gym
    from stable_baselines3.common.logger import configure

    online = workload.startswith("online")
    agent = kind(
        "MlpPolicy",
        gym.make("Pendulum-v1") if online else _spaces(),
        buffer_size=ROWS,
        batch_size=BATCH,
        policy_kwargs={"net_arch": [64, 64] if workload.endswith("small") else [256, 256]},
        learning_starts=BATCH if online else 0,
        device="cpu",
    )
    agent.set_logger(configure(None, []))
    if online:
        agent.learn(2 * BATCH)
        return lambda: agent.learn(count, reset_num_timesteps=False), count
    _fill(agent.replay_buffer)
    return lambda: agent.train(gradient_steps=count, batch_size=BATCH), count


def _one_thread() -> None:
    """Keep JAX to one thread; a flag alone leaves it two."""
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    os.sched_setaffinity(0, [max(os.sched_getaffinity(0))])


def _sbx(workload: str) -> tuple[Step, int]:
    _one_thread()
    from sbx import SAC

    return _sac(SAC, workload, 100)


def _fill(buffer: Any) -> None:
    obs, action, reward, next_obs = _arrays()
    buffer.observations[:, 0], buffer.actions[:, 0] = obs, action
    buffer.rewards[:, 0], buffer.next_observations[:, 0] = reward, next_obs
    buffer.full = True


def _d3rlpy(workload: str) -> tuple[Step, int]:
    import d3rlpy
    import numpy as np

    obs, action, reward, _ = _arrays()
    ends = np.zeros(ROWS, np.float32)
    ends[999::1000] = 1
    data = d3rlpy.dataset.MDPDataset(obs, action, reward, np.zeros_like(ends), ends)
    config: Any
    if workload == "td3_bc":
        config = d3rlpy.algos.TD3PlusBCConfig()
    else:
        shape = d3rlpy.models.VectorEncoderFactory([256, 256, 256])
        config = d3rlpy.algos.SACConfig(
            n_critics=10, actor_encoder_factory=shape, critic_encoder_factory=shape
        )
    agent = config.create(device="cpu:0")
    agent.build_with_dataset(data)
    return lambda: agent.update(data.sample_transition_batch(BATCH)), 1


def _mbrl(workload: str) -> tuple[Step, int]:
    import numpy as np
    import torch

    models: Any = importlib.import_module("mbrl.models")  # theirs, not this library's mbrl
    buffers: Any = importlib.import_module("mbrl.util.replay_buffer")
    obs, action, reward, next_obs = _arrays()
    net = models.GaussianMLP(
        OBS + ACTIONS,
        OBS + 1,
        "cpu",
        num_layers=4,
        ensemble_size=7,
        hid_size=200,
        propagation_method="fixed_model" if workload == "pets_plan" else "random_model",
        activation_fn_cfg={"_target_": "torch.nn.SiLU"},
    )
    model = models.OneDTransitionRewardModel(net, target_is_delta=True, normalize=True)
    none = np.zeros(ROWS, bool)
    batch = buffers.TransitionBatch(obs, action, next_obs, reward, none, none)
    model.update_normalizer(batch)
    if workload == "model_fit":
        optimiser = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=5e-5)
        rows = buffers.BootstrapIterator(batch, BATCH, 7, shuffle_each_epoch=True)
        stream = (item for _ in iter(int, 1) for item in rows)
        return lambda: model.update(next(stream), optimiser), 1
    count, generator = 10_003, torch.Generator()  # a multiple of the members, as it demands
    end = lambda act, nxt: torch.zeros(len(nxt), 1, dtype=torch.bool)  # noqa: E731
    world = models.ModelEnv(_spaces(), model, end, None, generator)
    net.mean_and_logvar.weight.data.mul_(0.01)
    if workload == "pets_plan":
        return _cross_entropy(world, obs[0]), 1
    layers = [torch.nn.Linear(OBS, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256)]
    actor = torch.nn.Sequential(*layers, torch.nn.ReLU(), torch.nn.Linear(256, 2 * ACTIONS))

    def roll() -> None:
        state = world.reset(obs[:count], return_as_np=False)
        now = state["obs"]
        with torch.no_grad():
            for _ in range(5):
                mean, spread = actor(now).chunk(2, -1)
                act = torch.tanh(mean + spread.clamp(-5, 2).exp() * torch.randn_like(mean))
                now, _, _, state = world.step(act, state, sample=True)

    return roll, 5 * count


def _cross_entropy(world: Any, obs: Any) -> Step:
    """Plans of mbrl-lib's PETS with the settings of its cartpole."""
    planning: Any = importlib.import_module("mbrl.planning")
    configs: Any = importlib.import_module("omegaconf").OmegaConf
    search = {
        "_target_": "mbrl.planning.CEMOptimizer",
        "num_iterations": 5,
        "elite_ratio": 0.1,
        "population_size": 350,
        "alpha": 0.1,
        "return_mean_elites": True,
        "device": "cpu",
        "lower_bound": None,
        "upper_bound": None,
    }
    agent = planning.TrajectoryOptimizerAgent(
        configs.create(search), [-1.0] * ACTIONS, [1.0] * ACTIONS, 15
    )
    agent.set_trajectory_eval_fn(
        lambda start, plans: world.evaluate_action_sequences(plans, start, num_particles=20)
    )
    return lambda: agent.act(obs)


def _vmap(workload: str) -> tuple[Step, int]:
    """128 members as one stack of parameters, a gradient for each by `vmap(grad)`, AdamW."""
    import torch
    import torch.nn.functional as F

    members, width, out = 128, 200, OBS + 1
    layers = [OBS + ACTIONS, width, width, width, width, 2 * out]
    weights = {}
    for i in range(5):
        scale = layers[i] ** -0.5
        weights[f"w{i}"] = (torch.randn(members, layers[i], layers[i + 1]) * scale).requires_grad_()
        weights[f"b{i}"] = torch.zeros(members, layers[i + 1], requires_grad=True)
        if i < 4:
            weights[f"s{i}"] = torch.ones(members, width, requires_grad=True)
            weights[f"t{i}"] = torch.zeros(members, width, requires_grad=True)
    optimiser = torch.optim.AdamW(weights.values(), lr=1e-3, weight_decay=5e-5, fused=True)

    def loss(p: dict[str, Any], x: Any, y: Any) -> Any:
        for i in range(4):
            x = F.layer_norm(x @ p[f"w{i}"] + p[f"b{i}"], (width,), p[f"s{i}"], p[f"t{i}"])
            x = F.leaky_relu(x, 0.01)
        mean, spread = (x @ p["w4"] + p["b4"]).chunk(2, -1)
        spread = 0.25 - F.softplus(0.25 - spread)
        spread = -5.0 + F.softplus(spread + 5.0)
        return ((y - mean).square() * torch.exp(-spread) + spread).mean()

    gradients = torch.func.vmap(torch.func.grad(loss))
    obs, action, reward, next_obs = (torch.from_numpy(a) for a in _arrays())
    x, y = torch.cat([obs, action], -1), torch.cat([next_obs - obs, reward[:, None]], -1)

    def step() -> None:
        rows = torch.randint(len(x), (members, BATCH))
        gradient = gradients({k: v.detach() for k, v in weights.items()}, x[rows], y[rows])
        for name, weight in weights.items():
            weight.grad = gradient[name]
        optimiser.step()

    return step, 1


def _transformers(workload: str) -> tuple[Step, int]:
    """Llama of the same sizes, sampled by its `generate` and trained by its own loss."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    size, rows, prompt, answer = 71, 128, 16, 32  # those of bench_language.py
    config = LlamaConfig(
        vocab_size=size,
        hidden_size=128,
        intermediate_size=344,
        num_hidden_layers=4,
        num_attention_heads=4,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config)
    if workload == "language_sample":
        tokens = torch.randint(size, (rows, prompt))
        real = torch.ones_like(tokens)
        how = {"do_sample": True, "max_new_tokens": answer, "top_k": 0, "use_cache": True}

        def sample() -> None:
            with torch.no_grad():
                generated = model.generate(tokens, attention_mask=real, **how)
            assert generated.shape == (rows, prompt + answer)

        return sample, rows * answer
    optimiser = torch.optim.Adam(model.parameters(), 1e-4, fused=True)
    if workload == "language_update":
        return _padded_update(model, optimiser, rows, prompt, answer)
    tokens = torch.randint(size, (rows, prompt + answer + 1))

    def train() -> None:
        optimiser.zero_grad()
        logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimiser.step()

    return train, rows * (prompt + answer)


def _padded_update(
    model: Any, optimiser: Any, rows: int, prompt: int, answer: int
) -> tuple[Step, int]:
    """Answers of all lengths as one padded batch, logits of the answers' columns alone."""
    import torch

    tokens = torch.randint(model.config.vocab_size, (rows, prompt + answer))
    lengths = 1 + torch.arange(rows)[:, None] % answer
    mask = torch.arange(answer) < lengths
    real = torch.cat([torch.ones(rows, prompt, dtype=torch.bool), mask[:, :-1]], 1)

    def update() -> None:
        optimiser.zero_grad()
        logits = model(
            input_ids=tokens[:, :-1],
            attention_mask=real.long(),
            use_cache=False,
            logits_to_keep=answer,
        ).logits
        wanted = torch.where(mask, tokens[:, -answer:], -100)  # which its mean leaves out
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten()).backward()
        optimiser.step()

    return update, int(mask.sum())


def _jax(workload: str) -> tuple[Step, int]:
    _one_thread()
    path = Path(__file__).with_name("jax_updates.py")
    spec = importlib.util.spec_from_file_location("jax_updates", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    built: tuple[Step, int] = module.build(workload, _arrays())
    return built


def serve(name: str, workload: str, module: str) -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the peer prints must not mix with the answers
    if name not in WITHOUT_TORCH:
        import torch

        torch.set_num_threads(1)
    builds = {"stable-baselines3": _sb3, "d3rlpy": _d3rlpy, "mbrl-lib": _mbrl, "SBX": _sbx}
    others = {"torch.func.vmap": _vmap, "transformers": _transformers, "JAX": _jax}
    step, count = (builds | others)[name](workload)
    for _ in range(3):
        step()
    version = getattr(importlib.import_module(module), "__version__", "?")
    print(json.dumps({"version": version}), file=out, flush=True)
    for line in sys.stdin:
        if line.strip() == PEAK:
            answer = {"peak": peak()}
        else:
            answer = {"rate": window(step, count, float(line))}
        print(json.dumps(answer), file=out, flush=True)


if __name__ == "__main__":
    serve(*sys.argv[1:])
