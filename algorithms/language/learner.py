"""What every learner of a text task has: a language model, the task, its problems, and a state that
resumes exactly."""

import random
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from algorithms.language import domains
from algorithms.language.domains import Domains
from algorithms.language.models import huggingface
from algorithms.language.models.passes import Pass, passes, together
from algorithms.language.models.protocol import LanguageModel
from algorithms.language.models.transformer import Transformer, TransformerConfig
from algorithms.language.models.vocabulary import Characters, Codec
from algorithms.language.sampling.tokens import log_probs_and_entropy
from algorithms.language.tasks import text_task
from algorithms.language.tasks.base import Problem, TextTask
from mbrl import agent_files, checkpoint
from mbrl import config as configs
from mbrl.agent import resolve_device
from mbrl.config import Count, CountOrZero, Positive, Settings
from mbrl.errors import ConfigError
from mbrl.generators import generators, set_state
from mbrl.networks import adam
from mbrl.policy_gradient.distillation import forward_kl, reverse_kl
from mbrl.training import Metrics
from mbrl.types import Spec


@dataclass(frozen=True)
class ModelConfig(Settings):
    """Which language model."""

    # Folder of a Hugging Face causal LM (also --model FOLDER); None: the transformer below.
    path: str | None = None
    lora: CountOrZero = 0  # rank of the low-rank updates that are trained; 0: all weights are
    lora_alpha: Positive | None = None  # their product counts alpha / rank times; None: twice
    lora_targets: tuple[str, ...] = ()  # names of the linear layers with updates; none: all
    # How prompts are put to a model from `path`; None: "chat" if it has a template, else "line".
    opening: Literal["chat", "line", "bare"] | None = None  # bare: it goes on with the text
    end: str | None = None  # text of the token that ends a turn; None: its end of sequence
    transformer: TransformerConfig = field(default_factory=TransformerConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lora and self.path is None:
            raise ConfigError(
                f"lora is {self.lora}: it is 0 or a rank, and a rank is for models from a `path`"
            )
        if not self.lora and (self.lora_alpha is not None or self.lora_targets):
            raise ConfigError(
                f"lora_alpha is {self.lora_alpha} and lora_targets {self.lora_targets}, and lora "
                "is 0; give lora a rank, or leave both out"
            )
        if self.path is not None and self.transformer != TransformerConfig():
            raise ConfigError(
                f"transformer is {self.transformer}, and the model of path {self.path} has its own "
                "sizes; leave one of the two out"
            )
        if self.path is None and (self.opening, self.end) != (None, None):
            raise ConfigError(
                f"opening is {self.opening!r} and end {self.end!r}; these are for models from a "
                "`path`"
            )


@dataclass(frozen=True)
class LanguageLearnerConfig(Settings):
    """What every learner of a text task is set with."""

    task: str = "addition"  # a name of `language list`, or several: addition+sorting
    levels: tuple[CountOrZero, ...] = ()  # difficulties trained on; none: the task's own
    pool: CountOrZero = 0  # how many problems there are to train on; 0: without end
    shares: tuple[Positive, ...] = ()  # of problems, by the parts of the task; none: by levels
    turn_tokens: Count | None = None  # longest turn; None: the task's
    model: ModelConfig = field(default_factory=ModelConfig)
    learning_rate: Positive = 1e-3  # Adam
    warm_up: CountOrZero = 10  # updates in which the learning rate grows to its value
    clip_norm: Positive = 1.0  # largest norm of a gradient
    rows_at_once: Count = 256  # sequences in one pass through the model; more are done in parts

    def __post_init__(self) -> None:
        super().__post_init__()
        task = text_task(self.task)
        for level in self.levels:
            if level not in task.levels:
                raise ConfigError(
                    f"levels is {self.levels}, {self.task} has {', '.join(map(str, task.levels))}"
                )
        domains.check(self, task)


class LanguageLearner(ABC):
    """A language model that works on a text task."""

    version: ClassVar[int]
    series: ClassVar[str] = ""  # of problems: those that are shown are of another
    seed: int
    step: int
    save = agent_files.save

    def __init__(
        self,
        spec: Spec | None = None,
        config: LanguageLearnerConfig | None = None,
        *,
        device: str = "cpu",
        seed: int = 0,
    ) -> None:
        self.config: Any = config or self.default()
        self.seed, self.step, self.updates = seed, 0, 0
        self.device = resolve_device(device)
        initial, self.generator = generators(seed, self.device)
        self.task: TextTask = text_task(self.config.task)
        self.model: Any
        self.codec: Codec
        self.model, self.codec = build_model(self.config.model, initial, self.device)
        self.spec = spec or spec_of(self.config.task, self.model.size)
        self.modules: dict[str, nn.Module] = {"model": self.model}
        self.optimisers = {"model": adam(trainable(self.model), self.config.learning_rate)}
        self.drawn = 0  # problems so far
        self.domains = Domains(self.task, self.levels, self.config.shares)

    @classmethod
    @abstractmethod
    def default(cls) -> LanguageLearnerConfig: ...

    @property
    def policy(self) -> Any:
        return self.model

    @property
    def levels(self) -> tuple[int, ...]:
        """The difficulties that are trained on, whether or not their stage has been."""
        return domains.trained_levels(self.config, self.task)

    def problem(self, number: int) -> Problem:
        """Problem `number` of those to train on, none of which is held out for evaluation. With
        one seed, other problems are demonstrated than rewards are given for."""
        at = number % self.config.pool if self.config.pool else number
        rng = random.Random(f"{self.series}{self.seed} {at}")
        return self.task.problem(self.domains.draw(rng), rng, held_out=False)

    def new_numbers(self, count: int) -> list[int]:
        """The next `count` problems' numbers."""
        self.drawn += count
        return list(range(self.drawn - count, self.drawn))

    def drawn_seed(self) -> int:
        """Chance for something of its own, from the agent's."""
        return int(torch.randint(2**62, (), generator=self.generator, device=self.device))

    def set_rate(self) -> None:
        """The learning rate of the update that comes."""
        grown = min(1.0, (self.updates + 1) / max(1, self.config.warm_up))
        for optimiser in self.optimisers.values():
            for group in optimiser.param_groups:
                group.setdefault("full", group["lr"])
                group["lr"] = group["full"] * grown

    def advance(self) -> Metrics:
        """Nothing happens between the rounds of the collector."""
        return {}

    @abstractmethod
    def next_batch(self) -> Any: ...

    @abstractmethod
    def update(self, batch: Any) -> Metrics: ...

    def state_dict(self) -> dict[str, Any]:
        return {
            "modules": {k: kept(v) for k, v in self.modules.items()},
            "optimisers": {k: v.state_dict() for k, v in self.optimisers.items()},
            "generator": self.generator.get_state(),
            "drawn": self.drawn,
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, module in self.modules.items():
            put(module, state["modules"][name])
        for name, optimiser in self.optimisers.items():
            optimiser.load_state_dict(state["optimisers"][name])
        set_state(self.generator, state["generator"], state["updates"])
        self.drawn, self.updates = state["drawn"], state["updates"]

    @classmethod
    def load(cls, path: str | Path, device: str = "cpu") -> Self:
        """Read a learner that `save` or a run's checkpoint wrote."""
        return agent_files.load(cls, path, device)  # type: ignore[type-var]


def state_at(path: str | Path, config: ModelConfig) -> dict[str, Any]:
    """The state in a checkpoint of a learner with this model. Raises `ConfigError` where its model
    is another one: the same weights would be another function."""
    content = checkpoint.load(path)
    known = configs.from_dict(ModelConfig, content["config"]["model"])
    if config.path is None and known != config:
        theirs, own = (configs.flatten(configs.to_dict(c)) for c in (known, config))
        apart = [name for name in own if theirs.get(name) != own[name]]
        raise ConfigError(
            f"the model in {path} has {', '.join(f'{n} {theirs.get(n)}' for n in apart)}, this one "
            f"{', '.join(f'{n} {own[n]}' for n in apart)}; give --model.NAME the same values"
        )
    state: dict[str, Any] = content["state"]
    return state


def spec_of(task: str, size: int) -> Spec:
    """A text task as a control task: an observation is a token, an action the next one."""
    return Spec(f"language/{task}", obs_dim=1, num_actions=size)


def build_model(
    config: ModelConfig, generator: torch.Generator, device: torch.device
) -> tuple[Any, Codec]:
    """The model of `config` and what makes tokens of its texts."""
    if config.path is not None:
        lora = None
        if config.lora:
            alpha = 2.0 * config.lora if config.lora_alpha is None else config.lora_alpha
            lora = huggingface.Lora(config.lora, alpha, config.lora_targets)
        return huggingface.load(
            config.path, lora, device, generator, opening=config.opening, end=config.end
        )
    codec = Characters()
    return Transformer(codec.size, config.transformer, generator).to(device), codec


def trainable(module: nn.Module) -> list[Tensor]:
    return [p for p in module.parameters() if p.requires_grad]


def kept(module: nn.Module) -> dict[str, Tensor]:
    """The weights that a checkpoint holds: those that are trained, and where none is, all."""
    names = {name for name, p in module.named_parameters() if p.requires_grad}
    state = module.state_dict()
    return {k: v for k, v in state.items() if k in names} if names else state


def put(module: nn.Module, state: dict[str, Tensor]) -> None:
    """Take over what `kept` gave. Raises `ConfigError` for that of another model."""
    own = module.state_dict()
    for name in sorted(own.keys() & state.keys()):
        if own[name].shape != state[name].shape:
            raise ConfigError(
                f"the checkpoint is of another model: its {name} is {list(state[name].shape)}, "
                f"that of this one {list(own[name].shape)}; take the model's settings that it was "
                "made with"
            )
    _, unknown = module.load_state_dict(state, strict=False)
    lacking = kept(module).keys() - state.keys()
    if unknown or lacking:
        raise ConfigError(
            f"the checkpoint is of another model: it has {sorted(unknown)[:3]}, it lacks "
            f"{sorted(lacking)[:3]}; take the model's settings that it was made with"
        )


def measured(
    model: LanguageModel,
    tokens: Tensor,
    mask: Tensor,
    temperature: float,
    kept: Tensor | None,
    rows_at_once: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Without gradients: log-probs, entropy and sum of squared probabilities [B, T] of the steps in
    the `mask` [B, T] of whole sequences `tokens` [B, T + 1], 0 elsewhere."""
    todo = passes(mask, rows_at_once)
    with torch.no_grad():
        pieces = [
            log_probs_and_entropy_at(model, tokens, mask, temperature, kept, one) for one in todo
        ]
    log_prob, entropy, squares = together(pieces, todo, mask.shape[1]).unbind(-1)
    return log_prob, entropy, squares


def log_probs_and_entropy_at(
    model: LanguageModel,
    tokens: Tensor,
    mask: Tensor,
    temperature: float,
    kept: Tensor | None,
    one: Pass,
    teacher: Tensor | None = None,
) -> Tensor:
    """[b, steps, 3]: `log_probs_and_entropy` of the rows of `one`, at their steps in the mask; 0
    elsewhere. Logits are made of those steps alone: prompts, observations and padding have none.
    With the log-probs [B, T, V] of a `teacher` [b, steps, 5]: also the reverse and the forward
    divergence from it."""
    rows, steps = one
    here = mask[rows, :steps]
    logits = model.logits_at(tokens[rows, :steps], here)
    sets = None if kept is None else kept[rows, :steps][here]
    values: tuple[Tensor, ...] = log_probs_and_entropy(
        logits, tokens[rows, 1 : steps + 1][here], temperature, sets
    )
    if teacher is not None:
        log_p, log_q = (logits / temperature).log_softmax(-1), teacher[rows, :steps][here]
        values = (*values, reverse_kl(log_p, log_q), forward_kl(log_p, log_q))
    values_at = logits.new_zeros(*here.shape, len(values))
    values_at[here] = torch.stack(values, -1)
    return values_at
