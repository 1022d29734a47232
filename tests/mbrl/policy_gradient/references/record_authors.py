"""Records what authors' own functions make of the test batches: losses and gradients, numbers only.

    python -m tests.mbrl.policy_gradient.references.record_authors SOURCES VERL [RECIPE ...]

writes authors.json beside this file; with recipes only theirs, and the others stay. SOURCES holds
checkouts of the repositories below, each at owner/name; VERL is an unpacked wheel of verl 0.9.1,
whose losses finish what repositories have only advantages for. Functions, or lines of one, are
taken out of their files one by one, since most files import a whole training system.
"""

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import torch

from mbrl.policy_gradient import RECIPES
from tests.mbrl.policy_gradient.references import (
    authors_again,
    authors_answers,
    authors_inside,
    authors_turns,
)
from tests.mbrl.policy_gradient.references.batches import arrays
from tests.mbrl.policy_gradient.references.extract import Sources
from tests.mbrl.policy_gradient.references.record_verl import HERE, SEEDS, load


def main() -> None:
    torch.set_default_dtype(torch.float64)
    sources = Sources(Path(sys.argv[1]), load(Path(sys.argv[2])))
    file, only = HERE / "authors.json", sys.argv[3:]
    found: dict[str, Any] = {"seeds": list(SEEDS), "recipes": {}}
    done = set[str]()
    if only:
        found = json.loads(file.read_text())
    parts = (authors_inside, authors_answers, authors_turns, authors_again)
    for case in itertools.chain.from_iterable(part.cases(sources) for part in parts):
        assert case.recipe in RECIPES, case.recipe
        if only and case.recipe not in only:
            continue
        records = []
        for seed in SEEDS:
            b = arrays(case.batch, seed)
            value = case.loss(b)
            gradient = torch.autograd.grad(value, b["log_prob"])[0]
            rounded = [[float(f"{x:.10g}") for x in row] for row in gradient.tolist()]
            loss = value.item() if case.valued else None
            records.append({"loss": loss, "gradient": rounded})
        entry = {"source": case.source, "batch": case.batch, "given": case.given}
        entry["records"] = records
        found["recipes"][case.recipe] = entry
        print(case.recipe, case.source)
        done.add(case.recipe)
        if done == set(only):  # the other checkouts need not be there
            break
    file.write_text(json.dumps(found, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
