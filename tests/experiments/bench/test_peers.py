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
    rate = peer_programs.window(lambda: calls.append(1), 7, 0.01)
    assert rate == pytest.approx(7 * len(calls) / 0.01, rel=0.5)
