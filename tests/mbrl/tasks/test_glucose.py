"""The glucose simulator against scipy's integrator, the simglucose package, and its own rules."""

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.integrate import solve_ivp

from mbrl.errors import ConfigError
from mbrl.tasks import make
from mbrl.tasks.glucose import (
    GROUPS,
    MEALS,
    RK4_STEPS,
    Simglucose,
    meal_plan,
    patient_rows,
    pumped,
    reward,
    risk,
)
from mbrl.tasks.glucose_model import Patients, emptying, one_minute, slope

ROWS = [r for r in patient_rows() if int(r["patient"].split("#")[1]) in GROUPS["train"]]


def random_bodies(task: Simglucose, generator: torch.Generator) -> tuple[Patients, torch.Tensor]:
    """[13, 300] states around those of starts, with food in the stomach; some amounts below 0."""
    patient = torch.arange(300) % len(task.names)
    body = task.start(patient, torch.zeros(300, dtype=torch.long))[:, 2:15].T
    body = body * torch.empty(13, 300, dtype=torch.float64).uniform_(0.2, 2.0, generator=generator)
    food = torch.empty(3, 300, dtype=torch.float64).uniform_(0, 4e4, generator=generator)
    body = torch.cat([food, body[3:]])
    body[6] = torch.empty(300, dtype=torch.float64).uniform_(-50, 200, generator=generator)
    body[:, ::50] *= -1
    return Patients(*(values[patient] for values in task._all)), body


def test_the_day_has_six_meals_at_five_grams_a_minute() -> None:
    plan = meal_plan()
    assert float(plan.sum()) == sum(MEALS.values()) == 225
    assert float(plan.max()) == 5 and int((plan > 0).sum()) == 45
    assert plan[420:429].tolist() == [5.0] * 9 and plan[429] == plan[419] == 0


def test_pump_and_risk_in_closed_form() -> None:
    basal = torch.tensor([0.0, 1e-6, 5e-6, 5.0], dtype=torch.float64)
    torch.testing.assert_close(
        pumped(basal) * 6000 / 0.05, torch.tensor([0.0, 0, 1, 600_000]).double()
    )
    lowest = torch.tensor([np.exp(5.381 ** (1 / 1.084))], dtype=torch.float64)  # 112.5 mg/dl
    assert float(lowest) == pytest.approx(112.5, abs=0.1) and float(risk(lowest)) < 1e-20
    before, after = torch.tensor([100.0] * 4), torch.tensor([100.0, 40.0, 600.0, 50.0])
    r_50, r_100 = (10 * (1.509 * (np.log(g) ** 1.084 - 5.381)) ** 2 for g in (50.0, 100.0))
    expected = torch.tensor([1.0, -15.0, 0.0, float(1 + (r_100 - r_50) / 100)])
    torch.testing.assert_close(reward(before, after), expected)


def test_a_minute_agrees_with_a_tight_integrator() -> None:
    generator = torch.Generator().manual_seed(0)
    p, body = random_bodies(make("Simglucose-v0", dtype=torch.float64), generator)
    eaten = 5000.0 * (torch.arange(300) % 3 == 0).double()
    insulin = torch.empty(300, dtype=torch.float64).uniform_(0, 400, generator=generator)
    meal = (body[0] + body[1]).clamp(min=0) * 1.1

    def rates(_: float, y: np.ndarray) -> np.ndarray:
        now = torch.from_numpy(y.reshape(13, 300))
        return slope(p, now, eaten, insulin, meal).flatten().numpy()

    done = solve_ivp(rates, (0, 1), body.flatten().numpy(), "RK45", rtol=1e-8, atol=1e-8)
    exact = torch.from_numpy(done.y[:, -1].reshape(13, 300))
    kept = (body >= 0).all(dim=0)  # where nothing stands still the right side has no jumps
    error = (one_minute(p, body, eaten, insulin, meal, RK4_STEPS) - exact).abs()
    assert float((error / (1 + exact.abs()))[:, kept].max()) < 2e-4
    assert float((error[12] / exact[12])[kept].max()) < 5e-5  # what the sensor sees


def test_slopes_are_those_of_simglucose() -> None:
    theirs = pytest.importorskip("simglucose.patient.t1dpatient", exc_type=ImportError)
    task = make("Simglucose-v0", dtype=torch.float64)
    p, body = random_bodies(task, torch.Generator().manual_seed(1))
    bite, dose = 5.0, 0.03  # g/min, U/min
    before, taken = 2e4, 20.0  # mg, g
    meal = torch.full((300,), before + 1000 * taken, dtype=torch.float64)
    ours = slope(p, body, torch.full_like(meal, 1000 * bite), dose * 6000 / p.BW, meal)
    for i in range(300):
        params = theirs.T1DPatient.withName(task.names[i % 15])._params
        given = theirs.Action(insulin=dose, CHO=bite)
        change = theirs.T1DPatient.model(0, body[:, i].numpy(), given, params, before, taken)
        np.testing.assert_allclose(ours[:, i].numpy(), change, rtol=1e-9, atol=1e-9)


def test_an_empty_meal_leaves_the_stomach_at_its_fastest() -> None:
    task = make("Simglucose-v0")
    p, none = task._all, torch.zeros(15, dtype=torch.float64)
    assert torch.equal(emptying(p, none, none), p.kmax)
    full = torch.full((15,), 5e4, dtype=torch.float64)
    middle = emptying(p, (p.b + p.d) / 2 * full, full)
    assert bool((middle < p.kmax).all()) and bool((middle >= 0.9 * p.kmin).all())


def test_food_is_conserved_until_the_gut_absorbs_it() -> None:
    p, body = random_bodies(make("Simglucose-v0"), torch.Generator().manual_seed(2))
    still = torch.zeros(300, dtype=torch.float64)
    change = slope(p, body, still + 5000, still, still + 4e4)
    torch.testing.assert_close(change[:3].sum(dim=0), 5000 - p.kabs * body[2])


def test_starts_rest_under_their_basal_dose_before_a_meal() -> None:
    """`u2ss` (pmol/kg/min) is the dose that holds the start state: nothing moves until food."""
    task = make("Simglucose-v0", dtype=torch.float64)
    everyone = torch.arange(15)
    state = task.start(everyone, torch.zeros(15, dtype=torch.long))
    rest = torch.tensor([[float(row["u2ss"]) * float(row["BW"]) / 6000] for row in ROWS[:15]])
    seen = task.observe(state)
    for _ in range(100):
        step = task.step(state, rest.double() / 2.5 - 1)
        state = step.state
    assert float((step.obs[:, 0] - seen[:, 0]).abs().max()) < 1.5  # mg/dl
    torch.testing.assert_close(step.obs[:, 1:], seen[:, 1:])


def test_ends_by_the_mean_of_three_minutes_and_shows_the_sensor() -> None:
    task = make("Simglucose-v0", dtype=torch.float64)
    state = task.start(torch.arange(15), torch.full((15,), 2))
    ended = torch.zeros(15, dtype=torch.bool)
    for _ in range(200):
        before = state
        step = task.step(state, torch.ones(15, 1))  # 5 U/min
        state = step.state
        torch.testing.assert_close(step.obs[:, 0], (2 * before[:, 17] + state[:, 17]) / 3)
        torch.testing.assert_close(state[:, 17], (state[:, 14] / task._all.Vg).clamp(10, 600))
        by_sensor = task.terminates(task.observe(before), torch.ones(15, 1), step.obs)
        assert not (by_sensor & ~step.terminated).any()  # the sensor falls later
        ended |= step.terminated
    assert ended.all() and bool((step.reward == -15).all())


def test_groups_of_patients() -> None:
    train, test = make("Simglucose-v0"), make("Simglucose-v0", patients="test")
    assert len(set(train.names) | set(test.names)) == len(patient_rows()) == 30
    with pytest.raises(ConfigError, match="train"):
        make("Simglucose-v0", patients="all")
    obs = test.observe(test.reset(5, torch.Generator().manual_seed(0)))
    state, possible = test.state_from_obs(obs)
    assert not possible.any()
    torch.testing.assert_close(test.observe(state), obs)


def test_starts_draw_patients_and_hours_evenly() -> None:
    task = make("Simglucose-v0")
    state = task.reset(36_000, torch.Generator().manual_seed(0))
    counts = torch.bincount((24 * state[:, 0] + state[:, 1] / 60).long(), minlength=360)
    assert stats.chisquare(counts.numpy()).pvalue > 1e-4
