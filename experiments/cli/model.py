"""The verb `model`: fit an ensemble world model to a dataset, or measure how accurate one is."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from rich.table import Table

from experiments.cli import _positional as positional
from experiments.reports import figures
from experiments.runs import folders, history
from experiments.runs.export import training_data
from experiments.runs.model_fits import FitSettings, ModelFit, description, ensure
from experiments.runs.training import TrainingRun
from experiments.settings import preset_config
from mbrl import checkpoint, data
from mbrl import config as configs
from mbrl.agent import resolve_device
from mbrl.config import Count, CountOrZero, Fraction, Settings
from mbrl.data.fingerprint import fingerprint
from mbrl.errors import CheckpointError, ConfigError, DataError, unknown_name
from mbrl.logged_rules import require_rows
from mbrl.precision import MatmulPrecision
from mbrl.terminal import terminal
from mbrl.types import Dataset, Spec, Transitions, require_entries
from world_models import EnsembleConfig, EnsembleDynamics
from world_models import diagnostics as measures

# Reach and values that the run of a model logged last.
REACH = {
    "reach/outside": "share of rollouts that end outside",
    "reach/spread_inside": "critics' spread inside",
    "reach/spread_edge": "critics' spread at the edge of reach",
    "reach/penalty_inside": "effective penalty inside",
    "reach/penalty_edge": "effective penalty at the edge of reach",
    "value/q": "value at data states",
    "value/monte_carlo": "discounted return of the policy from there in the model",
}
SEEN, HELD_OUT = "data the fit saw", "rows the fit never saw"
OTHER = "other data than those of the fit"


@dataclass(frozen=True)
class Fit(Settings):
    """Fit a world model, with part of the episodes held out for `model inspect`. The same command
    continues a fit that was stopped."""

    data: positional.Data  # dataset name or file
    out: Path = Path("model")  # folder for model.pt and its description
    seed: CountOrZero = 0  # seed of weights, holdout and batches
    threads: Count = 1  # CPU threads
    # as torch.set_float32_matmul_precision; medium: products of bfloat16 where they are faster
    matmul_precision: MatmulPrecision = "highest"
    device: str = "cpu"  # cpu or cuda
    test_share: Fraction = 0.1  # share of the rows, in whole episodes, that the fit never sees
    config: Annotated[EnsembleConfig, tyro.conf.arg(name="")] = field(
        default_factory=EnsembleConfig
    )

    def main(self) -> int:
        resolve_device(self.device)
        names = ("data", "seed", "threads", "matmul_precision", "test_share", "device")
        settings = FitSettings(**{name: getattr(self, name) for name in names})
        job = ModelFit(self.out)
        if job.described and job.read() != description(settings, self.config):
            raise CheckpointError(
                f"{self.out} holds a fit with other settings or data; give another --out"
            )
        ensure(settings, self.config, self.out)
        result = job.resume()
        error = ", ".join(f"{e:.4g}" for e in result["holdout_mse"])
        members = len(result["holdout_mse"])
        path = self.out / "model.pt"
        print(f"kept {members} members, holdout squared errors {error}; saved {path}")
        return 0


@dataclass(frozen=True)
class Inspect(Settings):
    """Measure k-step error, calibration and rank correlation of a fitted model on the held-out
    episodes, or of the model in a run folder on its training data."""

    model: positional.Folder  # folder of `model fit`, or of a run
    data: str | None = None  # another dataset to measure on
    steps: Count = 20  # longest horizon of the error curve
    out: Path | None = None  # figure and numbers; None: beside the model

    def main(self) -> int:
        model, rows, where = self._open()
        test = rows.with_known_next()
        if len(test) == 0:
            raise DataError("no row has a next observation to measure on; give other --data")
        longest = max(b - a for a, b in test.episodes())
        k = min(self.steps, longest)
        error = measures.k_step_error(model, test, k)
        cover = measures.calibration(model, test)
        ranks = measures.rank_correlation(model, test)
        likelihood = measures.log_likelihood(model, test)
        table = Table("quantity", "value", title=f"{self.model} on {where} ({len(test)} rows)")
        for t in sorted({1, min(5, k), k}):
            at, count = error.median[t - 1], error.windows[t - 1]
            text = f"{t}-step error, median of {count} windows, in standard deviations"
            table.add_row(text, f"{at:.4g}")
        table.add_row("mean log-likelihood of the members", f"{likelihood.mean():.4g}")
        table.add_row("calibration error (0 is perfect)", f"{cover.error:.3f}")
        ends = measures.end_errors(model, rows)
        if ends is not None:
            table.add_row("ends that the model expects", f"{ends.expected:.4g}")
            table.add_row("ends of the data", f"{ends.actual}")
            table.add_row("cross-entropy of ends, in nats a row", f"{ends.surprise:.4g}")
            table.add_row("cross-entropy of their share alone", f"{ends.constant:.4g}")
        for name, rho in ranks.items():
            table.add_row(f"rank correlation with the true error: {name}", f"{rho:.3f}")
        verdict = history.verdict(self.model) if (self.model / "metrics.csv").exists() else None
        if verdict is not None:
            last = history.diagnoses(self.model)[-1]
            for name, text in REACH.items():
                if name in last:
                    table.add_row(text, f"{last[name]:.4g}")
        terminal().print(table)
        if verdict is not None:
            print(verdict.sentence)
        out = self.out or self.model
        out.mkdir(parents=True, exist_ok=True)
        numbers = {
            "rows": len(test),
            "data_seen_by_fit": where == SEEN,
            "k_step_error": {
                n: getattr(error, n).tolist()
                for n in ("median", "low", "high", "reward", "windows")
            },
            "calibration": {
                "levels": cover.levels.tolist(),
                "observed": cover.observed.tolist(),
                "error": cover.error,
            },
            "rank_correlation": ranks,
            "log_likelihood": likelihood.tolist(),
            "ends": None if ends is None else vars(ends),
        }
        folders.write_json(out / "inspect.json", numbers)
        figures.model_inspection(error, cover, ranks, where, out / "inspect.png")
        print(f"wrote {out / 'inspect.json'} and {out / 'inspect.png'}")
        return 0

    def _open(self) -> tuple[EnsembleDynamics, Transitions, str]:
        """The model, the rows to measure on and what those are to it."""
        if (self.model / "model.pt").exists():
            return self._of_fit()
        if (self.model / "checkpoint.pt").exists():
            return self._of_run()
        raise CheckpointError(f"{self.model} holds neither model.pt nor checkpoint.pt")

    def _of_fit(self) -> tuple[EnsembleDynamics, Transitions, str]:
        content = checkpoint.load(self.model / "model.pt")
        known = content["description"]
        fit = known.get("fit", known)  # earlier versions have the fit's settings at the top level
        rows = data.load(self.data or fit["data"])
        spec = Spec.from_dict(known["spec"]) if "spec" in known else rows.spec
        model = EnsembleDynamics(spec, configs.from_dict(EnsembleConfig, known["config"]))
        model.load_state_dict(content["model"])
        if not model.fitted:
            raise CheckpointError(f"the fit in {self.model} is not finished; rerun model fit")
        _require_like(model, rows)
        mark = known.get("fingerprint")  # None: of an earlier version
        if fingerprint(rows) != mark:
            if self.data is not None:
                return model, rows.transitions, OTHER
            if mark is not None:
                raise CheckpointError(
                    f"{fit['data']} has changed since the fit in {self.model}; fit a model again, "
                    f"or measure this one on what it is now: --data {fit['data']}"
                )
        share = fit.get("test_share", 0.0)
        if share == 0:
            return model, rows.transitions, SEEN
        _, test = measures.split_episodes(rows.transitions, share, fit["seed"])
        return model, test, HELD_OUT

    def _of_run(self) -> tuple[EnsembleDynamics, Transitions, str]:
        import algorithms

        agent = algorithms.load(self.model / "checkpoint.pt")
        model = getattr(agent, "model", None)
        if not isinstance(model, EnsembleDynamics):
            raise ConfigError(f"the run in {self.model} has no learned world model")
        if self.data is not None:
            rows = data.load(self.data)
            _require_like(model, rows)
            known = folders.read_json(self.model / "manifest.json")["data"]
            same = fingerprint(rows) == known.get("fingerprint")
            return model, rows.transitions, SEEN if same else OTHER
        own = training_data(TrainingRun(self.model))
        if own is None:
            raise ConfigError(f"the run in {self.model} learned in a task; give --data")
        return model, own.transitions, SEEN


def _require_like(model: EnsembleDynamics, rows: Dataset) -> None:
    """Raise `ConfigError` unless the model predicts what `rows` have."""
    require_entries(model.spec, rows.spec, "data", "fit a model to them", "world model")
    require_rows(rows, model, "`model fit`")


HELP = """usage: python -m experiments model {fit,inspect} ...

fit DATA --out FOLDER   fit an ensemble to a dataset, with some episodes held out
inspect FOLDER          k-step error, calibration and rank correlation of a fit or of a run's model

Each has its own --help."""


def main(arguments: list[str]) -> int:
    verbs = {"fit": Fit, "inspect": Inspect}
    if not arguments or arguments[0] in ("-h", "--help"):
        print(HELP)
        return 0
    verb, rest = arguments[0], arguments[1:]
    if verb not in verbs:
        raise unknown_name("model command", verb, verbs)
    prog = f"python -m experiments model {verb}"
    if verb == "inspect":
        return tyro.cli(Inspect, args=rest, prog=prog).main()
    if rest and not rest[0].startswith("-"):
        default = Fit(rest[0], Path("model"), config=preset_config("ravl", rest[0]).model)
        return tyro.cli(Fit, args=rest, default=default, prog=prog).main()
    return tyro.cli(Fit, args=rest, prog=prog).main()
