"""The workload that samples windows: how many products it takes."""

import dataclasses
import json

import pytest
import torch

from experiments.__main__ import main
from experiments.bench import windows as bench_windows
from experiments.bench import workloads as bench_workloads
from world_models import TrajectoryDiffusion


@pytest.mark.long
def test_products_of_a_window_are_counted_and_fewer_steps_compared(tmp_path, capsys):
    """Of a U-Net of one level, 8 wide: two convolutions of width 3 over 32 steps, and the layers of
    the noise level; two steps of Heun's method are three evaluations."""
    config = dataclasses.replace(bench_windows.WIDE, levels=1)
    _, work = bench_windows.sampling(bench_workloads.SPEC, config, "heun", 128)
    network = TrajectoryDiffusion(
        bench_workloads.SPEC, dataclasses.replace(config, width=8)
    ).network
    products = 0
    for part in network.modules():
        if isinstance(part, torch.nn.Conv1d):
            products += 32 * part.weight.numel()
        elif isinstance(part, torch.nn.Linear):
            products += part.weight.numel()
    assert work(True) == pytest.approx(2e-9 * 3 * products)
    assert work(False) > 255 * work(True) / 3
    names = ("windows_heun_small", "windows_few_small")
    out = tmp_path / "r.json"
    assert main(["bench", "--quick", "--workloads", *names, "--out", str(out)]) == 0
    for result in json.loads(out.read_text())["workloads"].values():
        assert result["of_products"] > 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "windows_heun_small" in shown and "times as fast" in shown
