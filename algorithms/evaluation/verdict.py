"""From a valuation to a sentence: better, worse, or cannot tell, with the reasons."""

import math
from dataclasses import dataclass
from typing import Literal

from algorithms.evaluation.valuation import Estimate, Valuation


@dataclass(frozen=True)
class Verdict:
    """Of a policy against the logged one."""

    word: Literal["better", "worse", "cannot tell"]
    sentence: str
    reasons: tuple[str, ...]


def verdict(valuation: Valuation) -> Verdict:
    """Better, where the lower bound of fitted Q's difference lies above 0, the data support it, and
    no other estimate that can be believed says otherwise; worse likewise, but for values that ran
    away; else cannot tell."""
    fitted = valuation.estimates[0]
    others = [e for e in valuation.estimates[1:] if e.believed]
    reasons = [_line(e) for e in valuation.estimates]
    doubts = [] if fitted.believed else [f"fitted Q: {fitted.note}"]
    if valuation.critic is not None and not _within(valuation.critic, valuation.limits):
        doubts.append(
            f"the policy's own critic values its starts at {valuation.critic:.4g}, and rewards "
            f"allow {valuation.limits[0]:.4g} to {valuation.limits[1]:.4g} only: values ran away"
        )
    against = [e.method for e in others if e.difference_high < 0]
    for_it = [e.method for e in others if e.difference_low > 0]
    if fitted.difference_low > 0 and not doubts and not against:
        sentence = (
            f"Better than the logged policy: by {fitted.difference_low:.4g} at least in "
            f"discounted return ({fitted.difference:.4g} expected)."
        )
        return Verdict("better", sentence, tuple(reasons))
    if fitted.difference_high < 0 and fitted.believed and not for_it:
        sentence = (
            f"Worse than the logged policy: by {-fitted.difference_high:.4g} at least in "
            f"discounted return ({-fitted.difference:.4g} expected)."
        )
        return Verdict("worse", sentence, tuple(reasons))
    if against and fitted.difference_low > 0:
        doubts.append(f"{' and '.join(against)} finds it worse, fitted Q better")
    if for_it and fitted.difference_high < 0:
        doubts.append(f"{' and '.join(for_it)} finds it better, fitted Q worse")
    if not (fitted.difference_low > 0 or fitted.difference_high < 0):
        doubts.append(
            "the interval of the difference holds 0"
            if math.isfinite(fitted.difference)
            else "no value could be fitted"
        )
    sentence = f"Cannot tell whether it is better than the logged policy: {'; '.join(doubts)}."
    return Verdict("cannot tell", sentence, tuple(reasons))


def _within(value: float, limits: tuple[float, float]) -> bool:
    slack = 0.05 * (limits[1] - limits[0])
    return limits[0] - slack <= value <= limits[1] + slack


def _line(estimate: Estimate) -> str:
    e = estimate
    if not math.isfinite(e.difference):
        return f"{e.method}: no estimate ({e.note})"
    trust = "" if e.believed else f" (not to be believed here: {e.note})"
    around = f"[{e.difference_low:+.4g}, {e.difference_high:+.4g}]"
    return f"{e.method}: {e.difference:+.4g} {around}{trust}"
