"""Exploration bonuses for agents that learn from whole episodes: novelty within an episode, over
all of training, or both: "A Study of Global and Episodic Bonuses for Exploration in Contextual
MDPs" (Henaff, Jiang, Raileanu, arXiv 2306.03236). The elliptical one is E3B's (arXiv 2210.05805).
Formulas read in the code of the authors (facebookresearch/e3b). Errors of a predicted random
network are "Exploration by Random Network Distillation" (arXiv 1810.12894), growth of novelty is
"NovelD: A Simple yet Effective Exploration Criterion" (NeurIPS 2021).

Differences: one table of counts for all copies (theirs: one for each process); rewards are not
clipped after the bonus is added; an episode's covariance is kept from step to step.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from mbrl.config import CountOrZero, NonNegative, Positive, Probability, Settings, Widths
from mbrl.errors import ConfigError
from mbrl.networks import MLP, adam, descend
from mbrl.types import Spec, Trajectories

FEATURES = 16  # of the learned encoder


@dataclass(frozen=True)
class BonusConfig(Settings):
    """An exploration bonus, added to rewards that are learned from."""

    # novelty in the episode, over training, their product or their sum; noveld: by how much more
    # novel over training a state is than the one before, where the episode meets it first
    kind: Literal["none", "episodic", "global", "product", "sum", "noveld"] = "none"
    # counts of equal entries, or the elliptical form of features (E3B)
    novelty: Literal["count", "elliptical"] = "count"
    # novelty over training by the error at predicting a random network (RND) in its place
    random_network: bool = False
    before: Probability = 0.5  # of noveld: weight of the novelty of the state before
    weight: NonNegative = 0.1  # kappa, of the bonus beside the reward
    columns: tuple[CountOrZero, ...] = ()  # entries of the observation that count; (): all
    features: Literal["observation", "inverse"] = "observation"  # of "elliptical": or learned
    ridge: Positive = 0.1  # lambda, of the elliptical form
    normalised: bool = False  # divide by the deviation of all bonuses so far, if they vary
    hidden: Widths = (64,)  # of the encoder that learns by inverse dynamics, and of RND's networks
    learning_rate: Positive = 1e-3  # Adam, encoder and predictor

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind == "noveld" and self.novelty != "count":
            raise ConfigError(
                f"novelty is {self.novelty} and kind noveld, which counts an episode's visits; "
                "leave novelty at count, with random_network for NovelD's own novelty"
            )


class Counts:
    """How often entries were met. `count` first adds one, so that a first visit gives 1."""

    def __init__(self) -> None:
        self.table: dict[bytes, int] = {}

    def count(self, keys: list[bytes]) -> list[int]:
        """The number of visits so far of each key, this one among them."""
        counted = []
        for key in keys:
            self.table[key] = self.table.get(key, 0) + 1
            counted.append(self.table[key])
        return counted

    def state_dict(self) -> dict[str, Tensor]:
        if not self.table:
            return {name: torch.zeros(0, dtype=torch.int64) for name in ("keys", "visits")}
        keys = torch.frombuffer(bytearray(b"".join(self.table)), dtype=torch.uint8)
        visits = torch.tensor([*self.table.values()], dtype=torch.int64)
        return {"keys": keys.view(len(self.table), -1), "visits": visits}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        keys = [bytes(row) for row in state["keys"].numpy()]
        self.table = dict(zip(keys, state["visits"].tolist(), strict=True))


def elliptical(feature: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
    """b = phi^T C^-1 phi [B] of `feature` [B, D] with `inverse` [B, D, D] before phi is added, and
    the inverse after it (Sherman and Morrison): C^-1 - (C^-1 phi)(C^-1 phi)^T / (1 + b)."""
    moved = (inverse @ feature[..., None])[..., 0]
    bonus = (feature * moved).sum(-1)
    outer = moved[..., :, None] * moved[..., None, :]
    return bonus, inverse - outer / (1 + bonus)[..., None, None]


class Bonus:
    """The bonus of rounds of episodes, with what it remembers of all rounds before."""

    def __init__(
        self, spec: Spec, config: BonusConfig, device: torch.device, generator: Generator
    ) -> None:
        self.config, self.device = config, device
        wrong = [c for c in config.columns if c >= spec.obs_dim]
        if wrong:
            raise ConfigError(
                f"bonus.columns has {wrong[0]}; the entries of an observation are 0 to "
                f"{spec.obs_dim - 1}"
            )
        self.columns = list(config.columns) or list(range(spec.obs_dim))
        self.counts = Counts()
        self.encoder: Encoder | None = None
        width = len(self.columns)
        if config.novelty == "elliptical" and config.features == "inverse":
            self.encoder = Encoder(spec, config, width, device, generator)
            width = FEATURES
        self.random: RandomNetwork | None = None
        if config.random_network:
            self.random = RandomNetwork(config, len(self.columns), device, generator)
        self.inverse = torch.eye(width, dtype=torch.float64, device=device) / config.ridge
        self.seen = torch.zeros(3, dtype=torch.float64, device=device)  # number, sum, squares

    def __call__(self, t: Trajectories) -> Tensor:
        """Bonuses [B, T] times the weight, of the states that steps reached; 0 beyond the end."""
        reached = t.next_obs[..., self.columns]
        counted = self.config.novelty == "count"
        bonus = self._counted(reached, t) if counted else self._elliptical(reached, t)
        if self.random is not None:  # only now: what a round meets is as new as it was before it
            self.random.learn(reached[t.mask])
        if self.config.normalised:
            of_steps = bonus[t.mask].double()
            self.seen += torch.stack([t.mask.sum(), of_steps.sum(), of_steps.square().sum()])
            number, total, squares = self.seen
            deviation = (squares / number - (total / number).square()).clamp_min(0).sqrt()
            # Of bonuses that are all alike rounding is left, which is no unit: they stay.
            varies = deviation > 1e-6 * (squares / number).sqrt()
            bonus = bonus / torch.where(varies, deviation, 1.0)
        return (self.config.weight * bonus).to(t.reward.dtype)

    def combined(self, episodic: Tensor, over_all: Tensor, before: Tensor | None = None) -> Tensor:
        kind = self.config.kind
        if before is not None:
            return episodic * (over_all - self.config.before * before).clamp_min(0)
        if kind == "episodic":
            return episodic
        if kind == "global":
            return over_all
        return episodic * over_all if kind == "product" else episodic + over_all

    def _counted(self, reached: Tensor, t: Trajectories) -> Tensor:
        """1 where an entry is new to the episode, and 1 / sqrt(visits) of all training, or the
        error of the random network's predictor."""
        mask = t.mask
        bonus = torch.zeros(mask.shape, dtype=torch.float64)
        episodes = [Counts() for _ in range(len(mask))]
        # States are compared by their bytes, in which -0 and 0 differ; added to 0 both are 0.
        values, known = (0.0 + reached).cpu().numpy(), mask.cpu()
        left = None
        if self.config.kind == "noveld":
            left = (0.0 + t.obs[..., self.columns]).cpu().numpy()
        errors, earlier = self._errors(reached, t)
        for step in range(mask.shape[1]):  # in the order of time
            rows = known[:, step].nonzero()[:, 0].tolist()
            keys = [values[row, step].tobytes() for row in rows]
            once = [episodes[row].count([key])[0] == 1 for row, key in zip(rows, keys, strict=True)]
            visits = self.counts.count(keys)
            episodic = torch.tensor(once, dtype=torch.float64)
            over_all = torch.tensor([1 / math.sqrt(n) for n in visits], dtype=torch.float64)
            before = None
            if left is not None:
                met = [self.counts.table.get(left[row, step].tobytes(), 1) for row in rows]
                before = torch.tensor([1 / math.sqrt(n) for n in met], dtype=torch.float64)
            if errors is not None:
                over_all = errors[rows, step]
                before = None if earlier is None else earlier[rows, step]
            bonus[rows, step] = self.combined(episodic, over_all, before)
        return bonus.to(self.device)

    def _errors(self, reached: Tensor, t: Trajectories) -> tuple[Tensor | None, Tensor | None]:
        """Of the random network, if there is one: its predictor's errors [B, T] at the states that
        were reached and, for noveld, at those before."""
        if self.random is None:
            return None, None
        of = self.random.errors(reached).cpu()
        if self.config.kind != "noveld":
            return of, None
        return of, self.random.errors(t.obs[..., self.columns]).cpu()

    def _elliptical(self, reached: Tensor, t: Trajectories) -> Tensor:
        """phi^T C^-1 phi with the covariance of the episode so far, and with that of all steps."""
        if self.encoder is not None:
            self.encoder.learn(t, self.columns)
            reached = self.encoder.features(reached)
        feature = reached.double()
        first = torch.eye(feature.shape[-1], dtype=torch.float64, device=self.device)
        own = (first / self.config.ridge).expand(len(feature), -1, -1)
        bonus = torch.zeros(t.mask.shape, dtype=torch.float64, device=self.device)
        for step in range(t.mask.shape[1]):
            rows = t.mask[:, step].nonzero()[:, 0]
            episodic, inverse = elliptical(feature[rows, step], own[rows])
            own = own.index_copy(0, rows, inverse)
            over_all = torch.zeros_like(episodic)
            if self.random is not None:
                over_all = self.random.errors(t.next_obs[rows, step][:, self.columns])
            elif self.config.kind != "episodic":
                for k, row in enumerate(rows.tolist()):
                    one, inverse = elliptical(feature[row, step][None], self.inverse[None])
                    over_all[k], self.inverse = one[0], inverse[0]
            bonus[rows, step] = self.combined(episodic, over_all)
        return bonus

    def state_dict(self) -> dict[str, Any]:
        encoder = None if self.encoder is None else self.encoder.state_dict()
        counts = self.counts.state_dict()
        state = {"counts": counts, "inverse": self.inverse, "seen": self.seen, "encoder": encoder}
        return state | ({} if self.random is None else {"random": self.random.state_dict()})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.counts.load_state_dict(state["counts"])
        self.inverse, self.seen = state["inverse"].clone(), state["seen"].clone()
        if self.encoder is not None:
            self.encoder.load_state_dict(state["encoder"])
        if self.random is not None:
            self.random.load_state_dict(state["random"])


class RandomNetwork:
    """A network that stays as it was drawn, and one that learns to predict it: a step of Adam a
    round, on all states that the round reached. Where it errs it has not been."""

    def __init__(
        self, config: BonusConfig, width: int, device: torch.device, draw: Generator
    ) -> None:
        self.target, self.predictor = (
            MLP(width, config.hidden, FEATURES, generator=draw).to(device) for _ in range(2)
        )
        self.target.requires_grad_(False)
        self.optimiser = adam(self.predictor.parameters(), config.learning_rate)

    @torch.no_grad()
    def errors(self, entries: Tensor) -> Tensor:
        """float64 [...]: squared distance of prediction and target for entries [..., D]."""
        apart = self.predictor(entries) - self.target(entries)
        return apart.double().square().sum(-1)

    def learn(self, entries: Tensor) -> None:
        apart = self.predictor(entries) - self.target(entries)
        descend(self.optimiser, apart.square().sum(-1).mean())

    def state_dict(self) -> dict[str, Any]:
        return {
            "target": self.target.state_dict(),
            "predictor": self.predictor.state_dict(),
            "optimiser": self.optimiser.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.target.load_state_dict(state["target"])
        self.predictor.load_state_dict(state["predictor"])
        self.optimiser.load_state_dict(state["optimiser"])


class Encoder:
    """phi(s), learned by predicting the action between two states: a step of Adam a round, on all
    of its steps."""

    def __init__(
        self, spec: Spec, config: BonusConfig, width: int, device: torch.device, draw: Generator
    ) -> None:
        self.discrete = spec.discrete
        outputs = spec.num_actions or spec.action_dim
        self.encoder = MLP(width, config.hidden, FEATURES, generator=draw).to(device)
        self.head = MLP(2 * FEATURES, config.hidden, outputs, generator=draw).to(device)
        self.optimiser = adam(
            [*self.encoder.parameters(), *self.head.parameters()], config.learning_rate
        )

    @torch.no_grad()
    def features(self, entries: Tensor) -> Tensor:
        """[..., FEATURES]."""
        out: Tensor = self.encoder(entries)
        return out

    def learn(self, t: Trajectories, columns: list[int]) -> None:
        """Cross-entropy of discrete actions, squared errors of others as they were drawn."""
        before, after = t.obs[t.mask][:, columns], t.next_obs[t.mask][:, columns]
        predicted = self.head(torch.cat([self.encoder(before), self.encoder(after)], -1))
        action = t.action[t.mask]
        loss = (
            F.cross_entropy(predicted, action) if self.discrete else F.mse_loss(predicted, action)
        )
        descend(self.optimiser, loss)

    def state_dict(self) -> dict[str, Any]:
        return {
            "encoder": self.encoder.state_dict(),
            "head": self.head.state_dict(),
            "optimiser": self.optimiser.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.encoder.load_state_dict(state["encoder"])
        self.head.load_state_dict(state["head"])
        self.optimiser.load_state_dict(state["optimiser"])
