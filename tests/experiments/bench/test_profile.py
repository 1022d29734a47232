"""The profile of a workload."""

import json

import pytest
import torch

from experiments.__main__ import main
from experiments.bench import profile as bench_profile
from mbrl.native.build import library


@pytest.mark.long
def test_the_profile_says_where_the_time_goes(tmp_path, capsys):
    out = tmp_path / "r.json"
    arguments = ["bench", "--quick", "--profile", "--workloads", "recurrent", "--out", str(out)]
    assert main(arguments) == 0
    shares = json.loads(out.read_text())["workloads"]["recurrent"]["profile"]
    assert sum(shares.values()) == pytest.approx(1.0) and min(shares.values()) >= 0
    largest = "native_layer_norm" if library() is None else "compiled passes"
    assert largest in capsys.readouterr().out
    a, small = torch.randn(2, 600, 600), torch.randn(10)

    def step() -> None:
        for _ in range(3):
            torch.bmm(a, a)
            torch.exp(small)

    result = bench_profile.shares(step, 0.05)
    assert list(result)[:2] == [
        "matrix products",
        "exp",
    ]  # by size; the rest is bookkeeping
    assert result["matrix products"] > 0.5 > result["exp"]
    assert set(result) >= {"other operations", bench_profile.OUTSIDE}
