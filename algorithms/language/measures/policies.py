"""Parts that change the policy: which tokens it may say, and what an update sees of it."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from algorithms.language.measures.base import LanguageMeasure
from algorithms.language.models.restricted import Restricted
from algorithms.language.sampling.rollouts import Rollouts
from mbrl.errors import ConfigError
from mbrl.networks import adam, target_copy
from mbrl.policy_gradient.requirements import Requirement
from mbrl.training import Metrics

MASK_SHARE = 0.9  # probability of the tokens that the earlier copy leaves; the authors' scripts
MASK_ROUNDS = 20  # after as many the earlier copy becomes the policy; most of the authors' scripts
PIVOT = 0.8  # quantile of log-entropies about which HAPO's temperature turns
TEMPERATURE_SHARE = 0.05  # by which it changes at most; the authors' code
PERTURBATION = 0.01  # standard deviation at first, of every layer; the authors' example of a model


class Masked(LanguageMeasure):
    """The policy may say only the likeliest tokens of an earlier copy of it that together have the
    probability 0.9. What it was left is kept with every token, so that all log-probs, those of the
    reference too, are renormalised on the very sets that were drawn from. The copy is the first
    policy, and after every 20 rounds the one before their last updates. NLPO, arXiv 2210.01241: in
    the authors' scripts (github.com/allenai/RL4LMs) `top_mask` is 0.9 and the copy is renewed after
    every 20 iterations of sampling and learning (5 for one task, 30 and 100 for two); at least 100
    tokens are left there, more than there are characters here. An evaluation asks the model without
    a mask."""

    provides = ()
    fulfils = (Requirement.MASKED_POLICY,)
    changes_sampling = True

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        self.earlier = target_copy(agent.model)
        self.modules = {"mask": self.earlier}
        self.rounds = 0

    def begin(self) -> None:
        self.earlier.load_state_dict(self.agent.model.state_dict())

    def sampling_model(self, model: Any) -> Any:
        temperature = self.agent.config.sampling.temperature
        return Restricted(model, self.earlier, MASK_SHARE, temperature)

    def measure(self, rollouts: Rollouts) -> Rollouts:
        self.rounds += 1
        if self.rounds % MASK_ROUNDS == 0:
            self.begin()
        return rollouts

    def state_dict(self) -> dict[str, Any]:
        return {"rounds": self.rounds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rounds = state["rounds"]


class EntropyTemperature(LanguageMeasure):
    """Tokens are drawn at the temperature T (1 + 0.05 h), with h in [-1, 1] how far the log-entropy
    of what the policy would say (at T) is above or below the pivot of the round before, over the
    farthest on that side there: the 0.8 quantile, as in `EntropyClip`. In the first round at T.
    Log-probs of sampling are those under that law, ratios are taken to the policy at T.

    `acts`: the standard deviation of the factors of T in a round. "From Uniform to Heterogeneous:
    Tailoring Policy Optimization to Every Token's Nature", arXiv 2509.16591, as in the authors'
    code but for the sign below the pivot. (Their h is over a deviation first, which cancels.)"""

    provides = ()
    fulfils = (Requirement.ENTROPY_TEMPERATURE,)
    changes_sampling = True

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        self.statistics: tuple[float, float, float] | None = None  # pivot, farthest up, down

    def sampling_model(self, model: Any) -> Any:
        if self.statistics is None:
            return model
        return Tempered(model, self.agent.config.sampling.temperature, self.statistics)

    def measure(self, rollouts: Rollouts) -> Rollouts:
        t = rollouts.data
        assert t.entropy is not None
        entropy = t.entropy[t.mask].double()
        self.acts = 0.0
        if self.statistics is not None and len(entropy) > 1:
            self.acts = float(temperature_factor(entropy, self.statistics).std())
        logs = entropy.clamp_min(1e-8).log().sort().values
        pivot = float(logs[round(PIVOT * (len(logs) - 1))])
        self.statistics = (pivot, float(logs[-1]) - pivot, pivot - float(logs[0]))
        return rollouts

    def state_dict(self) -> dict[str, Any]:
        return {"statistics": self.statistics}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        known = state["statistics"]
        self.statistics = None if known is None else tuple(known)


def temperature_factor(entropy: Tensor, statistics: tuple[float, float, float]) -> Tensor:
    """1 + 0.05 h of entropies of any shape."""
    pivot, up, down = statistics
    apart = entropy.clamp_min(1e-8).log() - pivot
    h = torch.where(apart > 0, apart / max(up, 1e-8), apart / max(down, 1e-8)).clamp(-1, 1)
    return 1 + TEMPERATURE_SHARE * h


class Tempered:
    """`model` for sampling, whose logits are over `temperature_factor` of the entropy that they
    have at `temperature`."""

    def __init__(
        self, model: Any, temperature: float, statistics: tuple[float, float, float]
    ) -> None:
        self.model, self.temperature, self.statistics = model, temperature, statistics

    def parameters(self) -> Iterator[nn.Parameter]:
        parameters: Iterator[nn.Parameter] = self.model.parameters()
        return parameters

    def cache(self, rows: int, capacity: int) -> Any:
        return self.model.cache(rows, capacity)

    def extend(self, tokens: Tensor, real: Tensor, cache: Any) -> Tensor:
        return self.changed(self.model.extend(tokens, real, cache))

    def changed(self, logits: Tensor) -> Tensor:
        log_p = (logits / self.temperature).log_softmax(-1)
        entropy = -(log_p.exp() * log_p).sum(-1, keepdim=True)
        return logits / temperature_factor(entropy, self.statistics)


class Perturbed(LanguageMeasure):
    """An update sees the policy with Gaussian noise added to what goes into every layer, drawn anew
    for each update, row and position, times a scale of the layer, 0.01 at first, whose logarithm
    the objective's gradient trains. Conversations are sampled, and old log-probs measured, without
    it. "Adaptive Layerwise Perturbation: Unifying Off-Policy Corrections for LLM RL", arXiv
    2603.19470, and the README of the authors' code: 0.01 is its example of a model's settings; its
    script for a model of 7B parameters begins at 1e-6 with a rate of 5e-4 (here `part_rate`)."""

    provides = ()
    fulfils = (Requirement.PERTURBED_POLICY,)

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        like = next(agent.model.parameters())
        count = len(layers_of(agent.model))
        self.scales = nn.ParameterList(
            [nn.Parameter(torch.full((count,), math.log(PERTURBATION)).to(like))]
        )
        self.modules = {"perturbation": self.scales}
        self.optimisers = {"perturbation": adam([self.scales[0]], agent.config.part_rate)}
        self.seed = agent.drawn_seed()

    def training_model(self, model: Any, rows: Tensor) -> Any:
        return Noisy(model, self.scales[0].exp(), self.seed, rows.tolist())

    def learn(self, rollouts: Rollouts, targets: dict[str, Tensor]) -> Metrics:
        """The gradient came with that of the model."""
        scale, optimiser = self.scales[0], self.optimisers["perturbation"]
        if scale.grad is not None and bool(torch.isfinite(scale.grad).all()):
            nn.utils.clip_grad_norm_([scale], self.agent.config.clip_norm)
            optimiser.step()
        optimiser.zero_grad()
        self.seed = self.agent.drawn_seed()
        return {"perturbation/scale": scale.detach().exp().mean()}

    def state_dict(self) -> dict[str, Any]:
        return {"seed": self.seed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seed = state["seed"]


class Noisy:
    """Tokens to logits of `model`, with `scale` [layers] times noise on the inputs of its layers.
    The noise belongs to `seed` and the number of the row, so that parts of a batch have the noise
    of the whole."""

    def __init__(self, model: Any, scale: Tensor, seed: int, rows: Sequence[int]) -> None:
        self.model, self.scale, self.seed, self.rows = model, scale, seed, rows

    def logits_at(self, tokens: Tensor, here: Tensor) -> Tensor:
        layers = layers_of(self.model)
        hooks = [layer.register_forward_pre_hook(self.hook(i)) for i, layer in enumerate(layers)]
        try:
            logits: Tensor = self.model.logits_at(tokens, here)
        finally:
            for hook in hooks:
                hook.remove()
        return logits

    def hook(self, layer: int) -> Callable[[nn.Module, tuple[Any, ...]], tuple[Any, ...]]:
        def perturb(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            hidden, *others = inputs
            return (hidden + self.scale[layer] * self.noise(layer, hidden), *others)

        return perturb

    def noise(self, layer: int, like: Tensor) -> Tensor:
        """[B, N, width] standard normal, drawn on the CPU, alike on all devices."""
        rows = []
        for row in self.rows:
            seed = self.seed + row * len(self.scale) + layer
            generator = torch.Generator().manual_seed(seed)
            rows.append(torch.randn(like.shape[1:], generator=generator))
        return torch.stack(rows).to(like)


def layers_of(model: nn.Module) -> nn.ModuleList:
    """The layers of a model, its first list of modules. Raises `ConfigError` if there is none."""
    for module in model.modules():
        if isinstance(module, nn.ModuleList):
            return module
    raise ConfigError("the model has no list of layers to perturb; take another model")
