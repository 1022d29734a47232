"""A value model of prompts for any policy, from what the policy scores on other prompts: pretrained
on the results of many policies, which are made on the way."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from algorithms.language.imitation import Imitation, ImitationConfig
from algorithms.language.learner import LanguageLearnerConfig, ModelConfig, build_model
from algorithms.language.models.protocol import LanguageModel
from algorithms.language.models.vocabulary import Codec
from algorithms.language.sampling.conversation import padded
from algorithms.language.sampling.rollouts import roll_out
from algorithms.language.sampling.tokens import Sampling
from algorithms.language.tasks import text_task
from algorithms.language.tasks.base import Problem
from mbrl import checkpoint
from mbrl import config as configs
from mbrl.config import Count, CountOrZero, Positive, Settings
from mbrl.errors import CheckpointError, ConfigError
from mbrl.policy_gradient.schedulers.values import InContextValue, fit_value

BINS = 10  # of predictions, for calibration
TRIES = 8  # contexts over which the measures are means


@dataclass(frozen=True)
class ValueConfig(Settings):
    """What a value model is pretrained on. Policies are snapshots of `runs` warm starts, of which
    the first is shown all levels and the others a random part of them each; those of the last run
    are kept back, as is a quarter of the prompts."""

    task: str = "addition"
    levels: tuple[CountOrZero, ...] = ()  # none: the task's own
    model: ModelConfig = field(default_factory=ModelConfig)
    runs: Count = 5
    snapshots: Count = 6  # of each run
    every: Count = 60  # updates from one to the next
    rows: Count = 64  # demonstrations in an update
    prompts: Count = 200  # that every policy answers
    samples: Count = 8  # answers to each
    context: Count = 64  # prompts whose scores are shown
    steps: Count = 2000  # of the fit
    rate: Positive = 3e-3  # of the fit
    seed: CountOrZero = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.runs < 2 or self.context >= self.prompts * 3 // 4:
            raise ConfigError(
                f"runs is {self.runs} and context {self.context} of {self.prompts} prompts; give 2 "
                "runs or more, and a context below three quarters of the prompts"
            )
        LanguageLearnerConfig(task=self.task, levels=self.levels)


class PolicyValue:
    """`value` on embeddings of prompts: the mean feature of their tokens under the frozen `model`,
    less `centre` and over `scale` [width]. `measures` are those of `pretrained`."""

    def __init__(
        self,
        config: ValueConfig,
        model: LanguageModel,
        codec: Codec,
        value: InContextValue,
        centre: Tensor,
        scale: Tensor,
        measures: dict[str, float],
    ) -> None:
        self.config, self.model, self.codec = config, model, codec
        self.value, self.centre, self.scale, self.measures = value, centre, scale, measures

    def features(self, problems: Sequence[Problem]) -> Tensor:
        """[N, width]"""
        return (embedded(self.model, self.codec, problems) - self.centre) / self.scale

    def save(self, path: Path) -> None:
        """Raises `CheckpointError` where the disk does not take it."""
        content = {
            "config": configs.to_dict(self.config),
            "model": self.model.state_dict(),
            "value": self.value.state_dict(),
            "centre": self.centre,
            "scale": self.scale,
            "measures": self.measures,
        }
        checkpoint.save(path, {"kind": "language value", "content": content})

    @classmethod
    def load(cls, path: str | Path) -> "PolicyValue":
        """Raises `CheckpointError` where `path` is no such file."""
        if not Path(path).is_file():
            raise CheckpointError(
                f"value is {path}, which is no file; make one by `python -m experiments language "
                "fit-value --task TASK --out FILE`"
            )
        known = checkpoint.load(path)
        if known.get("kind") != "language value":
            raise CheckpointError(f"{path} is no file of `language fit-value`; give one")
        content = known["content"]
        config = configs.from_dict(ValueConfig, content["config"])
        device = torch.device("cpu")
        model, codec = build_model(config.model, torch.Generator().manual_seed(0), device)
        model.load_state_dict(content["model"])
        centre, scale = content["centre"], content["scale"]
        value = InContextValue(len(centre))
        value.load_state_dict(content["value"])
        return cls(config, model, codec, value, centre, scale, content["measures"])


@torch.no_grad()
def embedded(model: LanguageModel, codec: Codec, problems: Sequence[Problem]) -> Tensor:
    """[N, width]: the mean feature of the tokens of each prompt."""
    pieces = []
    for i in range(0, len(problems), 256):
        texts = [codec.opening(problem.prompt) for problem in problems[i : i + 256]]
        tokens = padded(texts, codec.pad, "cpu")
        counts = torch.tensor([len(text) for text in texts])
        real = (torch.arange(tokens.shape[1]) < counts[:, None])[..., None]
        features = model.features(tokens)
        pieces.append(torch.where(real, features, 0.0).sum(1) / counts[:, None])
    return torch.cat(pieces)


def policies(config: ValueConfig) -> Iterator[tuple[int, Imitation]]:
    """The policies, each with the number of its run; one learner a run, which goes on learning when
    the next one is asked for."""
    levels = config.levels or text_task(config.task).trained
    for run in range(config.runs):
        rng = random.Random(f"value {config.seed} {run}")
        part = tuple(x for x in levels if rng.random() < 0.5) if run else levels
        settings = ImitationConfig(
            task=config.task, levels=part or levels[:1], model=config.model, rows=config.rows
        )
        learner = Imitation(None, settings, seed=config.seed + run)
        for _ in range(config.snapshots):
            for _ in range(config.every):
                learner.update(learner.next_batch())
            yield run, learner


def scores(config: ValueConfig, learner: Any, problems: Sequence[Problem], seed: int) -> Tensor:
    """[N]: the success rate of a policy at each problem."""
    generator, rates = torch.Generator().manual_seed(seed), list[Tensor]()
    at_once = max(1, 512 // config.samples)
    for i in range(0, len(problems), at_once):
        rollouts = roll_out(
            learner.model,
            learner.codec,
            learner.task,
            problems[i : i + at_once],
            Sampling(),
            generator,
            group=config.samples,
        )
        rates.append(rollouts.success.float().view(-1, config.samples).mean(1))
    return torch.cat(rates)


def pretrained(config: ValueConfig) -> PolicyValue:
    """Make the policies, ask each of them every prompt, and fit the value on three quarters of the
    prompts and all runs but the last."""
    task = text_task(config.task)
    levels = config.levels or task.trained
    rng = random.Random(f"value prompts {config.seed}")
    problems = [
        task.problem(rng.choice(levels), rng, held_out=False) for _ in range(config.prompts)
    ]
    rates, runs, teacher = list[Tensor](), list[int](), None
    for number, (run, learner) in enumerate(policies(config)):
        rates.append(scores(config, learner, problems, config.seed + number))
        runs.append(run)
        if run == 0:
            teacher = {k: v.clone() for k, v in learner.model.state_dict().items()}
    assert teacher is not None
    model, codec = build_model(config.model, torch.Generator().manual_seed(0), torch.device("cpu"))
    model.load_state_dict(teacher)
    features = embedded(model, codec, problems)
    centre, scale = features.mean(0), features.std(0).clamp_min(1e-6)
    features, table = (features - centre) / scale, torch.stack(rates)
    seen = config.prompts * 3 // 4
    own = torch.tensor([run < config.runs - 1 for run in runs])
    generator = torch.Generator().manual_seed(config.seed)
    value = InContextValue(features.shape[1], generator=generator)
    fit_value(
        value, features[:seen], table[own][:, :seen], generator,
        steps=config.steps, context=config.context, lr=config.rate,
    )  # fmt: skip
    numbers: dict[str, int] = {}
    same = torch.tensor([numbers.setdefault(p.prompt, len(numbers)) for p in problems])
    measures = measured(value, features, table, own, seen, same, config)
    return PolicyValue(config, model, codec, value, centre, scale, measures)


@torch.no_grad()
def measured(
    value: InContextValue,
    features: Tensor,
    table: Tensor,
    own: Tensor,
    seen: int,
    same: Tensor,
    config: ValueConfig,
) -> dict[str, float]:
    """On policies that were kept back, of prompts that were, too, after `context` scores on others:
    mean squared error of the value (`brier`), of the context's mean (`constant`) and, on prompts
    that were not kept back, of the value (`brier_seen`) and of the mean over the policies that were
    learned from (`by_prompt`); how far bins of predictions are from their outcomes (`calibration`);
    rank correlation over prompts; and the error with a quarter of the context (`brier_less`).
    Prompts with one number in `same` [N] are one that was drawn more than once: it is in none of
    these where it was learned from, or is in the context. NaN where none is left."""
    generator = torch.Generator().manual_seed(config.seed + 1)
    sums: dict[str, list[float]] = {}
    guesses, truths = list[Tensor](), list[Tensor]()
    for truth in table[~own]:
        for _ in range(TRIES):
            mixed = torch.randperm(seen, generator=generator)
            shown, rest = mixed[: config.context], mixed[config.context :]
            rest = rest[~torch.isin(same[rest], same[shown])]
            new = seen + (~torch.isin(same[seen:], same[:seen])).nonzero().flatten()

            def guess(known: Tensor, asked: Tensor, truth: Tensor = truth) -> Tensor:
                answer: Tensor = value(features[known], truth[known], features[asked])
                return answer

            guesses.append(guess(shown, new))
            truths.append(truth[new])
            values = {
                "brier": (guesses[-1] - truth[new]).square(),
                "brier_less": (guess(shown[: len(shown) // 4], new) - truth[new]).square(),
                "constant": (truth[shown].mean() - truth[new]).square(),
                "brier_seen": (guess(shown, rest) - truth[rest]).square(),
                "by_prompt": (table[own][:, rest].mean(0) - truth[rest]).square(),
            }
            for name, errors in values.items():
                sums.setdefault(name, []).append(float(errors.mean()))
            if len(new) > 1 and truth[new].std() > 0 and guesses[-1].std() > 0:
                sums.setdefault("ranks", []).append(ranks(guesses[-1], truth[new]))
    means = {name: float(np.mean(own)) for name, own in sums.items()}
    return means | {"calibration": calibration(torch.cat(guesses), torch.cat(truths))}


def ranks(a: Tensor, b: Tensor) -> float:
    """Spearman's correlation."""
    from scipy.stats import spearmanr  # here, as it takes long to import

    return float(spearmanr(a.numpy(), b.numpy()).statistic)


def calibration(guess: Tensor, truth: Tensor) -> float:
    """The mean over predictions of how far the mean of their bin is from that of its outcomes; NaN
    without one."""
    bins, total = (guess * BINS).long().clamp_max(BINS - 1), 0.0
    for k in bins.unique().tolist():
        inside = bins == k
        total += float((guess[inside].mean() - truth[inside].mean()).abs() * inside.sum())
    return total / len(guess) if len(guess) else float("nan")
