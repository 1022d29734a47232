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
The zeta-quantile is a value of the data's, theirs lies between two of them (the same at zeta 1).
"""

import copy
import math
import time
from dataclasses import dataclass, field

import torch
from torch import Generator, Tensor

from algorithms.learners.recurrent_actor_critic import RecurrentActorCritic, RecurrentLearnerConfig
from algorithms.sources.histories import MEASURE, Histories, HistoryRollouts
from algorithms.sources.imagined import termination_rule
from mbrl.agent import Agent
from mbrl.config import Settings
from mbrl.sequences import Tape, bytes_at_most
from world_models import EnsembleConfig, EnsembleDynamics, WorldModel

BEYOND = 2000  # logged states at which actions are tried before training


@dataclass(frozen=True)
class NEUBAYConfig(Settings):
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


class NEUBAY(Agent[Tape]):
    """A recurrent agent on long rollouts, each in one member of a posterior over tasks. `model`
    replaces the learned ensemble.

    Formula:

        rollouts     begin at a logged history, keep one member, end where U(s, a) is above the
                     zeta-quantile of the data's
        critics      y_t = r_t + gamma (min of 2 random Q'_n(h', a') - alpha log pi(a'|h'))
                     h' = h_(t+1), a' ~ pi(h')
                     L = mean over n of Huber(Q_n(h_t, a_t) - y_t)
        policy       L = alpha log pi(a|h_t) - mean_n Q_n(h_t, a), a ~ pi(h_t)
        weights      kappa on the mean over logged steps, 1 - kappa on that over imagined ones

    When not to use it: where time is short: in the table bayesian (from before its updates were
    compiled) a run takes 275 s beside 34 to 69 of MOPO, RAVL and EDAC, and its model 125 s more.
    There it leads over all datasets; on Hopper it does not learn in that budget.
    """

    version = 3
    config: NEUBAYConfig
    learner: RecurrentActorCritic
    source: Histories

    def build(
        self, generator: Generator, model: WorldModel | None = None
    ) -> tuple[RecurrentActorCritic, Histories]:
        c, device = self.config, self.device
        learner = RecurrentActorCritic(self.spec, c.learner, device, generator)
        if model is None:
            rule = termination_rule(self.spec, c.rollouts.termination, "rollouts.termination")
            model = EnsembleDynamics(
                self.spec, c.model, termination=rule, device=device, seed=self.seed
            )
        return learner, Histories(learner, model, c.rollouts, device, self.seed)

    def forecast(self, steps: int) -> list[str]:
        """What is known before `steps` updates: the threshold, how many actions at logged states
        pass it, how far the untrained policy's rollouts go, memory, and time from one collection
        and one update, neither of which is kept."""
        source = self.source
        assert source.levels is not None and source.recorded is not None
        generator = Generator(self.device).manual_seed(self.seed)
        began = time.perf_counter()
        _, times, limits = histories = source.histories(self.config.rollouts.parallel, generator)
        imagined = source.imagine(*histories, generator)
        collection = time.perf_counter() - began
        learner = copy.deepcopy(self.learner)
        tape = source.recorded.sample(self.config.learner.tape, generator)
        tape = learner.draw(tape, generator)
        learner.update(tape, self.updates)[
            "critic/loss"
        ].item()  # a device that works on its own has to finish
        began = time.perf_counter()
        learner.update(tape, self.updates)["critic/loss"].item()
        update = time.perf_counter() - began
        others, uniform = self._beyond(generator)
        lengths = torch.zeros_like(times) if imagined is None else imagined.lengths
        c = self.config.rollouts
        stored = max(1, int((times + lengths).sum()))
        collections = max(1, round(steps / max(1, math.ceil(c.updates_per_row * stored))))
        hours = (steps * update + collections * collection) / 3600
        memory = bytes_at_most(self.spec, c.capacity, c.penalty > 0) / 2**30
        quarter, half, most = _quartiles(lengths[limits > 0])
        stop = f"above a disagreement of {float(source.levels[0]):.4g} (zeta {c.zeta}, {c.rule}"
        if c.rule == "never":
            stop = "at no disagreement (never"
        return [
            f"rollouts stop {stop}; mean of the data {float(source.levels[1]):.4g})",
            f"at logged states it is above that for {others:.1%} of the actions of other rows and "
            f"{uniform:.1%} of uniform ones",
            f"the untrained policy's rollouts are {half:.0f} steps long (median; quartiles "
            f"{quarter:.0f} and {most:.0f}) of {_quartiles(limits[limits > 0])[1]:.0f} possible",
            f"{steps} updates at {1000 * update:.0f} ms and about {collections} collections at "
            f"{collection:.1f} s take about {hours:.2g} h here; the sequence buffer takes at most "
            f"{memory:.2f} GiB",
        ]

    def _beyond(self, generator: Generator) -> list[float]:
        """Shares of actions that pass the threshold at logged states: actions logged at other
        states, and uniform ones."""
        source = self.source
        assert source.levels is not None and source.recorded is not None
        starts, _, times = source.recorded.places(BEYOND, generator, ends=False)
        s, a = self.spec.obs_dim, self.spec.action_dim
        obs, logged = source.recorded.rows[starts + times, : s + a].split([s, a], -1)
        order = torch.randperm(len(obs), generator=generator, device=self.device)
        uniform = torch.rand(logged.shape, generator=generator, device=self.device) * 2 - 1
        shares = []
        for unit in (logged[order], uniform):
            level = self.model.disagreement(obs, self.policy.scale.to_task(unit), MEASURE)
            shares.append(float((level > source.levels[0]).float().mean()))
        return shares


def _quartiles(lengths: Tensor) -> list[float]:
    if not len(lengths):
        return [0.0, 0.0, 0.0]
    shares = torch.tensor([0.25, 0.5, 0.75], dtype=torch.double, device=lengths.device)
    quartiles: list[float] = lengths.double().quantile(shares).tolist()
    return quartiles
