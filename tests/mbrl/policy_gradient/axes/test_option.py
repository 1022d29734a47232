"""Options that no recipe of the table takes, against loops; words and classes of all options."""

import dataclasses

import pytest
import torch

from mbrl.errors import ConfigError
from mbrl.policy_gradient.axes import option
from mbrl.policy_gradient.axes.aggregation import SegmentMean
from mbrl.policy_gradient.axes.baseline import Mean
from mbrl.policy_gradient.axes.gate import LogLikelihood, Weighted
from mbrl.policy_gradient.axes.modulation import SignWeights
from mbrl.policy_gradient.axes.regulariser import KL
from mbrl.policy_gradient.axes.selection import SignalMask, ZeroVariance
from tests.mbrl.policy_gradient import cases


def kinds(parent: type) -> list[type]:
    return [k for child in parent.__subclasses__() for k in (child, *kinds(child))]


def test_every_option_is_a_dataclass_of_its_own() -> None:
    for kind in kinds(option.Option):
        assert "__dataclass_params__" in vars(kind), kind
        assert kind.__dataclass_params__.frozen, kind


def test_the_weighted_gate_has_the_gradient_of_the_score_where_the_ratio_is_1() -> None:
    t, _, _ = cases.batch(0)
    log_prob = t.log_probs["old"].clone().requires_grad_()
    advantage = torch.randn_like(t.reward)
    found = []
    for gate in (Weighted(), LogLikelihood()):
        gain = gate(log_prob - t.log_probs["old"], log_prob, advantage, t)
        found.append(torch.autograd.grad(gain.sum(), log_prob)[0])
    torch.testing.assert_close(found[0][t.mask], found[1][t.mask])
    apart = log_prob - t.log_probs["old"] + 0.5
    expected = 1.6487212707001282 * advantage
    gain = Weighted()(apart, log_prob, advantage, t)
    torch.testing.assert_close(gain[t.mask].detach(), expected[t.mask])


def test_segment_mean_is_the_mean_of_turn_means() -> None:
    t, log_prob, _ = cases.batch(1)
    turns: dict[tuple[int, int], list[float]] = {}
    for b, row in enumerate(t.mask.tolist()):
        for at, inside in enumerate(row):
            if inside:
                key = (b, int(t.segments["turn"][b, at]))
                turns.setdefault(key, []).append(float(log_prob[b, at].detach()))
    expected = sum(sum(v) / len(v) for v in turns.values()) / len(turns)
    assert float(SegmentMean()(log_prob, log_prob, t).detach()) == pytest.approx(expected)


def test_signs_and_signals_weigh() -> None:
    t, _, _ = cases.batch(2)
    advantage = torch.randn_like(t.reward)
    weighted = SignWeights(2.0, 0.5)(advantage, t.mask, t)
    for a, w in zip(advantage.flatten().tolist(), weighted.flatten().tolist(), strict=True):
        assert w == pytest.approx(a * (2.0 if a > 0 else 0.5))
    t.signals["kept"] = torch.rand_like(t.reward)
    assert torch.equal(SignalMask("kept")(advantage, t), t.signals["kept"])


@pytest.mark.parametrize(
    "make",
    [
        lambda: Mean(alone="none"),
        lambda: ZeroVariance("all of them"),
        lambda: KL(estimator="k9"),
    ],
)
def test_unknown_words_are_named(make) -> None:
    with pytest.raises(ConfigError, match=r"known|allowed|one of"):
        make()


def test_a_changed_setting_shows_in_the_name() -> None:
    assert str(SignWeights(negative=0.5)) == "SignWeights(negative=0.5)"
    assert str(dataclasses.replace(SignWeights(2.0), positive=1.0)) == "SignWeights"
