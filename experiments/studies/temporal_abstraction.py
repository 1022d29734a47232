"""Internal reinforcement learning beside the same policy gradient on actions: a grid of colours
that are to be stepped on in an order longer than any in the walks that a sequence model was fitted
to ("Emergent temporal abstractions in autoregressive models enable hierarchical reinforcement
learning", arXiv 2512.20605)."""

from pathlib import Path
from typing import Any

import torch

from algorithms.temporal.internal_rl import (
    InternalConfig,
    Rollout,
    learn_actions,
    learn_codes,
    rollout,
)
from algorithms.temporal.metacontroller import (
    Metacontroller,
    MetacontrollerConfig,
    fit_metacontroller,
)
from algorithms.temporal.sequence_model import (
    SequenceConfig,
    SequenceModel,
    pretrain,
    previous_actions,
)
from experiments.reports import figures
from experiments.studies import Outcome
from experiments.studies.pin_pad import COLOURS, PinPad, Walks, agreement, walks
from mbrl import config as configs
from mbrl.errors import unknown_name

VERSION = 2
DEFAULTS: dict[str, Any] = {
    "learner": "codes",  # codes, actions, or random: codes from N(0, 1)
    "gate": "learned",  # or always
    "order": [0, 2, 4, 3],  # the order that is paid
    "tasks": 12,  # orders of the walks
    "legs": 3,  # colours of each of them
    "walks": 200,  # of an order
    "noise": 0.1,  # share of random moves in them
    "base": {},  # fields of SequenceConfig
    "controller": {},  # of MetacontrollerConfig
    "rl": {},  # of InternalConfig
    "episodes": 500,  # of the evaluation
}
LEARNERS = ("codes", "actions", "random")
LENGTH = 28  # steps of a walk at most


def measure(settings: dict[str, Any], seed: int, folder: Path) -> Outcome:
    """Fit a sequence model to walks, then a metacontroller to them, and learn the order from its
    reward.

    Per cent: `success`, of the episodes of the last policy, which draws, that are paid; `first`, of
    those before learning; `f1`, of switches on other walks against changes of the colour that is
    walked to, and `switches`, of their steps that have one (both 0 where actions are learned).
    `episodes`: those until half of a group were paid, or all. The curve is success against them.
    """
    if settings["learner"] not in LEARNERS:
        raise unknown_name("learner", settings["learner"], LEARNERS)
    generator = torch.Generator().manual_seed(seed)
    rl = configs.from_dict(InternalConfig, settings["rl"])
    orders = training_orders(tuple(settings["order"]), settings["tasks"], settings["legs"], seed)
    data = walks(orders, settings["walks"], LENGTH, settings["noise"], generator)
    base = sequence_model(data, settings, generator)
    world = PinPad(tuple(settings["order"]), generator)
    shares: list[float] = []

    def report(seen: Rollout) -> None:
        shares.append(100 * float(seen.returns.mean()))

    f1 = switches = 0.0
    controller, policy = None, None
    if settings["learner"] != "actions":
        controller = fitted_controller(base, data, settings, generator)
        f1, switches = switching(base, controller, orders, settings, generator)
    if settings["learner"] == "codes":
        assert controller is not None
        policy = learn_codes(base, controller, world, rl, generator, report)
    elif settings["learner"] == "actions":
        base = learn_actions(base, world, rl, generator, report)
    last = configs.from_dict(
        InternalConfig, configs.to_dict(rl) | {"episodes": settings["episodes"]}
    )
    end = rollout(base, world, last, generator, controller, policy)
    success = 100 * float(end.returns.mean())
    shares = shares or [success] * 2  # nothing is learned of random codes
    count = [rl.episodes * (i + 1) for i in range(len(shares))]
    half = next((n for n, s in zip(count, shares, strict=True) if s >= 50), rl.total)
    values = {
        "success": success,
        "first": shares[0],
        "episodes": float(half),
        "f1": f1,
        "switches": switches,
    }
    return Outcome(values, {"episodes": [float(n) for n in count], "success": shares})


def training_orders(
    paid: tuple[int, ...], count: int, legs: int, seed: int
) -> list[tuple[int, ...]]:
    """`count` orders of `legs` colours, none twice and no colour after itself, none of which is
    part of the order that is paid; each colour pair of that occurs in one of them."""
    generator = torch.Generator().manual_seed(seed + 7)
    parts = {paid[i : i + legs] for i in range(len(paid) - legs + 1)}
    pairs = {paid[i : i + 2] for i in range(len(paid) - 1)}
    while True:
        orders: list[tuple[int, ...]] = []
        while len(orders) < count:
            order = tuple(torch.randint(COLOURS, (legs,), generator=generator).tolist())
            repeats = any(a == b for a, b in zip(order, order[1:], strict=False))
            if not repeats and order not in parts and order not in orders:
                orders.append(order)
        known = {order[i : i + 2] for order in orders for i in range(legs - 1)}
        if pairs <= known:
            return orders


def sequence_model(
    data: Walks, settings: dict[str, Any], generator: torch.Generator
) -> SequenceModel:
    """Fitted to the walks."""
    config = configs.from_dict(SequenceConfig, settings["base"])
    base = SequenceModel(data.obs.shape[2], 4, config, generator)
    pretrain(base, data.obs, data.action, data.mask, config, generator)
    return base


def fitted_controller(
    base: SequenceModel, data: Walks, settings: dict[str, Any], generator: torch.Generator
) -> Metacontroller:
    chosen = settings["controller"] | {"gate": settings["gate"]}
    config = configs.from_dict(MetacontrollerConfig, chosen)
    return fit_metacontroller(base, data.obs, data.action, data.mask, config, generator)


@torch.no_grad()
def switching(
    base: SequenceModel,
    controller: Metacontroller,
    orders: list[tuple[int, ...]],
    settings: dict[str, Any],
    generator: torch.Generator,
) -> tuple[float, float]:
    """`agreement` on walks that nothing was fitted to, with the proposals' means."""
    other = walks(orders, 20, LENGTH, settings["noise"], generator)
    e, _ = base.stream(other.obs, previous_actions(other.action))
    still = torch.zeros(*other.action.shape, controller.config.code)
    return agreement(controller.codes(e, still, other.mask.sum(1)).gate, other)


def draw(rows: dict[str, list[dict[str, Any]]], folder: Path, suffix: str) -> list[Path]:
    """Success against episodes."""
    panels = figures.by_label(rows, figures.column("episodes"), figures.column("success"))
    path = folder / f"abstraction{suffix}.png"
    figures.curves(panels, "episodes", "paid episodes, %", path, top=100)
    return [path]
