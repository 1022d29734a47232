"""Files of mapped rows: what comes back, runs on them, and files that are refused."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from algorithms import ALGORITHMS
from experiments.__main__ import main
from experiments.settings import build_config
from mbrl.data import check, load, save_npz, save_rows
from mbrl.data.fingerprint import fingerprint
from mbrl.errors import ConfigError, DataError
from mbrl.networks import normaliser
from mbrl.types import Dataset, Transitions
from tests.small import CONFIGS


def same(left: Transitions, right: Transitions) -> None:
    for name in left.__dataclass_fields__:
        a, b = getattr(left, name), getattr(right, name)
        assert (a is None) == (b is None), name
        if a is not None:
            assert a.dtype == b.dtype and torch.equal(a, b), name


@pytest.mark.parametrize("discrete", [False, True])
def test_bit_for_bit(discrete: bool, pendulum: Dataset, cartpole: Dataset, tmp_path: Path) -> None:
    data = cartpole if discrete else pendulum
    rows = data.transitions
    count = len(rows)
    extra: dict[str, Any] = {
        "duration": torch.rand(count) + 0.5,
        "next_known": torch.rand(count) < 0.9,
        "state": torch.randn(count, 5, dtype=torch.float64),
    }
    if discrete:
        masks = torch.ones(count, 2, dtype=torch.bool)
        extra |= {"action_mask": masks, "next_action_mask": masks}
    for given in (data, data.with_transitions(replace(rows, **extra))):
        again = load(save_rows(given, tmp_path / "deep" / "x.rows"))
        same(given.transitions, again.transitions)
        assert again.spec == data.spec and fingerprint(again) == fingerprint(given)
        assert [f.name for f in (tmp_path / "deep").iterdir()] == ["x.rows"]


def test_parts_are_one_dataset(pendulum: Dataset, tmp_path: Path) -> None:
    rows = pendulum.transitions
    cuts = [0, *[b for _, b in rows.episodes()]]
    parts = (
        pendulum.with_transitions(rows.select(slice(a, b)))
        for a, b in zip(cuts, cuts[1:], strict=False)
    )
    again = load(save_rows(parts, tmp_path / "x.rows"))
    same(rows.select(slice(0, cuts[-1])), again.transitions)


@pytest.mark.parametrize("name", ["iql", "edac", "td3_bc", "rebrac", "mopo"])
def test_updates_are_those_of_rows_in_memory(
    name: str, pendulum: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights end in the same bits, with statistics that are streamed over several blocks."""
    monkeypatch.setattr(normaliser, "BLOCK", 300)
    mapped = load(save_rows(pendulum, tmp_path / "x.rows"))
    agents = []
    for data in (pendulum, mapped):
        config = build_config(name, CONFIGS[name])
        if hasattr(config, "normalise_obs"):
            config = replace(config, normalise_obs=True)
        agent: Any = ALGORITHMS[name][0](data.spec, config, seed=3)
        agents.append(agent.fit(data, 12, callbacks=[]))
    states = [{k: m.state_dict() for k, m in agent.modules.items()} for agent in agents]
    for module, weights in states[0].items():
        for key, value in weights.items():
            assert torch.equal(value, states[1][module][key]), f"{module}.{key}"


def test_a_run_takes_them(tmp_path: Path, pendulum: Dataset) -> None:
    save_rows(pendulum, tmp_path / "x.rows")
    save_npz(pendulum, tmp_path / "x.npz")
    scores = []
    for file in ("x.rows", "x.npz"):
        out = tmp_path / file.replace(".", "-")
        words = ["run", "bc", str(tmp_path / file), "--steps", "20", "--out", str(out)]
        assert main([*words, "--eval-episodes", "1", "--final-episodes", "2"]) == 0
        scores.append((out / "evaluations.npz").read_bytes())
    assert scores[0] == scores[1]


def test_import_and_export_write_them(tmp_path: Path, pendulum: Dataset) -> None:
    save_npz(pendulum, tmp_path / "x.npz")
    source = str(tmp_path / "x.npz")
    assert main(["data", "import", source, "--out", str(tmp_path / "a.rows")]) == 0
    out = str(tmp_path / "b.rows")
    assert main(["data", "export", source, "--format", "rows", "--out", out]) == 0
    for name in ("a.rows", "b.rows"):
        same(load(tmp_path / name).transitions, pendulum.transitions)


def test_values_are_looked_at_by_check(tmp_path: Path, pendulum: Dataset) -> None:
    path = save_rows(pendulum, tmp_path / "x.rows")
    assert not [f for f in check(path) if f.severity == "error"]
    content = bytearray(path.read_bytes())
    place = len(content) - 2 * len(pendulum) - 4
    content[place : place + 4] = b"\x00\x00\xc0\x7f"  # the last number of the last row: NaN
    path.write_bytes(bytes(content))
    (found,) = [f for f in check(path) if f.severity == "error"]
    assert "is not finite" in found.message and "of rows 0 to" in found.message


def test_damaged_files_are_refused(tmp_path: Path, pendulum: Dataset) -> None:
    path = save_rows(pendulum, tmp_path / "x.rows")
    content = path.read_bytes()
    for damaged, words in (
        (content[:-1], "cut off or damaged"),
        (content[:40], "cut off inside its description"),
        (b"PK" + content, "not a file of mapped rows"),
        (content.replace(b'"version": 1, "spec"', b'"version": 9, "spec"'), "version 9"),
        (content.replace(b'"reward"', b'"rewerd"'), "no dataset has"),
        (content.replace(b'"format"', b'"farmat"'), "cannot be read"),
        (b"", "empty"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=words):
            load(path)


def test_what_cannot_be_written_is_refused(
    tmp_path: Path, pendulum: Dataset, cartpole: Dataset
) -> None:
    rows = pendulum.transitions
    broken = rows.reward.clone()
    broken[5] = float("nan")
    for parts, words in (
        ([], "no rows"),
        ([pendulum, cartpole], "differs in its task or columns"),
        ([pendulum.with_transitions(rows.select(slice(0, 7)))], "inside an episode"),
        ([pendulum.with_transitions(replace(rows, reward=broken))], "not finite"),
    ):
        with pytest.raises(DataError, match=words):
            save_rows(parts, tmp_path / "x.rows")
    with pytest.raises(DataError, match=r"ends in \.rows"):
        save_rows(pendulum, tmp_path / "x.npz")
    assert list(tmp_path.iterdir()) == []


def test_options_that_would_change_rows_are_refused(
    tmp_path: Path, pendulum: Dataset, cartpole: Dataset
) -> None:
    path = save_rows(pendulum, tmp_path / "x.rows")
    with pytest.raises(ConfigError, match="leave out clip_actions"):
        load(path, clip_actions=True)
    with pytest.raises(DataError, match="it has"):
        load(path, spec="CartPole-v1")
    more = replace(cartpole.spec, num_actions=3)
    three = save_rows(replace(cartpole, spec=more), tmp_path / "three.rows")
    with pytest.raises(DataError, match=r"num_actions\) \(4, 1, 3\), task 'CartPole-v1' has"):
        load(three, spec=cartpole.spec)
    two = save_rows(cartpole, tmp_path / "two.rows")
    assert load(two, spec=more).spec.num_actions == 3


PEAK = """
import sys
from experiments.__main__ import main
from experiments.bench.peer_programs import peak
status = main(sys.argv[1:])
print("peak", peak(), file=sys.stderr)
sys.exit(status)
"""


def peak(*words: str) -> float:
    """Peak resident size in MB of a process that runs the command line."""
    done = subprocess.run(
        [sys.executable, "-c", PEAK, *words],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    return float(done.stderr.rpartition("peak")[2])


@pytest.mark.long
def test_ten_million_rows_train_within_their_size_and_100_mb(
    tmp_path: Path, pendulum: Dataset
) -> None:
    rows, spans = pendulum.transitions, pendulum.transitions.episodes()
    draw = torch.Generator().manual_seed(0)

    def parts(count: int) -> Any:
        made = 0
        while made < count:
            order = torch.randint(len(spans), (250,), generator=draw).tolist()
            index = torch.cat([torch.arange(*spans[i]) for i in order])
            made += len(index)
            yield pendulum.with_transitions(rows.select(index))

    small = save_rows(parts(10_000), tmp_path / "small.rows")
    large = save_rows(parts(10_000_000), tmp_path / "large.rows")
    common = ("--steps", "300", "--eval-every", "0", "--final-episodes", "1")
    sizes = []
    for path in (small, large):
        out = str(tmp_path / path.stem)
        sizes.append(peak("run", "iql", str(path), *common, "--out", out))
    size = large.stat().st_size / 2**20
    print(f"file {size:.0f} MB, peak {sizes[1]:.0f} MB; {sizes[0]:.0f} MB with a small file")
    checked = [peak("data", "check", str(path)) for path in (small, large)]
    print(f"checked: peak {checked[1]:.0f} MB; {checked[0]:.0f} MB with a small file")
    large.unlink()
    assert sizes[1] < sizes[0] + size + 100
    assert checked[1] < checked[0] + size + 16 * 10_000_000 / 2**20 + 100
