"""NEUBAY: long-horizon model-based offline reinforcement learning without explicit conservatism
(arXiv 2512.04341). The ensemble is a posterior over tasks: each rollout keeps one member, begins at
a recorded history and runs until the members disagree more than anywhere in the data; no penalty,
and an agent with memory, since the member is hidden from it.

Differences from the authors' code. An update is one of temperature, actor, critics and target, in
that order (there critics and target come first); the temperature's loss has log alpha in it, not
alpha; encoder and head are clipped by their common gradient norm. Where a recorded episode was cut
before the task's time limit, imagination may go on from its end; a rollout that begins where an
episode ended adds nothing to it. The last layers of the critic heads start uniform in +-3e-3; GELU
is exact. The ensemble clamps log-variances softly, not log-deviations; decays weights alone; drops
an epoch's last partial batch; counts a first epoch as better; and holds rows out by its own seed.
"""

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from algorithms.evaluation import diagnosis, recurrent_diagnosis
from algorithms.learners.recurrent_actor_critic import RecurrentActorCritic, RecurrentLearnerConfig
from algorithms.model_based import termination_rule
from algorithms.offline import Offline
from mbrl.errors import ConfigError
from mbrl.sequences import SequenceBuffer, Tape, bytes_at_most
from mbrl.training import Metrics
from mbrl.types import Dataset, Spec, Trajectories
from world_models import EnsembleConfig, EnsembleDynamics, RolloutConfig, WorldModel, rollout

MEASURE = "epistemic_mean"  # U: disagreement that stops a rollout, reward dimension included
BEYOND = 2000  # logged states at which actions are tried before training
CHUNK = 10_000  # rows of data whose disagreement is asked for at a time
SUPPORT = 10  # rows of data that a supported threshold has at or above it


@dataclass(frozen=True)
class HistoryRollouts:
    """How rollouts from recorded histories are made."""

    parallel: int = 100  # rollouts a collection; as many as members draws each member once
    zeta: float = 1.0  # quantile of the data's disagreements that stops a rollout; 1: their maximum
    # supported: no more than the 10th largest; never: no disagreement stops a rollout.
    rule: Literal["quantile", "supported", "never"] = "quantile"
    cap: int | None = None  # steps at most; None: to the task's time limit
    member: Literal["per_rollout", "per_step"] = "per_rollout"  # per_step: drawn anew, an ablation
    penalty: float = 0.0  # c: reward loses c U / (mean U of the data), an ablation
    updates_per_row: float = 0.05  # updates a stored transition, prefixes included
    capacity: int = 40_000_000  # positions of the sequence buffer
    termination: Literal["task", "never"] = "task"  # where imagined episodes end
    diagnose: int = 1000  # updates between diagnoses of reach and values; 0: none

    def __post_init__(self) -> None:
        if not 0 < self.zeta <= 1:
            raise ConfigError(f"zeta is {self.zeta}, it must lie in (0, 1]")
        for name in ("parallel", "capacity"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, it must be at least 1")
        if self.cap is not None and self.cap < 1:
            raise ConfigError(f"cap is {self.cap}, it must be at least 1, or None")
        if self.diagnose < 0:
            raise ConfigError(f"diagnose is {self.diagnose}, it must be 0 (never) or more")
        if self.penalty < 0 or self.updates_per_row <= 0:
            raise ConfigError(
                f"penalty is {self.penalty} (0 or more), updates_per_row {self.updates_per_row} "
                "(above 0)"
            )


@dataclass(frozen=True)
class NEUBAYConfig:
    """Settings of NEUBAY; the defaults are those of its code for locomotion."""

    learner: RecurrentLearnerConfig = field(default_factory=RecurrentLearnerConfig)
    model: EnsembleConfig = field(
        default_factory=lambda: EnsembleConfig(
            members=128,
            elites=100,
            activation="leaky_relu",
            layer_norm=True,
            init="torch",
            target="standardised",
            input_clip=None,
            log_variance_bounds="fixed",
            log_variance_min=-10.0,  # deviations from exp(-5)
            log_variance_max=0.5,  # to exp(0.25)
            bootstrap="none",
            holdout_max=1000,
            weight_decay=(5e-5,),
            decoupled_decay=True,
            min_epochs=1,
            max_epochs=1200,
        )
    )
    rollouts: HistoryRollouts = field(default_factory=HistoryRollouts)

    @property
    def gamma(self) -> float:
        return self.learner.gamma


def threshold_of(levels: Tensor, zeta: float, rule: str) -> Tensor:
    """The disagreement that stops a rollout, from those of the data [N]: their zeta-quantile (the
    smallest value that a share zeta does not exceed); `supported` also asks that `SUPPORT` rows
    reach it, so that no single row decides; `never` is infinity."""
    if rule == "never":
        return torch.tensor(math.inf, dtype=torch.double, device=levels.device)
    ordered = levels.double().sort().values
    last = min(len(ordered), max(1, math.ceil(zeta * len(ordered)))) - 1
    if rule == "supported":
        last = min(last, max(0, len(ordered) - SUPPORT))
    return ordered[last]


class NEUBAY(Offline):
    """A recurrent agent on long rollouts, each in one member of a posterior over tasks."""

    version = 3

    def __init__(
        self,
        spec: Spec,
        config: NEUBAYConfig | None = None,
        *,
        model: WorldModel | None = None,
        device: str = "cpu",
        seed: int = 0,
    ) -> None:
        self.config: NEUBAYConfig
        config = config or NEUBAYConfig()
        initial = self.setup(spec, config, device, seed)
        self.learner = RecurrentActorCritic(spec, config.learner, self.device, initial)
        self.modules, self.optimisers = self.learner.modules, self.learner.optimisers
        self.policy = self.learner.policy
        if model is None:
            rule = termination_rule(spec, config.rollouts.termination, "rollouts.termination")
            model = EnsembleDynamics(
                spec, config.model, termination=rule, device=self.device, seed=seed
            )
        self.model = model
        rollouts = config.rollouts
        self.sequences = SequenceBuffer(
            spec, rollouts.capacity, config.gamma, self.device, penalised=rollouts.penalty > 0
        )
        self.recorded: SequenceBuffer | None = None  # the data, episode by episode
        self.levels: Tensor | None = None  # [2]: threshold, mean disagreement of the data
        self.due = 0  # updates until the next collection
        self.collected: Metrics = {}  # waits for the update that reports it
        self.remembered = torch.zeros(2, device=self.device)  # of temperatures, in the values

    @property
    def learned(self) -> EnsembleDynamics | None:
        return self.model if isinstance(self.model, EnsembleDynamics) else None

    def prepare(self, dataset: Dataset, on_progress: Callable[[Metrics], None]) -> None:
        """Store the data as episodes, fit the world model (continuing an unfinished fit), and take
        the threshold from the data's disagreements."""
        if self.recorded is None:
            self.recorded = self._episodes(dataset)
        if self.learned is not None and not self.learned.fitted:
            self.learned.fit(dataset.transitions, on_progress)
        if self.levels is None:
            data, c = dataset.transitions.to(self.device), self.config.rollouts
            levels = torch.cat(
                [
                    self.model.disagreement(obs, action, MEASURE)
                    for obs, action in zip(
                        data.obs.split(CHUNK), data.action.split(CHUNK), strict=True
                    )
                ]
            )
            threshold = threshold_of(levels, c.zeta, c.rule)
            self.levels = torch.stack([threshold, levels.double().mean()]).float()

    def _episodes(self, dataset: Dataset) -> SequenceBuffer:
        data, episodes = dataset.transitions.to(self.device), dataset.transitions.episodes()
        if self.spec.max_episode_steps is None and self.config.rollouts.cap is None:
            raise ConfigError(
                f"task {self.spec.task!r} has no episode limit and rollouts.cap is None; give one"
            )
        recorded = SequenceBuffer(
            self.spec, len(data) + len(episodes), self.config.gamma, self.device
        )
        for begin, end in episodes:
            rows = slice(begin, end)
            recorded.append(
                torch.cat([data.obs[rows], data.next_obs[end - 1 : end]]),
                self.policy.scale.to_unit(data.action[rows]).clamp(-1, 1),
                data.reward[rows],
                data.terminated[rows],
                torch.ones(end - begin, dtype=torch.bool),
            )
        return recorded

    def next_batch(self) -> Tape:  # type: ignore[override]
        """Collect rollouts when due, then a tape with its random draws."""
        if self.due <= 0:
            self.collect()
        self.due -= 1
        if self.config.rollouts.diagnose > 0 and self.step % self.config.rollouts.diagnose == 0:
            self.collected |= self.diagnose()
        tape = self.sequences.sample(self.config.learner.tape, self.generator)
        return self.learner.draw(tape, self.generator)

    def update(self, batch: Tape) -> Metrics:  # type: ignore[override]
        self.learner.set_rates(self.step)
        found, self.collected = self.collected, {}
        metrics = self.learner.update(batch)
        self.remembered = diagnosis.remembered(self.remembered, metrics, self.learner)
        return metrics | found

    def diagnose(self) -> Metrics:
        """Reach and values of the current critics, from random draws of their own, so that a
        diagnosed run is the run that it would be without."""
        assert self.recorded is not None
        generator = torch.Generator(self.device).manual_seed(self.seed + 1_000_003 * self.step)
        found = recurrent_diagnosis.diagnose(
            self.learner, self.model, self.recorded, self.sequences, self.remembered, generator
        )
        return {"value/at": torch.tensor(float(self.step)), **found}

    # Collection.

    def collect(self) -> None:
        """Roll the policy out from recorded histories and store each with what was imagined."""
        starts, times, limits = self._histories(self.config.rollouts.parallel)
        imagined = self._imagine(starts, times, limits)
        lengths = torch.zeros_like(times) if imagined is None else imagined.lengths
        stored = self._store(starts, times, lengths, imagined)
        self.due = max(1, math.ceil(self.config.rollouts.updates_per_row * stored))
        assert self.levels is not None
        some = lengths[limits > 0].float()
        self.collected = {
            "rollout/length_median": some.median() if len(some) else torch.zeros(()),
            "rollout/length_mean": some.mean() if len(some) else torch.zeros(()),
            "rollout/stored": torch.tensor(float(stored)),
        }
        if self.config.rollouts.rule != "never":
            self.collected["rollout/threshold"] = self.levels[0]

    def _histories(self, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """`count` random (episode, time) of the data, ends included: where each episode's rows
        begin, the time in it, and how many steps a rollout from there may take."""
        assert self.recorded is not None
        starts, lengths, times = self.recorded.places(count, self.generator, ends=True)
        limit = self.spec.max_episode_steps
        cap = self.config.rollouts.cap
        left = torch.full_like(times, 2**31) if limit is None else limit - times
        if cap is not None:
            left = left.clamp_max(cap)
        s, a = self.spec.obs_dim, self.spec.action_dim
        before = self.recorded.rows[(starts + times - 1).clamp_min(0)]
        ended = (before[:, s + a + 1] == 0) & (times == lengths - 1) & (times > 0)
        return starts, times, torch.where(ended, 0, left.clamp_min(0))

    def _imagine(self, starts: Tensor, times: Tensor, limits: Tensor) -> Trajectories | None:
        """Rollouts from the histories; None where none may take a step."""
        assert self.recorded is not None and self.levels is not None
        longest = int(limits.max())
        if longest == 0:
            return None
        c, (threshold, mean) = self.config.rollouts, self.levels.tolist()
        config = RolloutConfig(
            horizon=longest,
            member=c.member,
            penalty=MEASURE if c.penalty > 0 else None,
            penalty_weight=c.penalty / max(mean, 1e-12),
            stop=None if c.rule == "never" else MEASURE,
            stop_above=None if c.rule == "never" else threshold,
        )
        obs = self.recorded.rows[starts + times, : self.spec.obs_dim]
        memory = self.carried(starts, times)
        return rollout(
            self.model, self.policy, obs, config, self.generator, memory=memory, limits=limits
        )

    @torch.no_grad()
    def carried(self, starts: Tensor, times: Tensor) -> Tensor:
        """What the policy carries [B, M] into time `times` of the episodes that begin at rows
        `starts`: its encoder is run over all their earlier positions, as one tape."""
        assert self.recorded is not None
        carried = torch.zeros(len(times), self.policy.carried_size, device=self.device)
        some = torch.nonzero(times > 0).flatten()
        if not len(some):
            return carried
        tape, last = self.recorded.beginnings(starts[some], times[some])
        memory = self.policy.encoder.memory(tape.x, tape.first)[last]
        carried[some] = self.policy.carried(memory, tape.action[last], tape.reward[last])
        return carried

    def _store(
        self, starts: Tensor, times: Tensor, lengths: Tensor, imagined: Trajectories | None
    ) -> int:
        """Put every history with its continuation into the sequence buffer; the number of
        transitions stored."""
        assert self.recorded is not None
        s, a = self.spec.obs_dim, self.spec.action_dim
        stored = 0
        for row, (start, known, length) in enumerate(
            zip(starts.tolist(), times.tolist(), lengths.tolist(), strict=True)
        ):
            if known + length == 0:
                continue
            past = self.recorded.rows[start : start + known]
            now = self.recorded.rows[start + known : start + known + 1, :s]
            obs, action = [past[:, :s], now], [past[:, s : s + a]]
            reward, ended = [past[:, s + a]], [past[:, s + a + 1] == 0]
            heard = [past[:, s + a]]
            if imagined is not None and length:
                part = slice(0, length)
                obs.append(imagined.next_obs[row, part])
                action.append(self.policy.scale.to_unit(imagined.action[row, part]))
                reward.append(imagined.reward[row, part])
                heard.append(imagined.signals.get("heard", imagined.reward)[row, part])
                ended.append(imagined.terminated[row, part])
            real = torch.arange(known + length, device=self.device) < known
            self.sequences.append(
                torch.cat(obs),
                torch.cat(action),
                torch.cat(reward),
                torch.cat(ended),
                real,
                torch.cat(heard),
            )
            stored += known + length
        return stored

    def forecast(self, steps: int) -> list[str]:
        """What is known before `steps` updates: the threshold, how many actions at logged states
        pass it, how far the untrained policy's rollouts go, memory, and time from one collection
        and one update, neither of which is kept."""
        assert self.levels is not None and self.recorded is not None
        kept, self.generator = self.generator, torch.Generator(self.device).manual_seed(self.seed)
        began = time.perf_counter()
        _, times, limits = histories = self._histories(self.config.rollouts.parallel)
        imagined = self._imagine(*histories)
        collection = time.perf_counter() - began
        learner = copy.deepcopy(self.learner)
        tape = self.recorded.sample(self.config.learner.tape, self.generator)
        tape = learner.draw(tape, self.generator)
        learner.update(tape)["critic/loss"].item()  # a device that works on its own has to finish
        began = time.perf_counter()
        learner.update(tape)["critic/loss"].item()
        update = time.perf_counter() - began
        others, uniform = self._beyond()
        self.generator = kept
        lengths = torch.zeros_like(times) if imagined is None else imagined.lengths
        c = self.config.rollouts
        stored = max(1, int((times + lengths).sum()))
        collections = max(1, round(steps / max(1, math.ceil(c.updates_per_row * stored))))
        hours = (steps * update + collections * collection) / 3600
        memory = bytes_at_most(self.spec, c.capacity, c.penalty > 0) / 2**30
        quarter, half, most = _quartiles(lengths[limits > 0])
        stop = f"above a disagreement of {float(self.levels[0]):.4g} (zeta {c.zeta}, {c.rule}"
        if c.rule == "never":
            stop = "at no disagreement (never"
        return [
            f"rollouts stop {stop}; mean of the data {float(self.levels[1]):.4g})",
            f"at logged states it is above that for {others:.1%} of the actions of other rows and "
            f"{uniform:.1%} of uniform ones",
            f"the untrained policy's rollouts are {half:.0f} steps long (median; quartiles "
            f"{quarter:.0f} and {most:.0f}) of {_quartiles(limits[limits > 0])[1]:.0f} possible",
            f"{steps} updates at {1000 * update:.0f} ms and about {collections} collections at "
            f"{collection:.1f} s take about {hours:.2g} h here; the sequence buffer takes at most "
            f"{memory:.2f} GiB",
        ]

    def _beyond(self) -> list[float]:
        """Shares of actions that pass the threshold at logged states: actions logged at other
        states, and uniform ones."""
        assert self.levels is not None and self.recorded is not None
        starts, _, times = self.recorded.places(BEYOND, self.generator, ends=False)
        s, a = self.spec.obs_dim, self.spec.action_dim
        obs, logged = self.recorded.rows[starts + times, : s + a].split([s, a], -1)
        order = torch.randperm(len(obs), generator=self.generator, device=self.device)
        uniform = torch.rand(logged.shape, generator=self.generator, device=self.device) * 2 - 1
        shares = []
        for unit in (logged[order], uniform):
            level = self.model.disagreement(obs, self.policy.scale.to_task(unit), MEASURE)
            shares.append(float((level > self.levels[0]).float().mean()))
        return shares

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict() | {
            "sequences": self.sequences.state_dict(),
            "levels": self.levels,
            "due": self.due,
            "remembered": self.remembered,
        }
        if self.learned is not None:
            state["model"] = self.learned.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.sequences.load_state_dict(state["sequences"])
        self.levels = None if state["levels"] is None else state["levels"].to(self.device)
        self.due = state["due"]
        known = state.get("remembered", self.remembered)  # not in old checkpoints
        self.remembered = known.to(self.device)
        if self.learned is not None:
            self.learned.load_state_dict(state["model"])


def _quartiles(lengths: Tensor) -> list[float]:
    if not len(lengths):
        return [0.0, 0.0, 0.0]
    shares = torch.tensor([0.25, 0.5, 0.75], dtype=torch.double, device=lengths.device)
    found: list[float] = lengths.double().quantile(shares).tolist()
    return found
