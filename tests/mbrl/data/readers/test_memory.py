"""Datasets from arrays, tables and replay buffers, and the compact file."""

import numpy as np
import pandas as pd
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer

from mbrl.data import check, from_arrays, from_dataframe, from_sb3, load, local_target, save_npz
from mbrl.data.cards import Checksum
from mbrl.data.readers.named import checksum_findings
from mbrl.errors import ConfigError, DataError
from mbrl.types import Provenance, Spec

FIELDS = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
SPEC = Spec("Pendulum-v1", obs_dim=3, action_low=(-2.0,), action_high=(2.0,), max_episode_steps=200)


def episodes(lengths=(5, 7, 4), ends="tru", seed=0):
    """Arrays of three episodes; `ends` says t(erminated), r(unning, truncated) or u(nended)."""
    rng = np.random.default_rng(seed)
    parts = []
    for length, end in zip(lengths, ends, strict=True):
        obs = rng.normal(size=(length + 1, 3)).astype(np.float32)
        last = np.arange(length) == length - 1
        parts.append(
            {
                "obs": obs[:-1],
                "action": rng.uniform(-2, 2, (length, 1)).astype(np.float32),
                "reward": rng.normal(size=length).astype(np.float32),
                "next_obs": obs[1:],
                "terminated": last & (end == "t"),
                "truncated": last & (end == "r"),
            }
        )
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def equal(a, b):
    return all(torch.equal(getattr(a, f), getattr(b, f)) for f in FIELDS)


def test_from_arrays_keeps_values_and_ends_the_last_episode():
    arrays = episodes()
    data = from_arrays(**arrays, spec=SPEC)
    rows = data.transitions
    assert rows.episodes() == [(0, 5), (5, 12), (12, 16)]
    assert rows.terminated.nonzero().flatten().tolist() == [4]
    assert rows.truncated.nonzero().flatten().tolist() == [11, 15]
    assert torch.equal(rows.obs, torch.from_numpy(arrays["obs"]))
    assert any("mid-episode" in note for note in data.provenance.notes)
    arrays["obs"][:] = 0
    assert rows.obs.abs().sum() > 0  # no memory is shared with the caller


def test_from_arrays_takes_tensors_lists_and_columns():
    arrays = episodes()
    as_columns = {k: v[:, None] if v.ndim == 1 else v for k, v in arrays.items()}
    first = from_arrays(**arrays, spec=SPEC).transitions
    tensors = {k: torch.from_numpy(v) for k, v in arrays.items()}
    assert equal(first, from_arrays(**as_columns, spec=SPEC).transitions)
    assert equal(first, from_arrays(**tensors, spec="Pendulum-v1").transitions)
    assert equal(first, from_arrays(**{k: v.tolist() for k, v in arrays.items()}, spec=SPEC)
                 .transitions)  # fmt: skip


def test_merged_done_is_refused_until_the_caller_says_what_it_means():
    arrays = episodes(ends="ttt")
    done = arrays.pop("terminated")
    arrays.pop("truncated")
    with pytest.raises(DataError, match=r"merged `done`.*by-length"):
        from_arrays(**arrays, done=done, spec=SPEC)
    ended = from_arrays(**arrays, done=done, spec=SPEC, done_means="terminated").transitions
    assert ended.terminated.tolist() == done.tolist() and not ended.truncated.any()
    by_length = from_arrays(**arrays, done=done, spec=SPEC, done_means="by-length", horizon=7)
    assert by_length.transitions.truncated.nonzero().flatten().tolist() == [11]
    assert by_length.transitions.terminated.nonzero().flatten().tolist() == [4, 15]


def test_done_beside_one_of_the_flags_gives_the_other():
    arrays = episodes(ends="trt")
    done = arrays["terminated"] | arrays["truncated"]
    both = from_arrays(**arrays, spec=SPEC).transitions
    for name in ("terminated", "truncated"):
        given = {k: v for k, v in arrays.items() if k != name}
        assert equal(both, from_arrays(**given, done=done, spec=SPEC).transitions)


def test_without_next_obs_terminal_rows_stay_and_cut_rows_without_one_are_dropped():
    arrays = episodes(ends="trt")
    obs = arrays["obs"]
    arrays.pop("next_obs")
    arrays["reward"][15] = -100.0  # of the last row, which terminates
    rows = from_arrays(**arrays, spec=SPEC).transitions
    kept = [i for i in range(16) if i != 11]
    assert torch.equal(rows.obs, torch.from_numpy(obs[kept]))
    after = [i if i in (4, 15) else i + 1 for i in kept]
    assert torch.equal(rows.next_obs, torch.from_numpy(obs[after]))
    assert rows.reward[-1] == -100
    assert rows.episodes() == [(0, 5), (5, 11), (11, 15)]
    assert rows.terminated.nonzero().flatten().tolist() == [4, 14]
    assert rows.truncated.nonzero().flatten().tolist() == [10]
    assert torch.equal(rows.next_known, ~rows.terminated)
    assert len(rows.with_known_next()) == 13  # what a model is fitted to


def test_discrete_by_spec_by_dtype_and_by_word():
    arrays = episodes()
    arrays["action"] = np.arange(16) % 3
    found = from_arrays(**arrays)
    assert found.spec.num_actions == 3 and found.transitions.action.dtype == torch.int64
    assert found.transitions.action.shape == (16,)
    arrays["action"] = (np.arange(16) % 2).astype(np.float64)
    assert not from_arrays(**arrays).spec.discrete  # integers written as floats are continuous
    assert from_arrays(**arrays, discrete=True).spec.num_actions == 2
    arrays["action"] = np.arange(16) % 3
    two = Spec("x", obs_dim=3, num_actions=2)
    with pytest.raises(DataError, match=r"action is 2 in row 2.*actions 0 to 1"):
        from_arrays(**arrays, spec=two)
    with pytest.raises(DataError, match="bounds of the actions are not known"):
        from_arrays(**arrays, discrete=False)


def test_actions_beyond_the_bounds_name_row_value_and_bound_and_can_be_clipped():
    arrays = episodes()
    arrays["action"][6, 0] = 2.5
    with pytest.raises(DataError, match=r"action\[0\] is 2\.5 in row 6.*\[-2, 2\].*clip_actions"):
        from_arrays(**arrays, spec=SPEC)
    clipped = from_arrays(**arrays, spec=SPEC, clip_actions=True)
    assert clipped.transitions.action[6, 0] == 2.0
    assert any("clipped" in note for note in clipped.provenance.notes)


def test_broken_boundaries_name_the_row_and_the_share_and_can_be_cut():
    arrays = episodes(ends="trt")
    arrays["truncated"][:] = False
    with pytest.raises(DataError, match=r"next_obs of row 11 is not obs of row 12.*1 of 16 rows"):
        from_arrays(**arrays, spec=SPEC)
    cut = from_arrays(**arrays, spec=SPEC, boundaries="cut").transitions
    assert cut.episodes() == [(0, 5), (5, 12), (12, 16)]
    order = np.random.default_rng(1).permutation(16)
    with pytest.raises(DataError, match="shuffled"):
        from_arrays(**{k: v[order] for k, v in arrays.items()}, spec=SPEC)


def test_unknown_options_and_values_are_config_errors():
    with pytest.raises(ConfigError, match="clip_actions"):
        from_arrays(**episodes(), clip_action=True)
    with pytest.raises(ConfigError, match="next-row"):
        load("pendulum/medium", next_obs="row")


def test_compact_file_round_trips_bit_for_bit(tmp_path):
    state = np.random.default_rng(2).normal(size=(16, 4))
    origin = Provenance(card="pendulum/medium", recipe="by hand", notes=("a note",))
    data = from_arrays(**episodes(ends="trt"), spec=SPEC, state=state, provenance=origin)
    path = save_npz(data, tmp_path / "deep" / "x.npz")
    back = load(path)
    assert equal(data.transitions, back.transitions)
    assert torch.equal(back.transitions.state, torch.from_numpy(state))
    assert back.spec == SPEC and back.provenance.recipe == "by hand"
    assert back.provenance.notes == data.provenance.notes
    again = save_npz(data, tmp_path / "y.npz")
    assert again.read_bytes() == path.read_bytes()
    assert [f.name for f in path.parent.iterdir()] == ["x.npz"]  # no temporary file is left


def test_compact_file_keeps_both_flags_on_one_row_and_discrete_actions(tmp_path):
    arrays = episodes(ends="trt")
    arrays["truncated"][4] = True
    arrays["action"] = np.arange(16) % 2
    data = from_arrays(**arrays)
    assert equal(data.transitions, load(save_npz(data, tmp_path / "x.npz")).transitions)


def test_compact_file_refuses_what_it_cannot_hold(tmp_path):
    data = from_arrays(**episodes(ends="trt"), spec=SPEC)
    rows = data.transitions
    broken = data.with_transitions(rows.select(torch.tensor([0, 1, 3, 4])))
    with pytest.raises(DataError, match="row 1 is not obs of row 2"):
        save_npz(broken, tmp_path / "x.npz")
    with pytest.raises(DataError, match="no end flag"):
        save_npz(data.with_transitions(rows.select(slice(0, 3))), tmp_path / "x.npz")
    with pytest.raises(DataError, match="no rows"):
        save_npz(data.with_transitions(rows.select(slice(0, 0))), tmp_path / "x.npz")


def test_local_tiers_load_by_name_and_medium_expert_is_concatenated(tmp_path, monkeypatch):
    monkeypatch.setenv("LONGREACH_DATA", str(tmp_path))
    for seed, tier in enumerate(("medium", "expert")):
        data = from_arrays(**episodes(ends="rrr", seed=seed), spec=SPEC)
        save_npz(data, local_target("pendulum", tier))
    medium, both = load("pendulum/medium"), load("pendulum/medium-expert")
    assert len(both) == 2 * len(medium) and both.provenance.card == "pendulum/medium-expert"
    assert both.spec.reference_returns == (-1228.1, -138.8)  # the card's, not the file's
    assert both.transitions.episodes()[3] == (16, 21)
    # only the note, one a part, that the files are not the recorded ones
    notes = check("pendulum/medium-expert")
    assert [f.severity for f in notes] == ["note", "note"]
    assert all("recorded on another machine" in f.message for f in notes)
    with pytest.raises(DataError, match="collect swimmer --tiers random"):
        load("swimmer/random")
    with pytest.raises(DataError, match="no natural medium policy"):
        load("invertedpendulum/medium")
    with pytest.raises(DataError, match="collect swimmer --tiers medium"):
        load("swimmer/medium-expert")


def test_a_local_file_of_another_task_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("LONGREACH_DATA", str(tmp_path))
    data = from_arrays(**episodes(ends="rrr"), spec=SPEC)
    save_npz(data, local_target("reacher", "medium"))
    with pytest.raises(DataError, match=r"obs has 3 entries.*Reacher-v5.*10"):
        load("reacher/medium")


def test_a_differing_checksum_is_a_note_for_local_files_and_an_error_for_published_ones(tmp_path):
    path = tmp_path / "x.npz"
    path.write_bytes(b"abc")
    wanted = Checksum("md5", "0" * 32)
    assert checksum_findings(path, wanted, "1" * 64, strict=False)[0].severity == "note"
    assert checksum_findings(path, wanted, "1" * 64, strict=True)[0].severity == "error"
    assert checksum_findings(path, Checksum("sha256", "1" * 64), "1" * 64, strict=True) == ()


def table(arrays):
    columns = {f"obs_{i}": arrays["obs"][:, i] for i in range(3)}
    columns |= {f"next_obs_{i}": arrays["next_obs"][:, i] for i in range(3)}
    columns |= {"action_0": arrays["action"][:, 0]}
    columns |= {k: arrays[k] for k in ("reward", "terminated", "truncated")}
    return pd.DataFrame(columns)


def test_tables_in_memory_csv_and_parquet_agree(tmp_path):
    arrays = episodes(ends="trt")
    frame = table(arrays)
    direct = from_arrays(**arrays, spec=SPEC).transitions
    assert equal(direct, from_dataframe(frame, spec=SPEC).transitions)
    frame.to_csv(tmp_path / "x.csv", index=False)
    frame.to_parquet(tmp_path / "x.parquet")
    assert equal(direct, load(tmp_path / "x.csv", spec=SPEC).transitions)
    assert equal(direct, load(tmp_path / "x.parquet", spec=SPEC).transitions)


def test_an_episode_column_ends_episodes_and_must_be_in_order():
    frame = table(episodes(ends="ttt")).drop(columns=["truncated"])
    frame["terminated"] = [i == 4 for i in range(16)]
    frame["episode"] = [0] * 5 + [1] * 7 + [2] * 4
    rows = from_dataframe(frame, spec=SPEC).transitions
    assert rows.truncated.nonzero().flatten().tolist() == [11, 15]
    with pytest.raises(DataError, match="comes back in row"):
        from_dataframe(pd.concat([frame[4:], frame[:4]]), spec=SPEC)
    frame.loc[7, "terminated"] = True
    with pytest.raises(DataError, match="row 7 ends an episode"):
        from_dataframe(frame, spec=SPEC)


def fill(buffer, steps, ends, low=-1.0, high=1.0, seed=0):
    """Drive a buffer like an off-policy algorithm does; `ends` maps (step, env) to d or t(imeout).
    Observations count up: entry 0 is 100 env + step."""
    rng = np.random.default_rng(seed)
    n = buffer.n_envs
    obs = np.stack([np.full(3, 100.0 * e, np.float32) for e in range(n)])
    for step in range(steps):
        following = obs + 1
        marks = [ends.get((step, e)) for e in range(n)]
        infos = [{"TimeLimit.truncated": mark == "t"} for mark in marks]
        action = rng.uniform(low, high, (n, 1)).astype(np.float32)
        done = np.array([mark is not None for mark in marks])
        buffer.add(obs, following, action, np.full(n, float(step)), done, infos)
        obs = np.where(done[:, None], following + 50, following).astype(np.float32)


def replay(size, n_envs, **options):
    box = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    return ReplayBuffer(size, box, spaces.Box(-2, 2, (1,), np.float32), n_envs=n_envs, **options)


def test_replay_buffers_are_unrolled_env_by_env_with_timeouts_told_apart():
    buffer = replay(40, 2)
    fill(buffer, 8, {(2, 0): "d", (4, 1): "t"})
    data = from_sb3(buffer)
    rows = data.transitions
    assert rows.episodes() == [(0, 3), (3, 8), (8, 13), (13, 16)]
    assert rows.terminated.nonzero().flatten().tolist() == [2]
    assert rows.truncated.nonzero().flatten().tolist() == [7, 12, 15]
    assert rows.obs[8, 0] == 100.0 and rows.obs[0, 0] == 0.0
    scaled = torch.from_numpy(buffer.actions[:8, 0])
    assert torch.allclose(rows.action[:8], 2 * scaled)  # stored scaled, given in the task's units
    assert data.spec.action_high == (2.0,)


def test_replay_buffers_that_wrapped_start_at_the_oldest_row():
    buffer = replay(12, 2)  # six rows an environment
    fill(buffer, 9, {(5, 0): "d"})
    rows = from_sb3(buffer).transitions
    assert rows.reward.tolist() == [3, 4, 5, 6, 7, 8] * 2
    assert rows.episodes() == [(0, 3), (3, 6), (6, 12)]


def test_replay_buffers_in_task_units_and_merged_flags():
    buffer = replay(40, 1)
    fill(buffer, 8, {}, low=-2, high=2)
    with pytest.raises(DataError, match="scaled_actions=False"):
        from_sb3(buffer)
    rows = from_sb3(buffer, scaled_actions=False).transitions
    assert torch.equal(rows.action, torch.from_numpy(buffer.actions[:8, 0]))
    merged = replay(40, 2, handle_timeout_termination=False)
    fill(merged, 8, {(2, 0): "d", (4, 1): "t"})
    with pytest.raises(DataError, match="handle_timeout_termination=False"):
        from_sb3(merged)
    split = from_sb3(merged, done_means="by-length", horizon=5).transitions
    assert split.terminated.nonzero().flatten().tolist() == [2]
    assert split.truncated.nonzero().flatten().tolist() == [7, 12, 15]


def test_replay_buffers_that_cannot_be_used_say_why():
    with pytest.raises(DataError, match="empty"):
        from_sb3(replay(10, 1))
    shared = replay(10, 1, optimize_memory_usage=True, handle_timeout_termination=False)
    fill(shared, 4, {})
    with pytest.raises(DataError, match="optimize_memory_usage=False"):
        from_sb3(shared)


def test_discrete_replay_buffers():
    box = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    buffer = ReplayBuffer(10, box, spaces.Discrete(3), n_envs=1)
    for i in range(4):
        obs = np.full((1, 3), float(i))
        buffer.add(obs, obs + 1, np.array([i % 3]), np.zeros(1), np.array([i == 3]), [{}])
    rows = from_sb3(buffer).transitions
    assert rows.action.tolist() == [0, 1, 2, 0] and rows.terminated.tolist()[-1]
