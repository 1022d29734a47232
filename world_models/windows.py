"""Pieces of episodes as rows of numbers for a generator of trajectories, and back: a token is
[observation, atanh(action), reward, terminated], standardised."""

import torch
from torch import Tensor, nn

from mbrl.errors import ConfigError, DataError
from mbrl.networks import ActionScale, Normaliser
from mbrl.types import Spec, Trajectories, Transitions


class Tokens(nn.Module):
    """The map between steps in the task's units and standardised tokens [..., S + A + 2]. What is
    the same in all of the data (in most tasks that none of them ends) is so in what is generated.
    """

    varies: Tensor

    def __init__(self, spec: Spec, action_bound: float = 0.999) -> None:
        super().__init__()
        if spec.discrete:
            raise ConfigError(
                f"task {spec.task!r} has discrete actions; a trajectory diffusion needs continuous "
                "ones"
            )
        self.spec, self.action_bound = spec, action_bound
        self.scale, self.normaliser = ActionScale(spec), Normaliser(self.size)
        self.register_buffer("varies", torch.ones(self.size, dtype=torch.bool))

    def fit(self, raw: Tensor) -> None:
        """Take mean, deviation and what varies from raw tokens [N, S + A + 2]."""
        self.normaliser.fit(raw)
        self.varies.copy_(raw.double().std(0, correction=0) >= 1e-12)

    @property
    def size(self) -> int:
        return self.spec.obs_dim + self.spec.action_dim + 2

    @property
    def actions(self) -> slice:
        """Where a token has the action."""
        return slice(self.spec.obs_dim, self.spec.obs_dim + self.spec.action_dim)

    def raw(self, data: Transitions) -> Tensor:
        """Tokens [N, S + A + 2] before they are standardised; actions are cut at +-`action_bound`
        in [-1, 1] so that atanh is finite."""
        unit = self.scale.to_unit(data.action).clamp(-self.action_bound, self.action_bound)
        rest = torch.stack([data.reward, data.terminated.to(data.reward.dtype)], -1)
        return torch.cat([data.obs, torch.atanh(unit), rest], -1)

    def restored(self, tokens: Tensor) -> Tensor:
        """Raw tokens [..., S + A + 2] of standardised ones."""
        return torch.where(self.varies, self.normaliser.inverse(tokens), self.normaliser.mean)

    def observations(self, tokens: Tensor) -> Tensor:
        """Raw observations [..., S] of standardised tokens."""
        return self.restored(tokens)[..., : self.spec.obs_dim]

    def rewards(self, tokens: Tensor) -> Tensor:
        """Rewards [..., L] of standardised windows [..., L, F], 0 after the task has ended."""
        raw = self.restored(tokens)
        said = (raw[..., -1] > 0.5).int()
        return torch.where(said.cumsum(-1) - said > 0, 0.0, raw[..., -2])

    def unit_actions(self, tokens: Tensor) -> Tensor:
        """Actions [..., A] in (-1, 1) of standardised tokens."""
        return torch.tanh(self.restored(tokens)[..., self.actions])

    def trajectories(self, tokens: Tensor) -> Trajectories:
        """Windows [B, L, S + A + 2] as `Trajectories` [B, L, ...].

        Next observations are those of the next token, so the last token is no step, unless it says
        that the task ends there (its next observation is its own then, and never bootstraps).
        Nothing after the first such token counts. A window that does not end is truncated at its
        last step.
        """
        raw = self.restored(tokens)
        s = self.spec.obs_dim
        obs, said = raw[..., :s], raw[..., -1] > 0.5
        over = said.int().cumsum(1) - said.int() > 0
        last = torch.zeros_like(said)
        last[:, -1] = True
        mask = ~over & (~last | said)
        terminated = said & mask
        ends = torch.zeros_like(said)
        if tokens.shape[1] > 1:
            ends[:, -2] = True
        ends &= ~said[:, -1:]
        return Trajectories(
            obs=obs,
            action=self.scale.to_task(self.unit_actions(tokens)),
            reward=raw[..., -2],
            next_obs=torch.cat([obs[:, 1:], obs[:, -1:]], 1),
            terminated=terminated,
            truncated=ends & mask & ~terminated,
            mask=mask,
        )


def window_rows(data: Transitions, length: int, stride: int) -> Tensor:
    """Rows [N, length] of windows that begin at every `stride`-th row of an episode. None crosses
    the end of an episode. Where the task ends an episode, its last row fills what a window lacks,
    so that ends are not lost; they are more frequent than in the data by up to 1.7 times where
    episodes have 10 to 32 rows (windows of 32, strides of 8), 1.06 times at 500 rows. Raises
    `DataError` where no window fits.

    Difference from policy-guided diffusion's code: that has only whole windows without an end
    before their last step, so that ends are rarer by about a window's length, and episodes shorter
    than a window are lost; its stride is counted over all rows, and it has no windows that end at a
    time limit, which is not part of a token here.
    """
    if length < 2 or stride < 1:
        raise ConfigError(f"length is {length} (2 or more), stride {stride} (1 or more)")
    first: list[Tensor] = []
    last: list[Tensor] = []
    for begin, end in data.episodes():
        stop = end if bool(data.terminated[end - 1]) else end - length + 1
        starts = torch.arange(begin, max(begin, stop), stride)
        first.append(starts)
        last.append(torch.full_like(starts, end - 1))
    if not sum(map(len, first)):
        longest = max((end - begin for begin, end in data.episodes()), default=0)
        raise DataError(
            f"no episode has {length} steps or ends the task, the longest has {longest}; fit with "
            f"length {longest} or less"
        )
    rows = torch.cat(first)[:, None] + torch.arange(length)
    return torch.minimum(rows, torch.cat(last)[:, None])
