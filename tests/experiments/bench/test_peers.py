"""Peers: how they are run or given up."""

import json
import sys
from pathlib import Path

import pytest

from experiments.__main__ import main
from experiments.bench import peer_programs
from experiments.bench import peers as bench_peers


def test_a_peer_that_cannot_run_says_why_and_the_recorded_figure_stands(
    tmp_path, monkeypatch, capsys
):
    def refuse(name: str, home: Path) -> Path:
        raise bench_peers.PeerError("no network")

    monkeypatch.setattr(bench_peers, "environment", refuse)
    arguments = ["bench", "--quick", "--peers", "--workloads", "rollout_single", "--no-memory"]
    assert main([*arguments, "--out", str(tmp_path / "r.json")]) == 0
    record = json.loads((tmp_path / "r.json").read_text())["workloads"]["rollout_single"]
    assert record["not_run"] == {"mbrl-lib": "no network"} and record["peers"] == {}
    shown = " ".join(capsys.readouterr().out.split())
    assert "no network" in shown and "mbrl-lib" in shown


@pytest.mark.long
def test_a_peer_answers_in_its_own_process_and_a_dead_one_is_reported(monkeypatch, tmp_path):
    running = bench_peers.Running("stable-baselines3", "sac", tmp_path)
    assert running.version and running.rate(0.01) > 0
    running.process.kill()
    with pytest.raises(bench_peers.PeerError, match="stopped"):
        running.rate(0.01)
    monkeypatch.setattr(bench_peers, "environment", lambda name, home: Path(sys.executable))
    with pytest.raises(bench_peers.PeerError, match="stopped"):
        bench_peers.Running("mbrl-lib", "no such workload, and no mbrl here", tmp_path)


def test_a_window_counts_what_was_done(monkeypatch):
    """By a clock that a step moves on by two seconds: five steps, of seven units each, in ten."""
    clock = [100.0]
    monkeypatch.setattr(peer_programs.time, "perf_counter", lambda: clock[0])
    calls: list[int] = []

    def step() -> None:
        calls.append(1)
        clock[0] += 2.0

    assert peer_programs.window(step, 7, 9.0) == 7 * 5 / 10.0 and len(calls) == 5
