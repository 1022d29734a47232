"""Recording of the local datasets from behaviour policies."""

import dataclasses
import functools
import hashlib
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from torch import Tensor

from experiments.recording import interventions
from experiments.recording.behaviour import (
    Behaviour,
    Outcome,
    Report,
    Training,
    Weights,
    load_weights,
    noisy,
    policy_of,
    record,
    save_weights,
    train,
    uniform_actions,
)
from experiments.recording.demonstrations import modes_demonstrator, obstacle_demonstrator
from experiments.recording.environment import (
    RECORDED,
    STEPS,
    RecordingStopped,
    named_policy,
    record_dataset,
)
from experiments.recording.goal_data import Kind, blocks_kind, maze_kind
from experiments.recording.linear_search import Search, record_candidates, search
from experiments.recording.mixtures import MixtureRecorder, Stage
from mbrl.config import Count, CountOrZero, Settings, Share
from mbrl.data import data_home, from_arrays, load, save_npz
from mbrl.data.cards import Card, Tier, all_cards, cards_dir
from mbrl.data.readers.files import file_hash
from mbrl.errors import ConfigError, DataError, TaskError, unknown_name
from mbrl.files import require_writable
from mbrl.tasks import Task, is_task, make
from mbrl.tasks.experts import expert
from mbrl.terminal import terminal
from mbrl.types import Dataset, Provenance, Transitions

SMALL: dict[str, Any] = {"policy_kwargs": {"net_arch": [64, 64]}}
# Settings of rl-baselines3-zoo, with a constant learning rate and 64 units a layer
CARTPOLE: dict[str, Any] = {
    "n_steps": 32, "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98, "n_epochs": 20,
    "learning_rate": 1e-3,
}  # fmt: skip
ACROBOT: dict[str, Any] = {"n_steps": 256, "gae_lambda": 0.94, "n_epochs": 4, "ent_coef": 0.0}
MOUNTAIN_CAR: dict[str, Any] = {
    "buffer_size": 50_000, "batch_size": 512, "ent_coef": 0.1, "train_freq": 32,
    "gradient_steps": 32, "gamma": 0.9999, "tau": 0.01, "learning_starts": 0, "use_sde": True,
    "policy_kwargs": {"log_std_init": -3.67, "net_arch": [64, 64]},
}  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    """How the tiers of one family are made. `training` gives the medium policy and the replay,
    where there are any; a search gives the expert too. `sampled` says whether the medium policy is
    sampled or acts by its mode, `noise` is that of the expert and of a search's medium policy
    (share of the action range, or probability of a random action), `narrow` accepts the start
    observations of that tier, `demonstrator` takes the expert's place. `kinds` gives, where tiers
    are kinds of data instead, the behaviour of each by its name, and which start observations are
    kept (None: all)."""

    training: Training | Search | None = None
    sampled: bool = True
    noise: float = 0.05
    narrow: Callable[[Tensor], Tensor] | None = None
    demonstrator: Behaviour | None = None
    kinds: Callable[[str], Kind] | None = None


RECIPES: dict[str, Recipe] = {
    "pendulum": Recipe(
        Training("SAC", 4_000, 2_500, {"learning_rate": 1e-3, **SMALL}),
        narrow=lambda obs: obs[:, 0] < -0.8,  # hangs, within 0.64 rad
    ),
    "swingup": Recipe(
        Training("SAC", 10_000, 7_000, {"learning_rate": 1e-3, **SMALL}),
        narrow=lambda obs: obs[:, 3] > 0,  # leans to one side
    ),
    "invertedpendulum": Recipe(
        Training("SAC", 16_000, settings=SMALL),
        narrow=lambda obs: obs[:, 1] > 0,  # leans to one side
    ),
    "inverteddoublependulum": Recipe(
        Training("SAC", 10_000, settings={"learning_rate": 1e-3, **SMALL}),
        narrow=lambda obs: obs[:, 1] > 0,  # the first pole leans to one side
    ),
    "reacher": Recipe(
        Training("SAC", 10_000, 2_500, {"gamma": 0.95, **SMALL}),
        narrow=lambda obs: (obs[:, 4:6] > 0).all(dim=1),  # the target is in one quadrant
    ),
    "cartpole": Recipe(
        Training("PPO", 8_192, 4_096, CARTPOLE, envs=8),
        narrow=lambda obs: obs[:, 2] > 0,  # leans to one side
    ),
    "acrobot": Recipe(
        Training("PPO", 65_536, 32_768, ACROBOT, envs=16),
        narrow=lambda obs: obs[:, 1] > 0,  # the first link hangs to one side
    ),
    "mountaincar": Recipe(narrow=lambda obs: obs[:, 0] > -0.45),
    "mountaincarcontinuous": Recipe(
        Training("SAC", 20_000, 10_000, MOUNTAIN_CAR),
        sampled=False,  # its exploration noise depends on the state and is not part of the weights
        narrow=lambda obs: obs[:, 0] > -0.45,
    ),
    "swimmer": Recipe(Search("cross-entropy", 9, 2, 32, 6, noise=1.0, step=0.2)),
    "hopper": Recipe(Search("ars", 150, 40, 16, 4, noise=0.025, step=0.01, alive_bonus=1, judge=5)),
    "halfcheetah": Recipe(
        Search("ars", 85, 10, 64, 4, noise=0.03, step=0.02, judge=5),
        noise=0.01,  # the expert turns over under more
    ),
    "modes": Recipe(demonstrator=modes_demonstrator),
    "obstacle": Recipe(demonstrator=obstacle_demonstrator),
    "pointmaze": Recipe(kinds=maze_kind),
    "pushblocks": Recipe(kinds=blocks_kind),
}


@dataclass(frozen=True)
class Collect(Settings):
    """Record the local datasets of a family anew, or a dataset of any task. The same seed gives the
    same files on the same machine and versions."""

    family: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="FAMILY|TASK")]]
    """A local family: pendulum, cartpole, reacher, ... (`python -m experiments data list`), one
    that is recorded from published agents (d4rl-like), or a task:
    CliffWalking-v1,max_episode_steps=200, or mypackage.envs:make_env."""
    tiers: tuple[str, ...] | None = None
    """The tiers to record, e.g. random medium; by default all that the family has."""
    steps: Count | None = None
    """At least this many transitions a tier (whole episodes); by default what the card says, of a
    task 10,000.
    The medium-replay of a training run holds all of it and ignores this; that of a search does
    not."""
    seed: CountOrZero = 0
    """Seed of the episodes, and of the training where there is one."""
    out: Path | None = None
    """Folder to write FAMILY/TIER.npz below; by default the data folder ($LONGREACH_DATA). Of a
    task: the file, by default recorded/NAME.npz there."""
    retrain: bool = False
    """Train the behaviour policies anew instead of reading the shipped weights; the new weights go
    to policies/ below --out."""
    with_state: bool = False
    """Store the simulator's state beside each observation, for exact true dynamics from every row;
    not in the medium-replay of a training run."""
    ship: bool = False
    """For maintainers: write into the library's own datasets folder and note sizes, returns and
    checksums in the card."""
    policy: str | None = None
    """Of a task: random (the default), a run folder or checkpoint, a model of stable-baselines3 (a
    .zip, one that you trust), the arrays of an actor (.npz), or mypackage.policies:act, a function
    of observations [B, S] and a generator."""
    greedy: bool = False
    """Of a task: the policy's greedy actions instead of sampled ones."""
    agents: Path | None = None
    """Folder of the published agents; by default the card's (rl-zoo-agents, ...) in the data
    folder."""
    note: bool = False
    """For maintainers: note sizes, returns and checksums in the card."""
    overwrite: bool = False
    """Of a task: replace a file that is there already."""
    noise: Share = 0.0
    """Of a task: Gaussian noise added to the policy's actions, as a share of the action range."""
    corrector: str | None = None
    """Of a task: who takes over where the policy fails, doors (of DoorChain-v0) or an entry point
    mypackage.correctors:Class; --steps then counts the rows of the corrector alone."""
    known: str | None = None
    """With a corrector: the dataset whose states the policy knows, such as its demonstrations."""
    rules: Literal["rac", "rac-goes-on", "correct", "recover"] = "rac"
    """With a corrector: recover, correct and end the episode there; the same and go on; correct
    alone; recover alone."""


def collect(command: Collect, console: Console | None = None) -> list[Path]:
    """Record what `command` asks for; the files written."""
    console = console or terminal()
    if command.family not in all_cards():
        return [collect_task(command, console)]
    if command.policy is not None or command.greedy or command.noise or command.corrector:
        raise ConfigError(
            f"--policy, --greedy, --noise and --corrector are for tasks; those of {command.family} "
            "are its recipe's"
        )
    card = recordable_card(command.family)
    tiers = select_tiers(card, command.tiers)
    folder = cards_dir() / "local" if command.ship else command.out or data_home()
    maker = recorder(card, command, folder)
    paths = []
    for tier in tiers:
        with progress(console) as bars:
            rows = maker.make(tier, functools.partial(stage, bars))
        path = folder / card.family / f"{tier.name}.npz"
        save_npz(dataset_of(card, tier, rows, maker.recipe_text(tier, rows)), path)
        paths.append(path)
        text = statistics_text(card, tier, rows)
        if command.ship or command.note:
            update_card(card.path, tier, len(rows), text, path)
        size = path.stat().st_size / 1000
        console.print(f"{card.family}/{tier.name}: {len(rows):,} transitions, {text}")
        if tier.policies:
            console.print(f"  {'; '.join(map(str, tier.policies))}", highlight=False)
            console.print(f"  sha256 {file_hash(path)}", highlight=False, soft_wrap=True)
        console.print(f"  {path} ({size:,.0f} kB)", highlight=False, soft_wrap=True)
    return paths


def collect_task(command: Collect, console: Console) -> Path:
    """Record a dataset of the task that `command` names; the file written."""
    names = ("tiers", "retrain", "with_state", "ship", "agents", "note")
    others = [name for name in names if getattr(command, name)]
    if others:
        raise ConfigError(
            f"--{others[0].replace('_', '-')} is for the families of this library; "
            f"{command.family!r} is a task"
        )
    if not is_task(command.family):
        raise unknown_name("local dataset family", command.family, recordable())
    task, chosen = make(command.family), command.policy or "random"
    file = re.sub(r"[^\w.=-]+", "-", command.family)
    path = command.out or data_home() / "recorded" / f"{file}.npz"
    if path.suffix != ".npz":
        raise ConfigError(f"--out {path}: of a task it is the file; end the name in .npz")
    if path.exists() and not command.overwrite:
        raise ConfigError(f"{path} exists; give another --out, or --overwrite to replace it")
    require_writable(path)
    words = ["python -m experiments collect", command.family, "--policy", chosen]
    words += ["--greedy"] * command.greedy + [f"--noise {command.noise}"] * (command.noise > 0)
    words += [
        f"--corrector {command.corrector} --known {command.known} --rules {command.rules}"
    ] * (command.corrector is not None)
    recipe = " ".join([*words, "--steps", str(command.steps or STEPS), "--seed", str(command.seed)])
    try:
        if command.corrector is not None:
            dataset = _with_corrector(command, task, chosen, recipe)
        else:
            dataset = _of_policy(command, task, chosen, recipe, console)
    except RecordingStopped as problem:  # what was recorded before is saved
        if path.exists():  # a whole recording is not replaced by a part
            path = path.with_name(f"{path.stem}-partial.npz")
        save_npz(problem.dataset, path)
        count = len(problem.dataset)
        raise TaskError(f"{problem}. The {count:,} transitions before that are in {path}") from None
    save_npz(dataset, path)
    returns = dataset.transitions.returns()
    console.print(
        f"{command.family}: {len(dataset):,} transitions, {len(returns):,} episodes, mean return "
        f"{float(returns.mean()):.4g}"
    )
    console.print(f"  {path}; use that path wherever a dataset is named", soft_wrap=True)
    return path


def _of_policy(command: Collect, task: Task, policy: str, recipe: str, console: Console) -> Dataset:
    """The rows of the policy alone."""
    steps = command.steps or STEPS
    with progress(console) as bars:
        return record_dataset(
            task,
            named_policy(policy),
            steps,
            seed=command.seed,
            greedy=command.greedy,
            noise=command.noise,
            recipe=recipe,
            report=stage(bars, command.family, steps),
        )


def _with_corrector(command: Collect, task: Task, policy: str, recipe: str) -> Dataset:
    """The rows of the policy and of the corrector who takes over where it fails."""
    if command.known is None or command.noise > 0:
        raise ConfigError(
            "--corrector needs --known, the dataset whose states the policy knows, and does not go "
            "with --noise"
        )
    corrector = interventions.named_corrector(str(command.corrector), load(command.known))
    return interventions.intervened(
        task,
        named_policy(policy),
        corrector,
        command.steps or STEPS,
        rules=interventions.RULES[command.rules],
        seed=command.seed,
        greedy=command.greedy,
        recipe=recipe,
    )


def stage(bars: Progress, text: str, total: int) -> Report:
    """A new bar; the callback that moves it."""
    row = bars.add_task(text, total=total)
    return lambda done: bars.update(row, completed=done)


def recordable() -> dict[str, Card]:
    """The families that `collect` can make."""
    return {n: card for n, card in all_cards().items() if card.kind in ("local", "recorded")}


def recordable_card(family: str) -> Card:
    if family not in recordable():
        raise unknown_name("local dataset family", family, recordable())
    return recordable()[family]


def recorder(card: Card, command: Collect, folder: Path) -> "FamilyRecorder | MixtureRecorder":
    """What makes the tiers of `card`."""
    if card.kind == "local":
        if command.agents is not None or command.note:
            raise ConfigError(f"--agents and --note are for published agents; not {card.family}")
        return FamilyRecorder(card, command, folder)
    for name in ("retrain", "with_state", "ship"):
        if getattr(command, name):
            raise ConfigError(
                f"--{name.replace('_', '-')} is for families whose policies are trained here; "
                f"{card.family} is recorded from published agents"
            )
    agents = command.agents or data_home() / card.agents
    return MixtureRecorder(card, agents, command.seed, command.steps)


def select_tiers(card: Card, names: tuple[str, ...] | None) -> list[Tier]:
    """The tiers to record; an error for one that cannot be, with the reason."""
    if names is None:
        return [t for t in card.tiers.values() if not (t.missing or t.parts or t.file)]
    tiers = [card.tier(name) for name in names]
    for tier in tiers:
        if tier.missing is not None:
            raise DataError(f"{card.family}/{tier.name} does not exist: {tier.missing}")
        if tier.parts:
            raise DataError(
                f"{card.family}/{tier.name} is not recorded: load() concatenates "
                f"{' and '.join(tier.parts)}. Record those"
            )
        if tier.file:
            raise DataError(f"{card.family}/{tier.name} is a published file, {tier.file}")
    return tiers


def progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:<24}"), BarColumn(), MofNCompleteColumn(),
        TimeElapsedColumn(), TimeRemainingColumn(),
        console=console, disable=not console.is_terminal,
    )  # fmt: skip


class FamilyRecorder:
    """The transitions of one family's tiers; one training run serves all tiers that need it."""

    def __init__(self, card: Card, command: Collect, folder: Path) -> None:
        self.card, self.command, self.folder = card, command, folder
        self.recipe = RECIPES[card.family]
        self.replay = command.tiers is None or "medium-replay" in command.tiers
        self.outcome: Outcome | None = None  # of the training run

    def make(self, tier: Tier, stage: Stage) -> Transitions:
        """Record `tier`."""
        name = f"{self.card.family}/{tier.name}"
        # the tiers of one seed differ in their starts
        seed = zlib.crc32(f"{name}/{self.command.seed}".encode())
        generator = torch.Generator().manual_seed(seed)
        task, steps = self.task(tier), self.steps(tier)
        options: dict[str, Any] = {"with_state": self.command.with_state}
        if tier.name == "medium-replay":
            outcome = self.trained(tier, stage)
            if outcome.replay is not None:
                return outcome.replay
            options["report"] = stage(name, steps)
            return record_candidates(task, outcome.candidates, steps, generator, **options)
        if self.recipe.kinds is not None:
            kind = self.recipe.kinds(tier.name)
            behaviour, options["start"] = kind.behaviour, kind.start
        else:
            behaviour = self.behaviour(tier, stage)
        if tier.name == "narrow":
            options["start"] = self.recipe.narrow
        return record(task, behaviour, steps, generator, report=stage(name, steps), **options)

    def task(self, tier: Tier) -> Task:
        environment = self.card.environment(tier)
        return make(str(environment.task), **environment.task_options)

    def steps(self, tier: Tier) -> int:
        return self.command.steps or tier.steps or 10_000

    def behaviour(self, tier: Tier, stage: Stage) -> Behaviour:
        spec = self.card.spec(tier)
        if tier.name == "random":
            return uniform_actions(spec)
        if tier.name == "expert" and self.recipe.demonstrator is not None:
            return self.recipe.demonstrator
        noise = 0.0 if tier.name == "narrow" else self.recipe.noise
        if isinstance(self.recipe.training, Search):
            trained = self.card.tier("medium" if tier.name == "medium" else "expert")
            linear = policy_of(self.weights(trained, stage), spec, sampled=False)
            return noisy(lambda obs: linear(obs, torch.Generator()), spec, noise)
        if tier.name == "medium":
            return policy_of(self.weights(tier, stage), spec, sampled=self.recipe.sampled)
        return noisy(expert(spec.task), spec, noise)

    def weights(self, tier: Tier, stage: Stage) -> Weights:
        """Those of the medium or expert policy: shipped, kept by an earlier call, or trained."""
        name = f"policies/{self.card.family}-{tier.name}.npz"
        for known in (cards_dir() / "local" / name, self.folder / name):
            if known.is_file() and not self.command.retrain:
                return load_weights(known)
        weights = self.trained(tier, stage).policies[tier.name]
        save_weights(weights, self.folder / name)
        return weights

    def trained(self, tier: Tier, stage: Stage) -> Outcome:
        training = self.recipe.training
        if training is None:
            raise ConfigError(f"{self.card.family}/{tier.name} has no training recipe")
        if self.outcome is None:
            training = dataclasses.replace(training, seed=self.command.seed)
            if isinstance(training, Search):
                report = stage(f"{training.method} search", training.iterations)
                self.outcome = search(self.task(tier), training, report)
            else:
                if not self.replay and training.medium is not None:  # the rest is of no use
                    training = dataclasses.replace(training, steps=training.medium + 1)
                report = stage(f"training {training.algorithm}", training.steps)
                self.outcome = train(self.task(tier), training, report)
        return self.outcome

    def recipe_text(self, tier: Tier, rows: Transitions) -> str:
        """The command that makes `rows`."""
        recipe = f"python -m experiments collect {self.card.family} --tiers {tier.name}"
        if not (tier.name == "medium-replay" and isinstance(self.recipe.training, Training)):
            recipe += f" --steps {len(rows)}"
        return recipe + f" --seed {self.command.seed}{' --with-state' * (rows.state is not None)}"


def dataset_of(card: Card, tier: Tier, rows: Transitions, recipe: str) -> Dataset:
    """The verified dataset of the rows of `tier`."""
    provenance = Provenance(
        card=f"{card.family}/{tier.name}",
        version=card.recipe_version,
        licence=card.licence,
        recipe=recipe,
    )
    arrays = {name: getattr(rows, name) for name in RECORDED}
    return from_arrays(**arrays, spec=card.spec(tier), provenance=provenance)


def statistics_text(card: Card, tier: Tier, rows: Transitions) -> str:
    """The number of episodes recorded, their mean return and its score."""
    returns = rows.returns()
    score = float(card.spec(tier).score(returns.mean()))
    return f"{len(returns)} episodes, mean return {float(returns.mean()):.4g}, score {score:.1f}"


def update_card(path: Path, tier: Tier, rows: int, text: str, file: Path) -> None:
    """Write steps, checksum and what was recorded into the entry of `tier`."""
    card = path.read_text(encoding="utf-8")
    about = f"{tier.about.partition('; recorded: ')[0]}; recorded: {text}"
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    entry = f'[tiers.{tier.name}]\nabout = "{about}"\nsteps = {rows}\nsha256 = "{digest}"\n'
    pattern = re.compile(rf"\[tiers\.{re.escape(tier.name)}\]\n((?:[^\[\n].*\n)*)")
    noted = re.compile(r"(?m)^(?:about|steps|sha256) = .*\n")
    path.write_text(pattern.sub(lambda m: entry + noted.sub("", m[1]), card, 1), encoding="utf-8")
