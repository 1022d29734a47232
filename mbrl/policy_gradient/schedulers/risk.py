"""Model predictive task sampling: a small neural process that is trained on the latest round
predicts how much tasks still fail, and the riskiest of many candidates are taken."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

from mbrl.config import Count, CountOrZero, Finite, NonNegative, Positive, Probability, Settings
from mbrl.errors import ConfigError
from mbrl.networks import MLP, adam, descend
from mbrl.policy_gradient.schedulers.allocation import in_groups, tally
from mbrl.policy_gradient.schedulers.scheduler import Outcome, Pool, Request, Scheduler


class RiskModel(nn.Module):
    """Task parameters to risk, given a latent variable z that stands for the policy of the round:
    z's distribution comes from the mean of the embedded pairs (parameters, risk)."""

    def __init__(
        self, features: int, *, hidden: int, latent: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.encoder = MLP(features + 1, (hidden, hidden), latent, generator=generator)
        self.law = MLP(latent, (latent,), 2 * latent, generator=generator)
        self.decoder = MLP(features + latent, (hidden, hidden, hidden), 1, generator=generator)

    def posterior(self, features: Tensor, risk: Tensor) -> Normal:
        """The distribution of z [latent] after `risk` [M] at `features` [M, D]."""
        pairs = torch.cat([features, risk[:, None]], 1)
        mean, spread = self.law(torch.relu(self.encoder(pairs).mean(0))).chunk(2)
        return Normal(mean, 0.1 + 0.9 * torch.sigmoid(spread))

    def forward(self, features: Tensor, z: Tensor) -> Tensor:
        """[S, M] risk at `features` [M, D] for each of `z` [S, latent]."""
        rows = features.expand(len(z), *features.shape)
        return self.decoder(torch.cat([rows, z[:, None].expand(-1, len(features), -1)], 2))[..., 0]


@dataclass(frozen=True)
class MPTSConfig(Settings):
    candidates: Count = 4  # times as many as are taken
    mean: Finite = 1.0  # weight of the predicted risk
    std: NonNegative = 1.0  # weight of its deviation over draws of z
    draws: Count = 50  # of z
    evenly: Probability = 0.5  # share of the tasks that is taken without looking
    steps: Count = 20  # of the optimiser in a round
    lr: Positive = 3e-3
    kl: NonNegative = 1e-4  # weight of the divergence from the last posterior
    latent: Count = 8
    hidden: Count = 32
    seed: CountOrZero = 0  # of the first weights


class MPTS(Scheduler):
    """Of `candidates` times as many random tasks those with the largest mean risk + deviation, the
    rest (`evenly`) at random. Risk is minus the mean reward. The model is trained on each round
    with the last posterior of z as its prior (streaming variational inference).

    "Model Predictive Task Sampling for Efficient and Robust Adaptation", arXiv 2501.11039, as in
    the authors' code.
    """

    beliefs = ("model", "optimiser", "prior", "features_heard", "risk_heard")
    varying = ("features_heard", "risk_heard")

    def __init__(
        self, pool: Pool, budget: int, group: int, config: MPTSConfig = MPTSConfig()
    ) -> None:
        super().__init__(pool, budget, group)
        pool.needs("features")
        counts = (config.candidates, config.draws - 1, config.steps, config.latent, config.hidden)
        if min(counts) < 1 or config.lr <= 0 or config.kl < 0:
            raise ConfigError(
                f"{config}; give at least 1 candidate, step, latent and hidden unit, 2 draws, lr "
                "above 0 and kl from 0"
            )
        assert pool.features is not None
        self.config = config
        raw = pool.features.float()
        scaled = (raw - raw.mean(0)) / raw.std(0).nan_to_num(1.0).clamp_min(1e-6)
        # Of what all tasks share rounding is left, divided by next to nothing.
        self.features = torch.where((raw == raw[0]).all(0), 0.0, scaled)
        start = torch.Generator().manual_seed(config.seed)
        self.model = RiskModel(
            raw.shape[1], hidden=config.hidden, latent=config.latent, generator=start
        )
        self.optimiser = adam(self.model.parameters(), config.lr)
        self.prior = torch.stack([torch.zeros(config.latent), torch.ones(config.latent)])
        self.features_heard = torch.zeros(0, raw.shape[1])
        self.risk_heard = torch.zeros(0)

    @torch.no_grad()
    def predict(self, prompts: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """([P] mean, [P] deviation) of the risk over draws of z."""
        mean, std = self.prior
        if len(self.risk_heard):
            posterior = self.model.posterior(self.features_heard, self.risk_heard)
            mean, std = posterior.mean, posterior.stddev
        z = mean + std * torch.randn(self.config.draws, len(mean), generator=generator)
        risk = self.model(self.features[prompts], z)
        return risk.mean(0), risk.std(0)

    def request(self, generator: torch.Generator) -> Request:
        size, places = self.pool.size, min(self.places, self.pool.size)
        candidates = torch.randperm(size, generator=generator)[: self.config.candidates * places]
        mean, std = self.predict(candidates, generator)
        score = self.config.mean * mean + self.config.std * std
        order = score.argsort(descending=True, stable=True)
        looked = places - round(self.config.evenly * places)
        rest = order[looked:].sort().values  # candidates are in random order already
        return in_groups(candidates[torch.cat([order[:looked], rest])][:places], places, self.group)

    def observe(self, outcome: Outcome, generator: torch.Generator) -> None:
        counted = tally(outcome, self.pool.size)
        ids = counted.prompts
        x, risk = self.features[ids], -counted.mean[ids].float()
        prior = Normal(self.prior[0], self.prior[1])
        for _ in range(self.config.steps):
            posterior = self.model.posterior(x, risk)
            noise = torch.randn(1, self.config.latent, generator=generator)
            error = ((self.model(x, posterior.mean + posterior.stddev * noise) - risk) ** 2).mean()
            descend(self.optimiser, error + self.config.kl * kl_divergence(posterior, prior).sum())
        with torch.no_grad():
            posterior = self.model.posterior(x, risk)
            self.prior = torch.stack([posterior.mean, posterior.stddev])
        self.features_heard, self.risk_heard = x, risk
        super().observe(outcome, generator)
