"""Off-policy evaluation on the Open Bandit Dataset (arXiv 2008.07146): recommendations in a shop,
logged by a uniform policy and by Bernoulli Thompson sampling, so that the value of either is known
from its own log. The protocol is that of the example of the data's authors (zr-obp, examples/obd).

The files are those of the PyPI package obp 0.4.1 (10,000 rounds each): installed, or its folder
obp/dataset/obd copied to LONGREACH_DATA/obd, with obp/policy/conf/prior_bts.yaml beside them.
"""

import importlib.util
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from algorithms.evaluation.bandit import ESTIMATORS, LoggedDecisions, evaluate, logistic_regression
from experiments.reports import figures
from experiments.studies import Outcome
from mbrl.data.locate import data_home
from mbrl.errors import ConfigError, DataError, MissingDataError, optional_packages

VERSION = 2
DEFAULTS: dict[str, Any] = {
    "behaviour": "random",  # whose log it is: random or bts
    "target": "bts",  # whose value is estimated
    "campaign": "all",  # all, men or women
    "runs": 30,  # bootstrap draws of the log
    "simulations": 1_000_000,  # of Thompson sampling, for its probabilities
    "folds": 3,  # of the rounds, for the fitted rewards
}
POLICIES, CAMPAIGNS = ("random", "bts"), ("all", "men", "women")
RANDOM_STATE = 12345  # of the published run
INVERSE_PENALTY = 100.0  # of the regression, theirs


class Log(NamedTuple):
    """N rounds: the item shown [N], in which place [N], clicks [N], the logging probability [N],
    features of the user [N, D], and those of the items [A, F]."""

    item: np.ndarray
    place: np.ndarray
    click: np.ndarray
    probability: np.ndarray
    user: np.ndarray
    items: np.ndarray


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """By estimator: the mean over bootstrap draws of the log of |estimate - truth| / truth, where
    the truth is the mean reward of the target's own log; `NAME_covered`: share of draws whose
    interval of 95 % holds it. Curves are the errors of the draws. Seed 0 has the draws of the
    published figures."""
    behaviour, target, campaign = (settings[k] for k in ("behaviour", "target", "campaign"))
    for name, value, known in (
        ("behaviour", behaviour, POLICIES),
        ("target", target, POLICIES),
        ("campaign", campaign, CAMPAIGNS),
    ):
        if value not in known:
            raise ConfigError(f"{name} is {value!r}; it must be {' or '.join(known)}")
    log = read(behaviour, campaign)
    truth = float(read(target, campaign).click.mean())
    places, items = int(log.place.max()) + 1, len(log.items)
    shown = np.full((items, places), 1 / items)
    if target == "bts":
        shown = thompson(campaign, places, settings["simulations"], RANDOM_STATE + seed)
    errors: dict[str, list[float]] = {name: [] for name in ESTIMATORS}
    covered: dict[str, list[float]] = {name: [] for name in ESTIMATORS}
    for run in range(settings["runs"]):
        random = np.random.RandomState(1000 * seed + run)
        drawn = random.choice(np.arange(len(log.item)), size=len(log.item), replace=True)
        rounds = weighted(draw_of(log, drawn), shown, settings["folds"], RANDOM_STATE + seed)
        for name in ESTIMATORS:
            result = evaluate(rounds, name)
            errors[name].append(abs(result.value - truth) / truth)
            covered[name].append(float(result.low <= truth <= result.high))
    values = {name: float(np.mean(each)) for name, each in errors.items()}
    values |= {f"{name}_covered": float(np.mean(each)) for name, each in covered.items()}
    return Outcome(values, errors)


def read(policy: str, campaign: str) -> Log:
    """The log of one policy in one campaign, in the order of time."""
    with optional_packages("tables", "logs of the Open Bandit Dataset"):
        import pandas
    home = _home()
    folder = home / policy / campaign
    rows = pandas.read_csv(folder / f"{campaign}.csv", index_col=0).sort_values("timestamp")
    about = pandas.read_csv(folder / "item_context.csv", index_col=0).sort_values("item_id")
    if about["item_id"].tolist() != list(range(len(about))):
        raise DataError(
            f"{folder / 'item_context.csv'} has the items {about['item_id'].tolist()}; they must "
            "be 0 to their number less 1, each once"
        )
    users = rows.loc[:, rows.columns.str.contains("user_feature")]
    categories = about.drop(columns=["item_id", "item_feature_0"]).apply(
        lambda column: np.unique(column, return_inverse=True)[1]
    )
    return Log(
        rows["item_id"].to_numpy(),
        np.unique(rows["position"], return_inverse=True)[1],
        rows["click"].to_numpy(np.float64),
        rows["propensity_score"].to_numpy(np.float64),
        pandas.get_dummies(users, drop_first=True).to_numpy(np.float64),
        np.column_stack([categories, about["item_feature_0"]]).astype(np.float64),
    )


def _home() -> Path:
    """The folder with the logs of both policies."""
    places = [data_home() / "obd"]
    installed = importlib.util.find_spec("obp")
    if installed is not None and installed.origin is not None:
        places.append(Path(installed.origin).parent / "dataset/obd")
    for place in places:
        if (place / "random").is_dir():
            return place
    raise MissingDataError(
        "the Open Bandit Dataset is not here: unpack obp/dataset/obd of the wheel that `pip "
        f"download --no-deps obp==0.4.1` fetches to {places[0]}, and with it "
        "obp/policy/conf/prior_bts.yaml into the same folder"
    )


def thompson(campaign: str, places: int, simulations: int, random_state: int) -> np.ndarray:
    """How often Thompson sampling with the shop's prior shows each item in each place [A, P]."""
    home = _home()
    nearby = (home / "prior_bts.yaml", home.parents[1] / "policy/conf/prior_bts.yaml")
    file = next((f for f in nearby if f.exists()), None)
    if file is None:
        raise MissingDataError(f"{nearby[0]} is missing; it is obp/policy/conf/prior_bts.yaml")
    prior = _numbers(file, campaign)
    random = np.random.RandomState(random_state)
    counts = np.zeros((len(prior["alpha"]), places))
    left = simulations
    while left:
        size = min(left, 20_000)
        left -= size
        rates = random.beta(prior["alpha"], prior["beta"], size=(size, len(prior["alpha"])))
        top = rates.argsort(1)[:, ::-1][:, :places]
        for place in range(places):
            counts[:, place] += np.bincount(top[:, place], minlength=len(counts))
    return counts / simulations


def _numbers(file: Path, campaign: str) -> dict[str, np.ndarray]:
    """Lists `alpha` and `beta` of a campaign, from a file of nested lists of numbers."""
    lists: dict[str, list[float]] = {}
    section, name = "", ""
    for line in file.read_text().splitlines():
        text = line.strip()
        if text.startswith("- ") and section == campaign:
            lists[name].append(float(text[2:]))
        elif text.endswith(":") and line == text:
            section = text[:-1]
        elif text.endswith(":") and section == campaign:
            name = text[:-1]
            lists[name] = []
    return {key: np.array(values) for key, values in lists.items()}


def draw_of(log: Log, rows: np.ndarray) -> Log:
    """The same log with these rounds."""
    parts = {name: getattr(log, name)[rows] for name in log._fields if name != "items"}
    return log._replace(**parts)


def weighted(log: Log, shown: np.ndarray, folds: int, random_state: int) -> LoggedDecisions:
    """The rounds with weights towards a policy that shows item a in place p with probability
    `shown` [A, P], and rewards fitted on the other folds, a regression for each place."""
    n, items = len(log.item), len(log.items)
    order = np.arange(n)
    np.random.RandomState(random_state).shuffle(order)
    q, v = np.zeros(n), np.zeros(n)
    for test in np.array_split(order, folds):
        train = np.setdiff1d(np.arange(n), test)
        for place in range(shown.shape[1]):
            fitted = train[log.place[train] == place]
            x = np.column_stack([log.user[fitted], log.items[log.item[fitted]]])
            probability = logistic_regression(x, log.click[fitted], INVERSE_PENALTY)
            asked = test[log.place[test] == place]
            users = np.repeat(log.user[asked], items, 0)
            features = np.column_stack([users, np.tile(log.items, (len(asked), 1))])
            mean = probability(features).reshape(len(asked), items)
            q[asked] = mean[np.arange(len(asked)), log.item[asked]]
            v[asked] = mean @ shown[:, place]
    weight = shown[log.item, log.place] / log.probability
    return LoggedDecisions(log.click, weight, q, v)


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """Errors of the draws, a panel for each row and a column of points for each estimator."""
    panels = {}
    for label, records in rows.items():
        each = {name: np.concatenate([r["curves"][name] for r in records]) for name in ESTIMATORS}
        panels[label] = {
            name: (np.full(len(errors), float(k)), errors)
            for k, (name, errors) in enumerate(each.items())
        }
    path = folder / f"open-bandit{suffix}.png"
    figures.scatter(panels, "estimator", "relative error", path)
    return [path]
