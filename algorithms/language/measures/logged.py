"""Recorded answers in place of new ones: what the first policy said, drawn by its advantage."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from algorithms.language.measures.assembled import Assembled, own_groups
from algorithms.language.measures.base import LanguageMeasure, require_one_domain
from algorithms.language.sampling.conversation import Conversation, earned, padded
from algorithms.language.sampling.rollouts import Rollouts
from algorithms.language.tasks.base import Problem
from mbrl.errors import ConfigError
from mbrl.networks import adam, descend
from mbrl.policy_gradient import Recipe
from mbrl.policy_gradient.requirements import Requirement

HELD_BACK = 4  # one validation problem in so many says which epoch is kept; ours
EPOCHS, RATE = 60, 1e-2  # of the value's fit; ours


class PromptValue(nn.Module):
    """A number for every prompt from the features [N, L, width] of its tokens, which `real` [N, L]
    marks: the mean that an attention over them makes, read linearly."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention, self.value = nn.Linear(width, 1), nn.Linear(width, 1)
        for layer in (self.attention, self.value):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, features: Tensor, real: Tensor) -> Tensor:
        score = self.attention(features)[..., 0].masked_fill(~real, -torch.inf)
        numbers: Tensor = (score.softmax(-1) * self.value(features)[..., 0]).sum(-1)
        return numbers


class LoggedAnswers(LanguageMeasure):
    """Before the first round the policy answers `logged` problems, a group each; nothing is sampled
    after that. `signals.reference_value`: the value of the prompt under that first policy, by a
    `PromptValue` on its features, fitted by squared errors to the rewards of its answers to a
    quarter as many other problems, and kept from the epoch that is best on a quarter of these.
    Answers with a positive advantage are kept; a round's conversations are drawn from them with
    replacement, in proportion to it.

    `acts`: the share of the recorded answers that are kept. A-LoL, arXiv 2305.14718, and the
    authors' code (github.com/abaheti95/LoL-RL)."""

    provides = ("signals.reference_value",)
    fulfils = (Requirement.REFERENCE_VALUE, Requirement.LOGGED_ANSWERS)
    changes_sampling = True

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        self.rows: list[dict[str, Any]] = []  # those with a positive advantage
        self.values: list[float] = []  # of their prompts
        self.advantages: list[float] = []
        self.recorded = 0

    @classmethod
    def check(cls, objective: Recipe, config: Any) -> None:
        require_one_domain(objective, config)

    def roll_out(self, problems: Sequence[Problem]) -> Rollouts:
        agent, round_ = self.agent, Assembled(self.agent)
        if not self.recorded:
            self.record()
        count = len(problems) * agent.config.group
        for i in self.draw(count):
            known = Conversation.from_plain(self.rows[i])
            round_.add([known], [{"aided": 1.0, "reference_value": self.values[i]}])
        self.acts = len(self.rows) / self.recorded
        return round_.rollouts("reference_value")

    def draw(self, count: int) -> list[int]:
        """Numbers of kept answers, with replacement, in proportion to their advantages."""
        weights = torch.tensor(self.advantages, dtype=torch.float64, device=self.agent.device)
        chosen = torch.multinomial(weights, count, True, generator=self.agent.generator)
        numbers: list[int] = chosen.tolist()
        return numbers

    def record(self) -> None:
        """Have the answers, and choose. Raises `ConfigError` where none is better than its prompt's
        value."""
        agent, size = self.agent, self.agent.config.logged
        others = max(HELD_BACK, size // 4)
        problems = [agent.problem(n) for n in range(size + others)]
        groups = self.groups(problems)
        with torch.enable_grad():
            value = self.fit(problems[size:], groups[size:])
        prices = self.priced(value, problems[:size])
        for rows, price in zip(groups[:size], prices, strict=True):
            self.recorded += len(rows)
            for row in rows:
                if earned(row) > price:
                    self.rows.append(row.plain())
                    self.values.append(price)
                    self.advantages.append(earned(row) - price)
        if not self.rows:
            raise ConfigError(
                f"logged is {size}: none of {self.recorded} recorded answers earns more than its "
                "prompt's value; give more problems, or a policy that solves some"
            )

    def groups(self, problems: Sequence[Problem]) -> list[list[Conversation]]:
        """The policy's answers, as many problems at once as go through the model together."""
        config, groups = self.agent.config, list[list[Conversation]]()
        at_once = max(1, config.rows_at_once // config.group)
        for i in range(0, len(problems), at_once):
            groups += own_groups(self.agent, problems[i : i + at_once])
        return groups

    @torch.no_grad()
    def features(self, problems: Sequence[Problem]) -> tuple[Tensor, Tensor]:
        """Of the tokens of prompts, [N, L, width], and which are real [N, L]."""
        codec, device = self.agent.codec, self.agent.device
        texts = [codec.opening(problem.prompt) for problem in problems]
        tokens = padded(texts, codec.pad, device)
        counts = torch.tensor([len(text) for text in texts], device=device)
        real = torch.arange(tokens.shape[1], device=device) < counts[:, None]
        return self.agent.model.features(tokens), real

    def fit(
        self, problems: Sequence[Problem], groups: Sequence[Sequence[Conversation]]
    ) -> PromptValue:
        """The value, of the epoch that is best on one problem in four."""
        features, real = self.features(problems)
        target = torch.tensor([sum(map(earned, rows)) / len(rows) for rows in groups])
        target = target.to(features)
        checked = torch.arange(len(problems), device=features.device) % HELD_BACK == 0
        value = PromptValue(features.shape[-1]).to(features)
        with torch.no_grad():
            value.value.bias.fill_(target[~checked].mean())
        optimiser = adam(value.parameters(), RATE)
        best, kept = torch.inf, {k: v.clone() for k, v in value.state_dict().items()}
        for _ in range(EPOCHS):
            error = (value(features, real) - target).square()
            checked_error = float(error[checked].detach().mean())
            if checked_error < best:
                best = checked_error
                kept = {k: v.clone() for k, v in value.state_dict().items()}
            descend(optimiser, error[~checked].mean())
        value.load_state_dict(kept)
        return value

    @torch.no_grad()
    def priced(self, value: PromptValue, problems: Sequence[Problem]) -> list[float]:
        at_once, prices = self.agent.config.rows_at_once, list[float]()
        for i in range(0, len(problems), at_once):
            prices += value(*self.features(problems[i : i + at_once])).tolist()
        return prices

    def state_dict(self) -> dict[str, Any]:
        return {
            "rows": list(self.rows),
            "values": list(self.values),
            "advantages": list(self.advantages),
            "recorded": self.recorded,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows, self.values = list(state["rows"]), list(state["values"])
        self.advantages, self.recorded = list(state["advantages"]), state["recorded"]
