"""Histories: rollouts that begin at recorded histories and are stored behind them, as whole
episodes for a learner with memory."""

import math
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Generator, Tensor

from algorithms.evaluation import recurrent_diagnosis
from algorithms.learners.recurrent_actor_critic import RecurrentActorCritic
from algorithms.sources.imagined import RefitConfig, fit_to_logged, refit, refit_due
from algorithms.sources.logged import broken_off
from mbrl.collector import CollectorConfig
from mbrl.config import Count, CountOrZero, NonNegative, Positive, Rate, Settings
from mbrl.errors import ConfigError
from mbrl.sequences import UNKNOWN, SequenceBuffer, Tape
from mbrl.training import Metrics
from mbrl.types import Dataset, Trajectories, Transitions
from world_models import EnsembleDynamics, RolloutConfig, WorldModel, rollout
from world_models.disagreement import data_disagreement

MEASURE = "epistemic_mean"  # U: disagreement that stops a rollout, reward dimension included
SUPPORT = 10  # rows of data that a supported threshold has at or above it


@dataclass(frozen=True)
class HistoryRollouts(Settings):
    """How rollouts from recorded histories are made."""

    parallel: Count = 100  # rollouts a collection; as many as members draws each member once
    zeta: Rate = 1.0  # quantile of the data's disagreements that stops a rollout; 1: their maximum
    # supported: no more than the 10th largest; never: no disagreement stops a rollout.
    rule: Literal["quantile", "supported", "never"] = "quantile"
    cap: Count | None = None  # steps at most; None: to the task's time limit
    member: Literal["per_rollout", "per_step"] = "per_rollout"  # per_step: drawn anew, an ablation
    penalty: NonNegative = 0.0  # c: reward loses c U / (mean U of the data), an ablation
    updates_per_row: Positive = 0.05  # updates a stored transition, prefixes included
    capacity: Count = 40_000_000  # positions of the sequence buffer
    # where imagined episodes end; learned: by a probability learned from the data
    termination: Literal["task", "never", "learned"] = "task"
    diagnose: CountOrZero = 1000  # updates between diagnoses of reach and values; 0: none


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


class Histories:
    """Tapes of recorded histories and what `learner`'s policy did next in `model`.

    `recorded` holds the logged episodes and, online, those of the task; `sequences` histories with
    their rollouts; `levels` [2] the threshold that stops a rollout and the mean disagreement of the
    data.
    """

    def __init__(
        self,
        learner: RecurrentActorCritic,
        model: WorldModel,
        config: HistoryRollouts,
        device: torch.device,
        seed: int,
    ) -> None:
        self.learner, self.config, self.device, self.seed = learner, config, device, seed
        self.spec, self.policy, self.gamma = learner.spec, learner.policy, learner.config.gamma
        self.model: Any = model
        self.collection: CollectorConfig = RefitConfig()
        self.sequences = SequenceBuffer(
            self.spec, config.capacity, self.gamma, device, penalised=config.penalty > 0
        )
        self.recorded: SequenceBuffer | None = None
        self.logged = 0
        self.online = False  # whether `recorded` holds episodes of the task
        self.open: list[list[Transitions]] = []  # the rows of each copy's unfinished episode
        self.levels: Tensor | None = None
        self.due = 0  # updates until the next collection

    @property
    def learned(self) -> EnsembleDynamics | None:
        return self.model if isinstance(self.model, EnsembleDynamics) else None

    def prepare(self, dataset: Dataset, on_progress: Callable[[Metrics], None]) -> None:
        """Store the data as episodes, fit the world model (continuing an unfinished fit), and take
        the threshold from the data's disagreements. Raises `ConfigError` where neither the task nor
        the settings limit a rollout."""
        episodes = dataset.transitions.episodes()
        longest = max(end - begin for begin, end in episodes)
        self._require_limit(longest)
        data = dataset.transitions.to(self.device)
        if self.recorded is None:
            self._warn_of_tape(longest)
            self.recorded = self._empty(len(data) + len(episodes))
            for begin, end in episodes:
                self._record(self.recorded, data.select(slice(begin, end)))
            self.logged = len(data)
        if self.learned is not None:
            fit_to_logged(self.learned, dataset, on_progress)
        if self.levels is None:
            self.set_levels(data)

    def _warn_of_tape(self, longest: int) -> None:
        tape = self.learner.config.tape
        if longest >= tape:
            warnings.warn(
                f"learner.tape is {tape} and the longest episode has {longest} steps; nothing is "
                f"learned from later steps, imagined ones among them: --learner.tape {longest + 1}",
                stacklevel=3,
            )

    def _require_limit(self, longest: int | None = None) -> None:
        if self.spec.max_episode_steps is None and self.config.cap is None:
            known = f": --rollouts.cap {longest} (the longest logged episode)" if longest else ""
            raise ConfigError(
                f"task {self.spec.task!r} has no episode limit and rollouts.cap is None; give one"
                f"{known}"
            )

    def _empty(self, capacity: int) -> SequenceBuffer:
        return SequenceBuffer(self.spec, capacity, self.gamma, self.device)

    def _record(self, buffer: SequenceBuffer, episode: Transitions) -> None:
        buffer.append(
            torch.cat([episode.obs, episode.next_obs[-1:]]),
            self.policy.scale.to_unit(episode.action).clamp(-1, 1),
            episode.reward,
            episode.terminated,
            torch.ones(len(episode), dtype=torch.bool),
            end_known=episode.next_known is None or bool(episode.next_known[-1]),
        )

    def set_levels(self, data: Transitions) -> None:
        """The threshold and the mean disagreement from those of `data`."""
        levels = data_disagreement(self.model, data, MEASURE)
        threshold = threshold_of(levels, self.config.zeta, self.config.rule)
        self.levels = torch.stack([threshold, levels.double().mean()]).float()

    # Experience.

    def observe(self, data: Transitions, step: int) -> None:
        """Add a row to each copy's episode; whole episodes join the recorded ones. The model is
        refitted to them when due, and the threshold with it."""
        if not self.online:
            self.begin_experience()
        data = data.to(self.device)
        self._cut(data)
        self.open = self.open or [[] for _ in range(len(data))]
        for copy, rows in enumerate(self.open):
            rows.append(data.select(slice(copy, copy + 1)))
            if bool(rows[-1].ends):
                assert self.recorded is not None
                self._record(self.recorded, joined_rows(rows))
                rows.clear()
        c = self.collection
        assert self.recorded is not None and isinstance(c, RefitConfig)
        if self.recorded.size == 0 or not refit_due(
            self.learned, c, self.recorded.size, self.logged, step
        ):
            return
        known = self.recorded_rows()
        if self.learned is not None:
            refit(self.learned, known, c)
        self.set_levels(known)

    def allows(self, collection: CollectorConfig) -> None:
        """Raises `ConfigError` for settings that experience which has begun cannot follow."""
        now = self.collection
        if self.online and collection.capacity != now.capacity:
            raise ConfigError(
                f"collection.capacity is {collection.capacity}, and the agent gathered its "
                f"experience with {now.capacity}; keep that, or begin with an agent that has not "
                "acted"
            )

    def _cut(self, data: Transitions) -> None:
        """Record the unfinished episodes that `data`, a row of each copy, does not go on with:
        another collector began in between."""
        same = len(self.open) == len(data)
        for copy, rows in enumerate(self.open):
            own = data.select(slice(copy, copy + 1))
            if rows and (not same or bool(broken_off(rows[-1], own))):
                assert self.recorded is not None
                self._record(self.recorded, joined_rows(rows))
                rows.clear()
        if not same:
            self.open = []

    def begin_experience(self) -> None:
        """Make room for episodes of the task behind the logged ones."""
        self._require_limit()
        self.online = True
        logged = self.recorded
        room = self.collection.capacity + (0 if logged is None else logged.capacity)
        self.recorded = self._empty(room)
        if logged is not None:
            self.recorded.load_state_dict(logged.state_dict())

    def recorded_rows(self) -> Transitions:
        """The steps of all recorded episodes, in the task's units."""
        assert self.recorded is not None
        s, a = self.spec.obs_dim, self.spec.action_dim
        parts = []
        for start, length in self.recorded.episodes:
            rows = self.recorded.rows[start : start + length]
            steps = rows[:-1]
            terminated = steps[:, s + a + 1] == 0
            truncated = torch.zeros_like(terminated)
            truncated[-1] = ~terminated[-1]
            action = self.policy.scale.to_task(steps[:, s : s + a])
            parts.append(
                Transitions(
                    obs=steps[:, :s],
                    action=action,
                    reward=steps[:, s + a],
                    next_obs=rows[1:, :s],
                    terminated=terminated,
                    truncated=truncated,
                    next_known=rows[1:, s + a + 3] != UNKNOWN,
                )
            )
        return joined_rows(parts)

    # Collection.

    def advance(self, step: int, generator: Generator) -> Metrics:
        """Collect rollouts when due, and diagnose the values when due. Raises `ConfigError` while
        no episode is recorded."""
        if self.recorded is None or self.recorded.size == 0:
            raise ConfigError(
                "there is no finished episode to imagine from; call fit(dataset, steps) first, or "
                "learn with a warm-up of more steps than an episode has"
            )
        metrics = self.collect(generator) if self.due <= 0 else {}
        self.due -= self.collection.updates_per_step if self.online else 1
        if self.config.diagnose > 0 and step % self.config.diagnose == 0:
            metrics |= self.diagnose(step)
        return metrics

    def diagnose(self, step: int) -> Metrics:
        """Reach and values of the current critics, from random draws of their own, so that a
        diagnosed run is the run that it would be without."""
        assert self.recorded is not None
        generator = Generator(self.device).manual_seed(self.seed + 1_000_003 * step)
        measured = recurrent_diagnosis.diagnose(
            self.learner,
            self.model,
            self.recorded,
            self.sequences,
            self.learner.remembered,
            generator,
        )
        return {"value/at": torch.tensor(float(step)), **measured}

    def collect(self, generator: Generator) -> Metrics:
        """Roll the policy out from recorded histories and store each with what was imagined."""
        starts, times, limits = self.histories(self.config.parallel, generator)
        imagined = self.imagine(starts, times, limits, generator)
        lengths = torch.zeros_like(times) if imagined is None else imagined.lengths
        stored = self.store(starts, times, lengths, imagined)
        self.due = max(1, math.ceil(self.config.updates_per_row * stored))
        assert self.levels is not None
        some = lengths[limits > 0].float()
        metrics = {
            "rollout/length_median": some.median() if len(some) else torch.zeros(()),
            "rollout/length_mean": some.mean() if len(some) else torch.zeros(()),
            "rollout/stored": torch.tensor(float(stored)),
        }
        if self.config.rule != "never":
            metrics["rollout/threshold"] = self.levels[0]
        return metrics

    def histories(self, count: int, generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
        """`count` random (episode, time) of the data, ends included: where each episode's rows
        begin, the time in it, and how many steps a rollout from there may take."""
        assert self.recorded is not None
        starts, lengths, times = self.recorded.places(count, generator, ends=True)
        limit = self.spec.max_episode_steps
        cap = self.config.cap
        left = torch.full_like(times, 2**31) if limit is None else limit - times
        if cap is not None:
            left = left.clamp_max(cap)
        s, a = self.spec.obs_dim, self.spec.action_dim
        before = self.recorded.rows[(starts + times - 1).clamp_min(0)]
        ended = (before[:, s + a + 1] == 0) & (times == lengths - 1) & (times > 0)
        return starts, times, torch.where(ended, 0, left.clamp_min(0))

    def imagine(
        self, starts: Tensor, times: Tensor, limits: Tensor, generator: Generator
    ) -> Trajectories | None:
        """Rollouts from the histories; None where none may take a step."""
        assert self.recorded is not None and self.levels is not None
        longest = int(limits.max())
        if longest == 0:
            return None
        c, (threshold, mean) = self.config, self.levels.tolist()
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
            self.model, self.policy, obs, config, generator, memory=memory, limits=limits
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

    def store(
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
            observed = [past[:, s + a]]
            if imagined is not None and length:
                part = slice(0, length)
                obs.append(imagined.next_obs[row, part])
                action.append(self.policy.scale.to_unit(imagined.action[row, part]))
                reward.append(imagined.reward[row, part])
                observed.append(
                    imagined.signals.get("unpenalised_reward", imagined.reward)[row, part]
                )
                ended.append(imagined.terminated[row, part])
            real = torch.arange(known + length, device=self.device) < known
            self.sequences.append(
                torch.cat(obs),
                torch.cat(action),
                torch.cat(reward),
                torch.cat(ended),
                real,
                torch.cat(observed),
            )
            stored += known + length
        return stored

    def sample(self, generator: Generator) -> Tape:
        """A tape of whole episodes."""
        return self.sequences.sample(self.learner.config.tape, generator)

    def state_dict(self) -> dict[str, Any]:
        """Experience, logged episodes included; without experience the dataset is not kept."""
        recorded = self.recorded if self.online else None
        state: dict[str, Any] = {
            "sequences": self.sequences.state_dict(),
            "levels": self.levels,
            "due": self.due,
            "remembered": self.learner.remembered.clone(),
            "recorded": None if recorded is None else recorded.state_dict(),
            "recorded_capacity": None if recorded is None else recorded.capacity,
            "logged": self.logged if self.online else 0,
            "open": [[asdict(row) for row in rows] for rows in self.open],
        }
        if self.learned is not None:
            state["model"] = self.learned.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sequences.load_state_dict(state["sequences"])
        self.levels = None if state["levels"] is None else state["levels"].to(self.device)
        self.due = state["due"]
        known = state.get("remembered", self.learner.remembered)  # not in old checkpoints
        self.learner.remembered.copy_(known)
        if self.learned is not None:
            self.learned.load_state_dict(state["model"])
        if state.get("recorded") is not None:
            self.online, self.logged = True, state["logged"]
            self.recorded = self._empty(state["recorded_capacity"])
            self.recorded.load_state_dict(state["recorded"])
            self.open = [[Transitions(**row).to(self.device) for row in r] for r in state["open"]]


def joined_rows(parts: list[Transitions]) -> Transitions:
    """All rows of `parts`, one after the other."""
    names = ["obs", "action", "reward", "next_obs", "terminated", "truncated"]
    if all(part.next_known is not None for part in parts):
        names.append("next_known")
    return Transitions(**{n: torch.cat([getattr(part, n) for part in parts]) for n in names})
