"""Writes clinic.csv, a made-up log: patients whose lactate rises by itself and falls with the dose,
treated by staff who look at lactate alone, round their doses and differ from shift to shift."""

import csv
import sys

import numpy as np


def rows(patients: int, seed: int):
    rng = np.random.default_rng(seed)
    for number in range(patients):
        ward, weight = rng.choice(["ICU", "ED"]), rng.normal(75, 12)
        sensitivity = (1.6 if ward == "ICU" else 0.8) * 75 / weight
        lactate = rng.uniform(1.5, 4.0)
        for hour in range(0, 48, 4):
            shift = rng.normal(0, 0.25)  # who is on duty
            dose = float(np.clip(round(0.35 * (lactate - 1.5) + 0.3 + shift, 1), 0, 2))
            missing = rng.random() < 0.03
            after = lactate + 0.5 - sensitivity * dose + rng.normal(0, 0.15)
            crisis = after > 6 or after < 0.2
            yield {
                "patient": f"P{number:04d}", "hour": hour, "ward": ward,
                "weight kg": round(weight, 1), "lactate": "" if missing else round(lactate, 2),
                "dose": dose, "crisis": int(crisis),
            }  # fmt: skip
            lactate = after
            if crisis:
                break


if __name__ == "__main__":
    path = sys.argv[1] if len(sys.argv) > 1 else "clinic.csv"
    table = list(rows(patients=400, seed=0))
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, table[0])
        writer.writeheader()
        writer.writerows(table)
    print(f"{len(table)} rows in {path}")
