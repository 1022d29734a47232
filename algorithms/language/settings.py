"""The settings of a policy gradient for language, checked before any work."""

from dataclasses import dataclass, field
from typing import Literal

from algorithms.language import domains, measures, schedule
from algorithms.language.learner import LanguageLearnerConfig
from algorithms.language.models.quantised import Precision
from algorithms.language.sampling.rewards import Place
from algorithms.language.sampling.tokens import Sampling
from algorithms.language.tasks import text_task
from mbrl.config import Count, CountOrZero, NonNegative, Positive, Probability, Rate
from mbrl.errors import ConfigError
from mbrl.policy_gradient import Recipe, recipe
from mbrl.policy_gradient.axes.option import CURRENT_ENTROPY
from mbrl.policy_gradient.requirements import Requirement
from mbrl.policy_gradient.trainer import ANCHORS

FIELDS = (
    *(f"log_probs.{name}" for name in ("old", "behaviour", "proximal", *ANCHORS)),
    *("signals.uniform", "entropy", "sum_prob_squared", "segments.turn", CURRENT_ENTROPY),
    *("groups.prompt", "groups.state"),
)
# What the trainer fulfils itself. The sampler's log-probs are those of the distribution that the
# tokens were drawn from.
FULFILS = (
    Requirement.ACTING_LOG_PROBS,
    Requirement.ENGINE_LOG_PROBS,
    Requirement.SAMPLER_LOG_PROBS,
    Requirement.START_LOG_PROBS,
    Requirement.SUM_PROB_SQUARED,
    Requirement.EARLIER_DATA,
)


@dataclass(frozen=True)
class LanguageConfig(LanguageLearnerConfig):
    """Settings of a policy gradient for language. `gamma` 1 is that of PPO in "Fine-Tuning Language
    Models from Human Preferences", arXiv 1909.08593, by the authors' code, and usual since; the
    authors of NLPO, arXiv 2210.01241, have 0.99."""

    recipe: str = "grpo"  # the objective, a name of `list recipes`
    prompts: Count = 32  # problems of a round
    group: Count = 8  # conversations about each
    sampling: Sampling = field(default_factory=Sampling)
    epochs: Count = 1  # passes over a round
    minibatches: Count = 2  # updates a pass
    learning_rate: Positive = 3e-4  # Adam, the model
    part_rate: NonNegative = 1e-3  # Adam, what a recipe has learned beside it (a critic)
    gamma: Probability = 1.0  # from token to token, where the recipe has a critic of tokens
    staleness: CountOrZero = 0  # updates between sampling and learning
    # Of the linear layers' inputs and weights: fp8 or integers, with gradients to full weights.
    sampling_precision: Precision = "full"
    training_precision: Precision = "full"  # the sampler's, or full
    rewards: Place = "inline"  # where a task's replies are made: where sampling is, or Ray's tasks
    reward_retries: CountOrZero = 0  # times that a reply is made again where it fails
    # What `old` log-probs are of; None: `start` where the recipe weighs by the sampler's beside
    # them, else `sampling`.
    old: Literal["sampling", "start"] | None = None  # the policy that sampled, or a round's first
    # Who says which steps are flawed to a recipe that asks.
    flaws: Literal["program", "learned"] = "program"  # the task, or a head that learns it
    ramp_rounds: Count = 100  # over which a recipe's schedule runs (D3S, Q-Hawkeye)
    # Of mantissa in the sampler's weights, where a recipe replays experts; 0: all.
    sampler_bits: CountOrZero = 0
    logged: Count = 500  # problems that a recipe of recorded answers (A-LoL) has answers to
    expert: str | None = None  # checkpoint of the model that a recipe with an expert looks to
    subnetwork: str | None = None  # file of the weights that are trained alone; None: all are
    # Parts of a joint task: whether shares are of problems drawn or of groups learned from; or one
    # part after the other, as "sorting" or "sorting:levels=3/4,learning_rate=1e-4,tokens=5000".
    shares_of: Literal["drawn", "learned"] = "drawn"
    stages: tuple[str, ...] = ()
    stage_tokens: Count = 100_000  # sampled in a stage that does not say
    stage_reset: bool = False  # a stage begins with a new state of the optimiser
    # Rounds. Schedulers other than uniform choose among the `pool` problems.
    scheduler: str = "uniform"  # which problems get how many conversations
    scheduler_settings: tuple[str, ...] = ()  # its own ones, as name=value
    value: str | None = None  # file of `language fit-value`, for v0 and v_half_scheduler
    replay: Count = 64  # latest groups kept, for a scheduler or recipe that mixes them in
    mixed_share: Probability = 0.5  # of groups from earlier policies, where a recipe takes them
    mixed_rounds: CountOrZero = 100  # with them; after that all are new
    # Whether groups whose rewards are all equal, which teach nothing, make room for others.
    drop_equal: bool = False
    templates: Count = 1  # wordings around a prompt, one drawn for a group; 1: the prompt alone
    horizon: tuple[Count, ...] = ()  # most turns, stage by stage; none: the task's
    horizon_every: Count = 50  # rounds of a stage
    starts_share: Probability = 0.0  # of groups that go on from partial conversations (ExIt)
    starts_steps: CountOrZero = 0  # 1: one turn more and no longer; 0: to the end
    starts_kept: Count = 512  # partial conversations that are kept
    prune_at: CountOrZero = 0  # tokens after which conversations are pruned (ARRoL); 0: never
    prune_to: Rate = 0.5  # share of a group's unfinished conversations that goes on
    pivots: CountOrZero = 0  # demonstrations practised turn by turn (PivotRL); 0: none

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.minibatches > self.prompts * self.group:
            raise ConfigError(
                f"minibatches is {self.minibatches}, more than the {self.prompts * self.group} "
                "conversations of a round"
            )
        if self.sampling.temperature == 0:
            raise ConfigError(
                "sampling.temperature is 0: greedy answers have nothing to learn from"
            )
        each = self.epochs * self.minibatches
        if self.staleness % each:
            raise ConfigError(
                f"staleness is {self.staleness} updates, it must be a multiple of the {each} "
                "updates of a round (epochs times minibatches), 0 for none"
            )
        domains.check_rounds(self, text_task(self.task))
        objective = recipe(self.recipe)
        self.check_precision(objective)
        measures.check(objective, FIELDS, (*FULFILS, *schedule.fulfilled(self)))
        measures.check_settings(objective, self)
        schedule.check(self, objective)

    def check_precision(self, objective: Recipe) -> None:
        """Raises `ConfigError` for precisions that do not go together, or not with the recipe or
        the model."""
        if self.training_precision not in ("full", self.sampling_precision):
            raise ConfigError(
                f"training_precision is {self.training_precision} and sampling_precision "
                f"{self.sampling_precision}; what learns has the sampler's precision, or full"
            )
        if self.sampling_precision == "full":
            return
        if self.model.transformer.experts:
            raise ConfigError(
                f"sampling_precision is {self.sampling_precision}, and a model with experts "
                "(model.transformer.experts) samples in full precision only"
            )
        if kinds := measures.kinds(objective):
            names = ", ".join(kind.__name__ for kind in kinds)
            raise ConfigError(
                f"sampling_precision is {self.sampling_precision}, and recipe {objective.name} "
                f"measures conversations with the model in full precision ({names}); leave it at "
                "full, or take a recipe without such measures, as grpo"
            )
