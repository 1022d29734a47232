"""Which rows of an imagined source a model of the real rows believes.

`consistency` asks whether the model contradicts a row: how far the next observation lies from what
an ensemble expects, in deviations of its mixture, which is wide where the members do not know.
`disagreement` asks whether the model knows the row at all: how far the members are apart at its
observation and action, whatever the row says came next (the measure of MOReL and of NEUBAY's
penalty, `world_models/disagreement.py`). A row is kept where its score is no higher than on all but
a small share of real episodes that the model was not fitted to. The task of two sources is
ImagineBench's (arXiv 2505.10010), which has no filter; these two are this library's.

A new instruction pays for what no real row pays and has values that no real row has, so rewards are
left out, and observations that never change within an episode (an instruction, a goal) are 0 for
the model. That no imagined episode changes them is part of being consistent.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from mbrl.data.split import hold_out
from mbrl.errors import ConfigError, DataError
from mbrl.types import Dataset, Transitions
from world_models.ensemble import EnsembleDynamics
from world_models.ensemble_network import EnsembleConfig

Filter = Literal["consistency", "disagreement"]
MODEL = EnsembleConfig(
    members=5, elites=5, hidden=(100, 100), target="standardised",
    weight_decay=(1e-6,), min_epochs=5, max_epochs=30,
)  # fmt: skip
# LayerNorm fits steps more sharply, but bounds what members say far from the data, where they would
# agree.
MODELS = {"consistency": replace(MODEL, layer_norm=True), "disagreement": MODEL}
HELD = 0.2  # share of the real episodes that the threshold is taken from
SEED = 1409  # of the model, apart from those of the agents


@dataclass(frozen=True)
class Scored:
    """`score` [N] of the imagined rows and the highest `threshold` that is kept."""

    score: Tensor
    threshold: float

    @property
    def keep(self) -> Tensor:
        """[N] bool."""
        return self.score <= self.threshold


def score_imagined(
    real: Dataset, imagined: Dataset, name: Filter, quantile: float = 0.99, seed: int = SEED
) -> Scored:
    """Fit an ensemble to four fifths of the real episodes and score the imagined rows; the
    threshold is the `quantile`, in (0, 1], of the other fifth's scores. Raises `DataError` where
    there are fewer than two real episodes or nothing in them changes."""
    if name not in MODELS:
        raise ConfigError(f"the filter is {name!r}, it must be consistency or disagreement")
    if not 0 < quantile <= 1:
        raise ConfigError(f"quantile is {quantile}, it must lie in (0, 1]")
    fitted, held = (part.transitions.with_known_next() for part in hold_out(real, HELD, seed))
    fixed = never_changes(real.transitions.with_known_next())
    if bool(fixed.all()):
        raise DataError(f"no observation of {real.provenance.card} ever changes")
    model = EnsembleDynamics(real.spec, MODELS[name], seed=seed)
    model.fit(_blind(fitted, fixed))
    known = _scores(model, held, fixed, name)
    score = _scores(model, imagined.transitions, fixed, name)
    return Scored(score, float(torch.quantile(known.double(), quantile)))


def never_changes(rows: Transitions) -> Tensor:
    """[S] bool: observations that are equal before and after every step."""
    return (rows.obs == rows.next_obs).all(0)


def standardised_distance(mean: Tensor, variance: Tensor, target: Tensor) -> Tensor:
    """[B]: root of the mean over dimensions of (y - mu)^2 / (mean_e sigma_e^2 + Var_e mu_e), from
    members' predictions [E, B, D] and `target` [B, D]."""
    spread = variance.mean(0) + mean.var(0, correction=0)
    return ((target - mean.mean(0)).square() / spread).mean(-1).sqrt()


def _blind(rows: Transitions, fixed: Tensor) -> Transitions:
    """`rows` as the model sees them: without rewards, and 0 in the observations that are fixed."""
    changes = ~fixed
    return replace(
        rows,
        obs=rows.obs * changes,
        next_obs=rows.next_obs * changes,
        reward=torch.zeros_like(rows.reward),
    )


def _scores(model: EnsembleDynamics, rows: Transitions, fixed: Tensor, name: Filter) -> Tensor:
    """[N]; the distance is infinite where a row changes what is fixed, and 0 where nobody recorded
    what followed, since nothing is then contradicted."""
    seen = _blind(rows, fixed)
    if name == "disagreement":
        return model.disagreement(seen.obs, seen.action, "max_pairwise_difference")
    mean, variance = model.members_predict(seen.obs, seen.action)
    used = torch.cat([~fixed, fixed.new_zeros(1)])  # not the reward, which stands last
    target = model.targets(seen)
    score = standardised_distance(mean[..., used], variance[..., used], target[:, used])
    broken = (rows.obs != rows.next_obs)[:, fixed].any(1)
    score = score.masked_fill(broken, torch.inf)
    return score if rows.next_known is None else score.masked_fill(~rows.next_known, 0.0)
