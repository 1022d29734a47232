"""The verb `bench`: the table, the record, and how peers are run or given up."""

import dataclasses
import json
import sys
from pathlib import Path

import pytest
import torch

from experiments.__main__ import main
from experiments.bench import measure
from experiments.bench import peers as bench_peers
from experiments.bench import profile as bench_profile
from experiments.bench import windows as bench_windows
from experiments.bench import workloads as bench_workloads
from world_models import TrajectoryDiffusion


def test_quick_measures_every_workload_and_writes_a_record(tmp_path, capsys):
    out = tmp_path / "a" / "record.json"
    threads = torch.get_num_threads()
    assert main(["bench", "--quick", "--out", str(out)]) == 0
    assert torch.get_num_threads() == threads
    record = json.loads(out.read_text())
    assert set(record["workloads"]) == set(measure.WORKLOADS)
    for result in record["workloads"].values():
        assert result["rate"] > 0 and len(result["windows"]) == measure.WINDOWS
        middle = (
            max(result["ceiling_before"].values()) + max(result["ceiling_after"].values())
        ) / 2
        assert result["share"] == pytest.approx(result["rate"] / middle)
    assert record["versions"]["torch"] == torch.__version__
    shown = capsys.readouterr().out
    assert "recorded" in shown and "quick" in shown


def test_one_workload_by_name_and_a_wrong_name(capsys):
    assert main(["bench", "--quick", "--workloads", "sac"]) == 0
    assert "model_fit" not in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["bench", "--workloads", "fast"])


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


def test_products_of_the_large_ensemble_are_counted():
    """Eight members of two layers 16 wide at 256 rows each: forward, and the gradients of weights
    and of every layer's input but the first; a held-out row is judged once in ten updates."""
    work = bench_workloads.WORKLOADS["ensemble_128"].work
    inputs, outputs = 17 + 6, 2 * (17 + 1)
    first, others = inputs * 16, 16 * 16 + 16 * outputs
    expected = 2e-9 * 8 * 256 * (2 * first + 3 * others)
    assert work is not None and work(True) == pytest.approx(expected, rel=1e-3)


def test_the_profile_says_where_the_time_goes(tmp_path, capsys):
    out = tmp_path / "r.json"
    arguments = ["bench", "--quick", "--profile", "--workloads", "ensemble_128", "--out", str(out)]
    assert main(arguments) == 0
    shares = json.loads(out.read_text())["workloads"]["ensemble_128"]["profile"]
    assert sum(shares.values()) == pytest.approx(1.0) and min(shares.values()) >= 0
    assert "native_layer_norm" in capsys.readouterr().out
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


def test_a_peer_that_cannot_run_says_why_and_the_recorded_figure_stands(
    tmp_path, monkeypatch, capsys
):
    def refuse(name: str, home: Path) -> Path:
        raise bench_peers.PeerError("no network")

    monkeypatch.setattr(bench_peers, "environment", refuse)
    arguments = ["bench", "--quick", "--peers", "--workloads", "rollout_single"]
    assert main([*arguments, "--out", str(tmp_path / "r.json")]) == 0
    record = json.loads((tmp_path / "r.json").read_text())["workloads"]["rollout_single"]
    assert record["not_run"] == {"mbrl-lib": "no network"} and record["peers"] == {}
    shown = " ".join(capsys.readouterr().out.split())
    assert "no network" in shown and "mbrl-lib" in shown


def test_a_peer_answers_in_its_own_process_and_a_dead_one_is_reported(monkeypatch, tmp_path):
    running = bench_peers.Running("stable-baselines3", "sac", tmp_path)
    assert running.version and running.rate(0.01) > 0
    running.process.kill()
    with pytest.raises(bench_peers.PeerError, match="stopped"):
        running.rate(0.01)
    monkeypatch.setattr(bench_peers, "environment", lambda name, home: Path(sys.executable))
    with pytest.raises(bench_peers.PeerError, match="stopped"):
        bench_peers.Running("mbrl-lib", "no such workload, and no mbrl here", tmp_path)


def test_a_window_counts_what_was_done():
    calls: list[int] = []
    rate = bench_peers.window(lambda: calls.append(1), 7, 0.01)
    assert rate == pytest.approx(7 * len(calls) / 0.01, rel=0.5)
