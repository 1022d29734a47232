"""The two-armed bandit of NEUBAY (arXiv 2512.04341): rewards of one arm, the reward models fitted
to them, and pulls of real and of imagined arms."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mbrl.config import Count, Finite, Fraction, NonNegative, Positive, Settings
from mbrl.errors import ConfigError, unknown_name
from mbrl.native.adam import AdamW
from mbrl.networks import EnsembleMLP
from world_models.disagreement import epistemic_mean

ARMS, SEEN = 2, 0.5  # number of arms; success probability of arm 0, which alone was pulled
ROWS, SUCCESSES = 1000, 494  # ten episodes of a hundred pulls; the authors' file has 494 ones
LOW, HIGH = -5.0, 0.25  # between which a model's log deviation is softly clamped
INITIALISATIONS = ("torch", "flax")

Act = Callable[[Tensor, Tensor | None, torch.Generator], tuple[Tensor, Tensor]]
World = Callable[[Tensor, torch.Generator], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class RewardConfig(Settings):
    """Settings of the reward models, as in NEUBAY's bandit."""

    members: Count = 128  # trained
    kept: Count = 100  # used: those of lowest holdout error
    hidden: Count = 16  # width of the two hidden layers
    initialisation: str = "torch"  # torch: uniform, as the authors'; flax: LeCun normal, zero bias
    learning_rate: Positive = 1e-3  # of AdamW
    weight_decay: NonNegative = 1e-4  # decoupled, on every parameter
    batch_size: Count = 128  # rows of each member in a step
    epochs: Count = 500  # at most
    patience: Count = 5  # epochs in which no member improves, after which the fit stops
    min_gain: Finite = 0.001  # fall of a holdout error that counts, absolute
    holdout: Fraction = 0.2  # share of the rows that decides


def behaviour_rewards() -> Tensor:
    """[1000] rewards of arm 0 in a fixed order: as many ones as the authors' data have, so that the
    seen arm's estimate, 0.494, is theirs."""
    generator = torch.Generator().manual_seed(0)
    return (torch.randperm(ROWS, generator=generator) < SUCCESSES).float()


class RewardModels(nn.Module):
    """Members that give an arm's reward a mean and a log deviation: [Linear, LayerNorm, LeakyReLU]
    twice, from a one-hot arm. Raises `ConfigError` for an unknown initialisation."""

    def __init__(self, config: RewardConfig, generator: torch.Generator) -> None:
        super().__init__()
        if config.initialisation not in INITIALISATIONS:
            raise unknown_name("initialisation", config.initialisation, INITIALISATIONS)
        self.mlp = EnsembleMLP(
            config.members,
            ARMS,
            (config.hidden, config.hidden),
            2,
            activation="leaky_relu",
            layer_norm=True,
            generator=generator,
        )
        if config.initialisation == "flax":
            for weight, bias in zip(self.mlp.weights, self.mlp.biases, strict=True):
                std = 1 / math.sqrt(weight.shape[1]) / 0.87962566103423978  # truncated normal
                nn.init.trunc_normal_(weight, 0.0, std, -2 * std, 2 * std, generator=generator)
                nn.init.zeros_(bias)

    def forward(self, arms: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log deviation [E, B] at one-hot arms, [E, B, 2] or [B, 2] shared by all."""
        mean, log_std = self.mlp(arms).unbind(-1)
        log_std = HIGH - F.softplus(HIGH - log_std)
        return mean, LOW + F.softplus(log_std - LOW)


def negative_log_likelihood(mean: Tensor, log_std: Tensor, reward: Tensor) -> Tensor:
    """-log N(reward; mean, exp(log_std)), elementwise."""
    scaled = (reward - mean) * torch.exp(-log_std)
    return 0.5 * math.log(2 * math.pi) + log_std + 0.5 * scaled.square()


class Judge:
    """The holdout rule: a member whose error falls by more than `min_gain` below its best so far
    has its weights kept; the untrained members are the first best."""

    def __init__(self, models: nn.Module, error: Tensor, config: RewardConfig) -> None:
        self.models, self.config = models, config
        self.error = error.clone()  # best so far [E]
        self.best = [p.detach().clone() for p in models.parameters()]
        self.stalled = 0  # epochs since a member improved

    def look(self, error: Tensor) -> bool:
        """Keep the weights of members that improved; whether the fit is to stop."""
        improved = self.error - error > self.config.min_gain
        self.error = torch.where(improved, error, self.error)
        for kept, now in zip(self.best, self.models.parameters(), strict=True):
            kept[improved] = now.detach()[improved]
        self.stalled = 0 if bool(improved.any()) else self.stalled + 1
        return self.stalled >= self.config.patience

    @torch.no_grad()
    def restore(self) -> None:
        for kept, now in zip(self.best, self.models.parameters(), strict=True):
            now.copy_(kept)


def fit(
    models: RewardModels, rewards: Tensor, config: RewardConfig, generator: torch.Generator
) -> Tensor:
    """Fit to `rewards` [N] of arm 0; the models end with their best weights. Returns the holdout
    errors [E], mean negative log-likelihoods.

    There is no bootstrap: every member sees all rows in each epoch, in its own order and with the
    last, smaller batch; the holdout is the same for all seeds. `world_models.fitting.Fit` drops
    that batch and judges squared errors by relative gains, which would be another fit.
    """
    order = torch.randperm(len(rewards), generator=torch.Generator().manual_seed(42))
    count = int(config.holdout * len(rewards))
    held, train = order[:count], order[count:]
    arms = F.one_hot(torch.zeros(len(rewards), dtype=torch.long), ARMS).float()
    optimiser = AdamW(
        models.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay, fused=True
    )

    @torch.no_grad()
    def holdout_error() -> Tensor:
        mean, log_std = models(arms[held])
        return negative_log_likelihood(mean, log_std, rewards[held]).mean(-1)

    judge = Judge(models, holdout_error(), config)
    for _ in range(config.epochs):
        keys = torch.rand(config.members, len(train), generator=generator)
        for rows in train[keys.argsort(1)].split(config.batch_size, 1):
            mean, log_std = models(arms[rows])
            loss = negative_log_likelihood(mean, log_std, rewards[rows]).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        if judge.look(holdout_error()):
            break
    judge.restore()
    return judge.error


@dataclass(frozen=True)
class Members:
    """The reward models at both arms: `mean` and `std` [N, 2], and the `penalty` [2], which is
    subtracted from rewards for learning."""

    mean: Tensor
    std: Tensor
    penalty: Tensor

    @property
    def worth(self) -> Tensor:
        """[N, 2]: mean penalised reward of a pull in member n."""
        return self.mean - self.penalty

    def log_likelihood(self, arm: Tensor, reward: Tensor) -> Tensor:
        """[B, N]: log N(reward; mean, std) of each member for pulls of `arm` [B]."""
        mean, std = self.mean.T[arm], self.std.T[arm]
        return -negative_log_likelihood(mean, std.log(), reward[:, None])

    def pull(self, arm: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """One pull of `arm` [N] in every member: the observed reward, and the penalised one for
        learning."""
        noise = torch.randn(len(arm), generator=generator)
        at = arm[:, None]
        seen = self.mean.gather(1, at)[:, 0] + self.std.gather(1, at)[:, 0] * noise
        return seen, seen - self.penalty[arm]


def fitted_members(config: RewardConfig, coefficient: float, seed: int) -> Members:
    """Fit and keep the best; the penalty is `coefficient` times the deviation of the members'
    means at each arm. Raises `ConfigError` where more members are to be kept than there are."""
    if not 1 <= config.kept <= config.members:
        raise ConfigError(
            f"kept is {config.kept}, it must lie in 1..{config.members}, the number of members"
        )
    generator = torch.Generator().manual_seed(seed)
    models = RewardModels(config, generator)
    best = fit(models, behaviour_rewards(), config, generator).argsort()[: config.kept]
    with torch.no_grad():
        mean, log_std = models(torch.eye(ARMS))
    mean, std = mean[best], log_std[best].exp()
    spread = epistemic_mean(mean[..., None], std.square()[..., None])
    return Members(mean, std, coefficient * spread)


def real_arms(probability: Tensor) -> World:
    """Bernoulli arms with success probabilities (0.5, probability[i]) in row i."""
    chances = torch.stack([torch.full_like(probability, SEEN), probability])

    def pull(arm: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        probability = chances.gather(0, arm[None])[0]
        reward = (torch.rand(len(arm), generator=generator) < probability).float()
        return reward, reward

    return pull


@dataclass(frozen=True)
class Pulls:
    """Episodes of T pulls side by side: what the agent saw before each and after the last,
    `inputs` [T + 1, B, 4]; `arm` and `paid` [T, B]."""

    inputs: Tensor
    arm: Tensor
    paid: Tensor


@torch.no_grad()
def play(act: Act, world: World, rows: int, pulls: int, generator: torch.Generator) -> Pulls:
    """`rows` episodes. An input is [0, one-hot arm before, its reward]; before the first pull it
    says arm 0 and no reward, as the authors' does."""
    reward, arm = torch.zeros(rows), torch.zeros(rows, dtype=torch.long)
    memory: Tensor | None = None
    inputs, arms, paid = [], [], []
    for _ in range(pulls):
        inputs.append(_input(arm, reward))
        arm, memory = act(inputs[-1], memory, generator)
        reward, pay = world(arm, generator)
        arms.append(arm)
        paid.append(pay)
    inputs.append(_input(arm, reward))
    return Pulls(torch.stack(inputs), torch.stack(arms), torch.stack(paid))


def _input(arm: Tensor, reward: Tensor) -> Tensor:
    return torch.cat(
        [torch.zeros(len(arm), 1), F.one_hot(arm, ARMS).float(), reward[:, None]], dim=1
    )
