"""Simglucose-v0 of NeoRL-2 as a batched torch simulator: basal insulin for virtual patients with
type-1 diabetes over a day, on the UVa/Padova model of 13 states."""

import csv
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from mbrl.errors import unknown_name
from mbrl.tasks.base import Step
from mbrl.tasks.common import check_dtype, continuous_action, uniform
from mbrl.tasks.glucose_model import SIZE, Patients, one_minute
from mbrl.tasks.references import REFERENCE_RETURNS
from mbrl.types import Spec

# What the observation shows of the patient, in its order
SHOWN = (
    "BW", "Fsnc", "Ib", "Km0", "Vi", "Vm0", "Vmx", "b", "d", "f", "k1", "k2", "ka1", "ka2", "kabs",
    "kd", "ke1", "ke2", "ki", "kmax", "kp1", "kp2", "kp3", "ksc", "m1", "m2", "m30", "m4", "p2u",
    "u2ss",
)  # fmt: skip
MEALS = {420: 45, 570: 10, 720: 70, 900: 10, 1080: 80, 1290: 10}  # minute of the day: grams
EATEN = 5  # grams a minute
GROUPS = {"train": range(1, 6), "test": range(6, 11)}  # numbers of the patients of each age
LOWEST, HIGHEST = 10.0, 600.0  # mg/dl, what the sensor can show
DAY = 1440  # minutes
RK4_STEPS = 4  # a minute


@cache
def patient_rows() -> tuple[dict[str, str], ...]:
    """The rows of glucose_patients.csv: the start state and the parameters of 30 virtual patients,
    from vpatient_params.csv of simglucose 0.2.11 (Jinyu Xie, 2018, MIT licence)."""
    with (Path(__file__).parent / "glucose_patients.csv").open(encoding="utf-8") as file:
        return tuple(csv.DictReader(file))


def table(rows: list[dict[str, str]], names: tuple[str, ...]) -> Tensor:
    """[len(names), len(rows)] float64."""
    return torch.tensor([[float(row[n]) for row in rows] for n in names], dtype=torch.float64)


def meal_plan() -> Tensor:
    """[1440] grams that are eaten in each minute of the day."""
    plan = torch.zeros(DAY, dtype=torch.float64)
    for begin, grams in MEALS.items():
        full, rest = divmod(grams, EATEN)
        plan[begin : begin + full] = EATEN
        plan[begin + full] = rest
    return plan


class Simglucose:
    """Simglucose-v0: hold the blood glucose of a diabetic near 113 mg/dl with a pump of basal
    insulin of 2.5 (a + 1) U/min, 3 minutes a step, for a day.

    State (float64 whatever `dtype` says): the patient's number, the minute of the day, the model's
    13 states, the content of the stomach (mg) when the last meal began, what was eaten of it (g),
    the last reading of the sensor, and what is shown of it. Observation: what is shown (mg/dl, the
    mean of the new reading and twice the one before) and 30 parameters of the patient. The same
    six meals come every day; the hour is hidden.

    The reward is 1 + (risk(before) - risk(after)) / 100 on the sensor, -15 at or below 40 mg/dl and
    0 at 600. The episode ends where the mean glucose of the three minutes leaves 40 to 600; the
    rule from observations alone (`terminates`), NeoRL-2's own for models, reads the sensor in its
    place, which falls later. `patients` "train" are the 15 of NeoRL-2's data, "test" the 15 others.
    """

    def __init__(
        self,
        *,
        patients: str = "train",
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        check_dtype("Simglucose-v0", dtype)
        if patients not in GROUPS:
            raise unknown_name("group of patients", patients, GROUPS)
        self.device, self.dtype = torch.device(device), dtype
        rows = [r for r in patient_rows() if int(r["patient"].split("#")[1]) in GROUPS[patients]]
        self.names = tuple(row["patient"] for row in rows)
        self._all = Patients(
            *(table(rows, (name,))[0].to(self.device) for name in Patients._fields)
        )
        self._start = table(rows, tuple(f"x{i}" for i in range(1, 14))).T.to(self.device)
        self._shown = table(rows, SHOWN).T.to(self.device)
        self._plan = meal_plan().to(self.device)
        self._begins = self._plan.bool() & ~self._plan.roll(1).bool()
        self.spec = Spec(
            task="Simglucose-v0",
            obs_dim=1 + len(SHOWN),
            action_dim=1,
            action_low=(-1.0,),
            action_high=(1.0,),
            max_episode_steps=480,
            reference_returns=REFERENCE_RETURNS.get("Simglucose-v0"),
        )

    def reset(self, count: int, generator: torch.Generator) -> Tensor:
        """States [count, 19]: a patient and a full hour, each as likely as the others."""
        draw = uniform(count, 0.0, 1.0, 2, generator).to(self.device)
        return self.start((draw[:, 0] * len(self.names)).long(), (draw[:, 1] * 24).long())

    def start(self, patient: Tensor, hour: Tensor) -> Tensor:
        """States [B, 19] of patients [B] (their places in `names`) at full hours [B]."""
        body = self._start[patient]
        clock = torch.stack([patient, 60 * hour], dim=-1).to(body)
        stomach = body[:, 0] + body[:, 1]
        reading = self._reading(body.T, patient).clamp(LOWEST, HIGHEST)
        rest = torch.stack([stomach, torch.zeros_like(stomach), reading, reading], dim=-1)
        return torch.cat([clock, body, rest], dim=-1)

    def observe(self, state: Tensor) -> Tensor:
        """[B, 31] in `dtype`."""
        shown = self._shown[state[:, 0].long()]
        return torch.cat([state[:, -1:], shown], dim=-1).to(self.dtype)

    def step(self, state: Tensor, action: Tensor) -> Step:
        """Three minutes of the model under a constant dose."""
        push = continuous_action("Simglucose-v0", action, 1)[:, 0].double().clamp(-1.0, 1.0)
        patient, clock = state[:, 0].long(), state[:, 1].long()
        p = Patients(*(values[patient] for values in self._all))
        insulin = pumped(2.5 * (push + 1)) * 6000 / p.BW  # pmol/kg/min
        body, before, eaten = state[:, 2 : 2 + SIZE].T, state[:, 15], state[:, 16]
        mean = torch.zeros_like(eaten)
        for _ in range(3):
            begins, bite = self._begins[clock], self._plan[clock]  # g
            before = torch.where(begins, body[0] + body[1], before)
            eaten = torch.where(begins, 0.0, eaten) + bite
            meal = before + 1000 * eaten  # mg
            body = one_minute(p, body, 1000 * bite, insulin, meal, RK4_STEPS)
            clock = (clock + 1) % DAY
            mean = mean + self._reading(body, patient) / 3
        reading = self._reading(body, patient).clamp(LOWEST, HIGHEST)
        shown = (2 * state[:, 17] + reading) / 3  # the sensor reads once in three minutes
        rest = torch.stack([before, eaten, reading, shown], dim=-1)
        now = torch.cat([state[:, :1], clock[:, None].double(), body.T, rest], dim=-1)
        ended = (mean < 40) | (mean > 600)
        return Step(now, self.observe(now), reward(state[:, -1], shown).to(self.dtype), ended)

    def state_from_obs(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Never possible: insulin, meals and the hour are hidden. The rows hold the starts, at
        midnight, of the patients whose weights are nearest."""
        weights = self._all.BW.to(obs)
        patient = (obs[:, 1:2] - weights).abs().argmin(dim=-1)
        state = self.start(patient.to(self.device), torch.zeros_like(patient))
        return state, torch.zeros(len(obs), dtype=torch.bool, device=self.device)

    def terminates(self, obs: Tensor, action: Tensor, next_obs: Tensor) -> Tensor:
        """The sensor is outside 40 to 600 mg/dl."""
        return (next_obs[:, 0] < 40) | (next_obs[:, 0] > 600)

    def _reading(self, body: Tensor, patient: Tensor) -> Tensor:
        """[B] glucose under the skin, mg/dl."""
        return body[12] / self._all.Vg[patient]


def pumped(basal: Tensor) -> Tensor:
    """`basal` (U/min) in whole increments of the pump, 0.05 pmol/min."""
    return (basal * 6000 / 0.05).round() * 0.05 / 6000


def risk(glucose: Tensor) -> Tensor:
    """Kovatchev's risk of `glucose` (mg/dl): 0 at 112.5, 100 at about 20 and 600."""
    return 10 * (1.509 * (glucose.log().pow(1.084) - 5.381)).square()


def reward(before: Tensor, after: Tensor) -> Tensor:
    """[B] reward of a step between two readings (mg/dl)."""
    value = 1 + (risk(before) - risk(after)) / 100
    value = torch.where(after <= 40, -15.0, value)
    return torch.where(after >= HIGHEST, 0.0, value)
