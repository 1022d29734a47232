"""Probabilistic ensemble dynamics: E Gaussian members as one batched network, fitted with
per-member early stopping. The switches cover what RAVL, MOPO, MBPO and NEUBAY differ in."""

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mbrl import tasks
from mbrl.buffer import Batch
from mbrl.errors import ConfigError, DataError
from mbrl.networks import Normaliser
from mbrl.types import Spec, Transitions
from world_models.disagreement import measure as named_measure
from world_models.ensemble_network import EnsembleConfig, EnsembleNetwork, nll_gradients
from world_models.fitting import Fit
from world_models.learned_ends import LearnedEnds
from world_models.linear import linear_regression
from world_models.protocol import Prediction
from world_models.reached_rewards import ReachedRewards

Termination = Callable[[Tensor, Tensor, Tensor], Tensor]
Progress = Callable[[dict[str, Tensor]], None]
LEAST_UNIT = 1e-4  # least unit of what a regression leaves, in deviations of the observation
CHUNK = 1000  # rows that predictions on a CPU take at a time, so that activations stay in cache
MOST_NOISE = 0.5  # of an observation's deviation, in a step of a model that a fit does not warn of
MOST_PADDING = 1.5  # rows that grouped predictions compute, for each row that is asked for


class EnsembleDynamics:
    """A learned world model: `fit(transitions)`, then `predict`.

    `termination` is a rule from (obs [B, S], action, next_obs [B, S]) to [B] bool; None: imagined
    episodes do not end; "learned": each step ends them with the probability that `LearnedEnds`
    gives it.

    Differences from RAVL's code: a member keeps its bootstrap rows over all epochs (theirs are
    assigned to members anew in every epoch: `bootstrap = "reassigned"`); inputs are standardised by
    the statistics of observations (theirs: of next observations); an epoch's last partial batch is
    dropped; a first epoch always counts as better, and the best weights are restored in every case;
    rows at a time limit are kept; a disagreement measure looks at the kept members only; members
    are re-drawn per step as a random balanced assignment instead of independently for each row.
    """

    def __init__(
        self,
        spec: Spec,
        config: EnsembleConfig | None = None,
        *,
        termination: Termination | Literal["learned"] | None = None,
        device: torch.device | str = "cpu",
        seed: int = 0,
    ) -> None:
        self.spec, self.config = spec, config or EnsembleConfig()
        self.seed, self._device = seed, torch.device(device)
        self.inputs = spec.num_actions or spec.action_dim
        self.termination: Termination | None = None
        self.ends: LearnedEnds | None = None
        if termination == "learned":
            self.ends = LearnedEnds(spec.obs_dim + self.inputs, self._device, seed)
        else:
            self.termination = termination
        initial = torch.Generator().manual_seed(seed + 17)
        self.network = self._build(self.config.members, initial)
        self.obs_normaliser = Normaliser(spec.obs_dim).to(self._device)
        self.action_normaliser = Normaliser(self.inputs).to(self._device)
        self.target_scale = Normaliser(spec.obs_dim + 1).to(self._device)
        self.rewards: ReachedRewards | None = None
        if self.config.reward == "reached":
            width = 2 * spec.obs_dim + self.inputs
            self.rewards = ReachedRewards(width, self.config.reward_updates, self._device, seed)
        self.holdout_mse: Tensor | None = None  # [kept members], target units
        self._fit: Fit | None = None

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def num_members(self) -> int:
        return self.network.mlp.members

    @property
    def fitted(self) -> bool:
        return self.holdout_mse is not None

    def _build(self, members: int, generator: torch.Generator | None) -> EnsembleNetwork:
        width = self.spec.obs_dim + self.inputs
        network = EnsembleNetwork(width, self.spec.obs_dim + 1, members, self.config, generator)
        return network.to(self._device)

    # What the members see and predict.

    def encode(self, obs: Tensor, action: Tensor) -> Tensor:
        """Standardised, clipped network inputs [B, S + A] (discrete actions one-hot)."""
        if self.spec.discrete:
            action = F.one_hot(action.long(), self.inputs).to(obs.dtype)
        x = torch.cat([self.obs_normaliser(obs), self.action_normaliser(action)], -1)
        clip = self.config.input_clip
        return x if clip is None else x.clamp(-clip, clip)

    def targets(self, data: Transitions | Batch) -> Tensor:
        """[N, S + 1]: change of observation and reward, in target units."""
        y = torch.cat([data.next_obs - data.obs, data.reward[:, None]], -1)
        return self.target_scale(y)

    def fit(self, data: Transitions, on_progress: Progress | None = None) -> None:
        """Fit on the rows of `data` whose next observation is known, except a random holdout;
        continues an unfinished fit.

        `on_progress` is called after each epoch with `model/epoch`, `model/train_loss` and
        `model/holdout_mse`. Warns of observations that vary by less than the model's noise. Raises
        `DataError` for fewer than 3 rows, for numbers that are not finite, and for rows with a
        `duration` or a `weight`, of which a fit takes no notice.
        """
        if not isinstance(data, Transitions):
            raise DataError(
                f"a world model is fitted to Transitions and got a {type(data).__name__}; give "
                "dataset.transitions"
            )
        for name in ("duration", "weight"):
            if getattr(data, name) is not None:
                raise DataError(
                    f"the rows have a {name}, and a world model is fitted to all alike, as steps "
                    f"of one length; leave it out: dataclasses.replace(rows, {name}=None)"
                )
        every, data = data, data.with_known_next()
        for name in ("obs", "action", "reward", "next_obs"):
            if not bool(getattr(data, name).isfinite().all()):
                raise DataError(
                    f"{name} has entries that are not finite; fill them in, or drop the rows"
                )
        if len(data) < 3:
            raise DataError(f"an ensemble needs at least 3 transitions, the data has {len(data)}")
        data = data.to(self._device)
        if self._fit is None:
            self._fit_normalisers(data)
            self._warn_of_units()
            self._fit = Fit(self.network, self.config, len(data), self.seed, self._device)
        x, y = self.encode(data.obs, data.action), self.targets(data)
        while not self._fit.finished:
            metrics = self._fit.epoch(x, y, nll_gradients)
            if on_progress is not None:
                on_progress(metrics)
        if self.rewards is not None:
            seen = self._reward_inputs(data.obs, data.action, data.next_obs)
            self.rewards.fit(seen, data.reward)
        self._keep_elites()
        self.fit_ends(every)

    def fit_ends(self, data: Transitions) -> None:
        """Fit the ends, where they are learned, to all rows of `data`: last rows tell of them, too,
        if nobody knows what they led to. `fit` does so; a model that was fitted without learned
        ends and then read into one with them needs it."""
        self._require_fit()
        if self.ends is not None:
            rows = data.to(self._device)
            self.ends.fit(self.encode(rows.obs, rows.action), rows.terminated)
            self.ends.fit_unseen(rows.reward, rows.terminated, rows.next_known)

    def refit(self, data: Transitions, epochs: int, on_progress: Progress | None = None) -> None:
        """Fit again on all rows of `data`, from the present weights and for at most `epochs`
        passes, stopping early as at first. Every kept member stays."""
        self._require_fit()
        self.trainable()
        self.holdout_mse = None
        known = data.with_known_next()
        self._fit_normalisers(known.to(self._device))
        config = replace(self.config, min_epochs=0, max_epochs=epochs)
        self._fit = Fit(self.network, config, len(known), self.seed, self._device)
        self.fit(data, on_progress)

    def trainable(self) -> list[nn.Parameter]:
        """Let gradients flow into the kept members again; returns what is learned."""
        self.network.requires_grad_(True)
        if self.config.log_variance_bounds == "fixed":
            self.network.low.requires_grad_(False)
            self.network.high.requires_grad_(False)
        return [p for p in self.network.parameters() if p.requires_grad]

    def _fit_normalisers(self, data: Transitions) -> None:
        self.obs_normaliser.fit(data.obs)
        action = data.action
        if not self.spec.discrete:
            self.action_normaliser.fit(action)
        if self.config.target == "standardised":
            # The next observation is standardised with the observation's statistics, so a change
            # is only scaled; the reward is standardised in full.
            reward_std = data.reward.double().std(correction=0)
            safe = torch.where(reward_std < 1e-12, torch.ones_like(reward_std), reward_std)
            self.target_scale.mean[-1] = data.reward.double().mean()
            self.target_scale.std[:-1] = self.obs_normaliser.std
            self.target_scale.std[-1] = safe
        if self.config.target == "residual":
            self._fit_linear(data)

    def _warn_of_units(self) -> None:
        """Warn where a step's noise in the task's units is beyond `MOST_NOISE` of a deviation."""
        floor, std = math.exp(self.config.log_variance_min / 2), self.obs_normaliser.std
        small = (std < floor / MOST_NOISE).nonzero().flatten().tolist()
        if self.config.target != "delta" or not small:
            return
        names = [self.spec.obs_names[i] if self.spec.obs_names else f"obs[{i}]" for i in small]
        warnings.warn(
            f"{', '.join(names[:10])} vary by {float(std.min()):.2g} and the world model predicts "
            f"changes with noise of {floor:.2g} at least when its fit begins, as its target is "
            "'delta': imagined steps may be nothing but noise there. Set model.target to "
            "'standardised', or give the data in a smaller unit",
            stacklevel=3,
        )

    def _fit_linear(self, data: Transitions) -> None:
        """The regression of the changes, and the deviation of what it leaves as their unit."""
        self.target_scale.mean.zero_()
        self.target_scale.std.fill_(1.0)
        y = self.targets(data)
        weights, rest = linear_regression(self.encode(data.obs, data.action), y)
        least = LEAST_UNIT * torch.cat([self.obs_normaliser.std, y[:, -1:].std(0).clamp_min(1e-6)])
        unit = torch.maximum(rest, least)
        self.target_scale.std.copy_(unit)
        assert self.network.linear is not None
        self.network.linear.copy_(weights / unit)

    def _keep_elites(self) -> None:
        assert self._fit is not None
        error = self._fit.restore_best()
        kept = torch.sort(torch.argsort(error)[: self.config.elites]).values
        network = self._build(len(kept), None)
        with torch.no_grad():
            for new, old in zip(
                network.mlp.parameters(), self.network.mlp.parameters(), strict=True
            ):
                new.copy_(old[kept])
            network.low.copy_(self.network.low)
            network.high.copy_(self.network.high)
            if network.linear is not None and self.network.linear is not None:
                network.linear.copy_(self.network.linear)
        self.network = network.requires_grad_(False)
        self.holdout_mse = error[kept]
        self._fit = None

    # Predictions.

    @torch.no_grad()
    def members_predict(
        self, obs: Tensor, action: Tensor, chunk: int = CHUNK
    ) -> tuple[Tensor, Tensor]:
        """Means and variances [E, B, S + 1] of every kept member, in target units."""
        mean = obs.new_empty(self.num_members, len(obs), self.network.out_dim)
        variance = torch.empty_like(mean)
        for part in _chunks(len(obs), chunk, self._device):
            x = self.encode(obs[part], action[part])
            mean[:, part], variance[:, part] = self.network.moments(self.network.mlp(x), x)
        return mean, variance

    @torch.no_grad()
    def chosen_predict(
        self, obs: Tensor, action: Tensor, member: Tensor, chunk: int = CHUNK
    ) -> tuple[Tensor, Tensor]:
        """Mean and variance [B, S + 1] of the member named for each row, computing only that
        member (rows grouped by member)."""
        if self._device.type != "cpu":
            return _pick(*self.members_predict(obs, action), member)
        order = torch.argsort(member)
        counts = torch.bincount(member, minlength=self.num_members)
        padded = int(counts.max()) * self.num_members
        if len(obs) <= chunk and padded <= MOST_PADDING * len(obs):
            return self._grouped_predict(obs, action, member, order, counts)
        mean = obs.new_empty(len(obs), self.network.out_dim)
        variance = torch.empty_like(mean)
        for index, group in enumerate(torch.split(order, counts.tolist())):
            for rows in torch.split(group, chunk):
                x = self.encode(obs.index_select(0, rows), action.index_select(0, rows))
                guess = self.network.moments(self.network.mlp.member(x, index), x)
                mean.index_copy_(0, rows, guess[0])
                variance.index_copy_(0, rows, guess[1])
        return mean, variance

    def _grouped_predict(
        self, obs: Tensor, action: Tensor, member: Tensor, order: Tensor, counts: Tensor
    ) -> tuple[Tensor, Tensor]:
        """`chosen_predict` as one pass of all members, each with its own rows and zeros up to the
        most that one has: few rows are mostly the cost of calls."""
        x = self.encode(obs, action)
        group = member[order]
        slot = torch.arange(len(order)) - (counts.cumsum(0) - counts)[group]
        padded = x.new_zeros(self.num_members, int(counts.max()), x.shape[1])
        padded[group, slot] = x[order]
        mean, variance = self.network.moments(self.network.mlp(padded), padded)
        place = torch.empty_like(slot)
        place[order] = slot
        return mean[member, place], variance[member, place]

    def _measured_predict(
        self, obs: Tensor, action: Tensor, member: Tensor | None, measure: str | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Mean and variance [B, S + 1] of the member named for each row (None: of the mixture),
        and the disagreement of all kept members, a chunk of rows after the other."""
        mean = obs.new_empty(len(obs), self.network.out_dim)
        variance = torch.empty_like(mean)
        level = None if measure is None else obs.new_empty(len(obs))
        for part in _chunks(len(obs), CHUNK, self._device):
            means, variances = self.members_predict(obs[part], action[part])
            if level is not None and measure is not None:
                level[part] = named_measure(measure)(means, variances)
            if member is None:
                mean[part], variance[part] = means.mean(0), variances.mean(0)
            else:
                mean[part], variance[part] = _pick(means, variances, member[part])
        return mean, variance, level

    @torch.no_grad()
    def disagreement(self, obs: Tensor, action: Tensor, name: str) -> Tensor:
        """The disagreement measure `name` [B], in target units."""
        return named_measure(name)(*self.members_predict(obs, action))

    @torch.no_grad()
    def predict(
        self,
        obs: Tensor,
        action: Tensor,
        generator: torch.Generator,
        *,
        member: Tensor | None = None,
        state: Tensor | None = None,
        measure: str | None = None,
    ) -> Prediction:
        """A sampled step. `member` [B] names the member of each row; None takes the mixture's
        mean and mean variance. `measure` adds that disagreement."""
        self._require_fit()
        shape, level, y = (len(obs), self.network.out_dim), None, None
        noise = torch.randn(shape, generator=generator, device=self._device)
        if measure is not None or member is None:
            mean, variance, level = self._measured_predict(obs, action, member, measure)
        else:
            y = self.network.draws(self.encode(obs, action), member, noise)
            if y is None:
                mean, variance = self.chosen_predict(obs, action, member)
        y = mean + variance.sqrt() * noise if y is None else y
        next_obs, reward = self.decode(obs, action, y)
        ended = self.terminates(obs, action, next_obs, generator)
        reward = self.ending_reward(reward, ended)
        return Prediction(next_obs, reward, ended, disagreement=level)

    def mean_step(
        self, obs: Tensor, action: Tensor, member: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Next observation [B, S] and reward [B] as the member named for each row expects them, and
        the members' disagreement `epistemic_mean` [B]; differentiable in `obs` [B, S] and `action`
        [B, A]."""
        self._require_fit()
        mean, log_variance = self.network(self.encode(obs, action))
        level = named_measure("epistemic_mean")(mean, log_variance)
        rows = torch.arange(len(obs), device=obs.device)
        next_obs, reward = self.decode(obs, action, mean[member, rows])
        return next_obs, reward, level

    def decode(self, obs: Tensor, action: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Target units [..., S + 1] to next observation [..., S] and reward [...]."""
        next_obs = self.reached(obs, y)
        if self.rewards is None:
            return next_obs, self.target_scale.inverse(y)[..., -1]
        return next_obs, self.rewards(self._reward_inputs(obs, action, next_obs))

    def reached(self, obs: Tensor, y: Tensor) -> Tensor:
        """Target units [..., S + 1] to next observation [..., S] alone."""
        return obs + self.target_scale.inverse(y)[..., :-1]

    def _reward_inputs(self, obs: Tensor, action: Tensor, next_obs: Tensor) -> Tensor:
        clip = self.config.input_clip
        reached = self.obs_normaliser(next_obs)
        reached = reached if clip is None else reached.clamp(-clip, clip)
        return torch.cat([self.encode(obs, action), reached], -1)

    def terminates(
        self,
        obs: Tensor,
        action: Tensor,
        next_obs: Tensor,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """[B] bool: whether the task ends on reaching `next_obs`; never without a rule. Learned
        ends are drawn with `generator`; without one, those are ends that are likelier than not."""
        if self.ends is not None:
            p = self.ends(self.encode(obs, action))
            if generator is None:
                return p > 0.5
            return torch.rand(p.shape, generator=generator, device=p.device) < p
        if self.termination is None:
            return torch.zeros(len(obs), dtype=torch.bool, device=obs.device)
        return self.termination(obs, action, next_obs)

    def ending_reward(self, reward: Tensor, ended: Tensor) -> Tensor:
        """The predicted `reward` [B] of a step that has `ended` [B] (bool, or its probability):
        another one where ends are learned from rows that the dynamics did not learn from."""
        return reward if self.ends is None else self.ends.paid(reward, ended.to(reward.dtype))

    def survival(self, obs: Tensor, action: Tensor, next_obs: Tensor) -> Tensor:
        """[B]: the probability that the task goes on from there, 0 or 1 by a rule; differentiable
        where ends are learned."""
        if self.ends is not None:
            return 1.0 - self.ends(self.encode(obs, action))
        with torch.no_grad():
            return (~self.terminates(obs, action, next_obs)).to(obs.dtype)

    def _require_fit(self) -> None:
        if not self.fitted:
            raise ConfigError("the world model is not fitted yet; call fit(transitions) first")

    # State.

    def described_in(self, config: Any) -> Any:
        """The settings `config` of an algorithm with this model's own in them and where its
        episodes end, so that they make such a model; None where no settings do: with a rule of
        ends that is not the task's own, and for other kinds of models."""
        rule = getattr(self.termination, "__self__", None)
        if type(self) is not EnsembleDynamics:
            return None
        choice = "never" if self.ends is None else "learned"
        if self.termination is not None:
            known, spec = getattr(rule, "spec", None), self.spec
            if known is None or spec.task not in tasks.TASKS:
                return None
            if (known.task, known.task_options) != (spec.task, spec.task_options):
                return None
            choice = "task"
        changes: dict[str, Any] = {"model": self.config}
        for name, part in vars(config).items():
            if name == "termination":
                changes[name] = choice
            elif hasattr(part, "termination"):
                truth = {"truth": 0.0} if hasattr(part, "truth") else {}
                changes[name] = replace(part, termination=choice, **truth)
        return replace(config, **changes)

    def state_dict(self) -> dict[str, Any]:
        return {
            "network": self.network.state_dict(),
            "members": self.num_members,
            "obs_normaliser": self.obs_normaliser.state_dict(),
            "action_normaliser": self.action_normaliser.state_dict(),
            "target_scale": self.target_scale.state_dict(),
            "holdout_mse": self.holdout_mse,
            "fit": None if self._fit is None else self._fit.state_dict(),
            "rewards": None if self.rewards is None else self.rewards.state_dict(),
            "ends": None if self.ends is None else self.ends.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["members"] != self.num_members:
            self.network = self._build(state["members"], None)
        for name in ("network", "obs_normaliser", "action_normaliser", "target_scale"):
            getattr(self, name).load_state_dict(state[name])
        if self.rewards is not None:
            self.rewards.load_state_dict(state["rewards"])
        if self.ends is not None and state.get("ends") is not None:
            self.ends.load_state_dict(state["ends"])
        error = state["holdout_mse"]
        self.holdout_mse = None if error is None else error.to(self._device)
        if self.fitted:
            self.network.requires_grad_(False)
        if state["fit"] is not None:
            rows = state["fit"]["rows"]
            self._fit = Fit(self.network, self.config, rows, self.seed, self._device)
            self._fit.load_state_dict(state["fit"])


def _chunks(count: int, size: int, device: torch.device) -> list[slice]:
    """Row ranges that cover `count` rows; a single one off the CPU."""
    size = size if device.type == "cpu" else max(count, 1)
    return [slice(at, at + size) for at in range(0, count, size)]


def _pick(means: Tensor, variances: Tensor, member: Tensor) -> tuple[Tensor, Tensor]:
    """Row b of member[b], [B, D] from [E, B, D]."""
    index = member[None, :, None].expand(1, -1, means.shape[2])
    return means.gather(0, index)[0], variances.gather(0, index)[0]
