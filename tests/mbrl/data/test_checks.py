"""Malformed files of every format: each is refused with a `DataError`, never with a traceback of a
library and never by loading something. The good file beside each fault must load."""

import io
import json
import pickle
import random
import zipfile
from collections import Counter

import h5py
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mbrl.data import check, from_arrays, from_dataframe, load, save_npz
from mbrl.errors import DataError
from mbrl.types import Spec

SPEC = Spec("Pendulum-v1", obs_dim=3, action_low=(-2.0,), action_high=(2.0,))
FORMATS = ("npz", "hdf5", "csv", "parquet", "compact", "neorl", "minari")


def good_arrays(rng):
    """Two to four episodes, T of 3 to 9."""
    lengths = rng.integers(3, 10, rng.integers(2, 5))
    chains = [rng.normal(size=(n + 1, 3)) for n in lengths]
    rows, last = int(lengths.sum()), np.cumsum(lengths) - 1
    terminated, truncated = np.zeros(rows, bool), np.zeros(rows, bool)
    terminated[last[::2]], truncated[last[1::2]] = True, True
    return {
        "obs": np.concatenate([c[:-1] for c in chains]),
        "action": rng.uniform(-2, 2, (rows, 1)),
        "reward": rng.normal(size=rows),
        "next_obs": np.concatenate([c[1:] for c in chains]),
        "terminated": terminated,
        "truncated": truncated,
    }


def bad_value(arrays, rng):
    name = rng.choice(["obs", "action", "reward", "next_obs"])
    arrays[name].reshape(-1)[rng.integers(arrays[name].size)] = rng.choice([np.nan, np.inf, 1e60])


def missing_key(arrays, rng):
    del arrays[rng.choice(["obs", "action", "reward"])]


def no_flags(arrays, rng):
    arrays.pop("terminated")
    if rng.random() < 0.5:
        arrays.pop("truncated")


def merged_done(arrays, rng):
    arrays["done"] = arrays.pop("terminated") | arrays.pop("truncated")


def shuffled_rows(arrays, rng):
    order = np.roll(np.arange(len(arrays["reward"])), 1)
    rng.shuffle(order[1:])
    order = order[::-1] if (np.diff(order) == 1).all() else order
    for name in arrays:
        arrays[name] = arrays[name][order]


def wrong_next_obs(arrays, rng):
    inside = np.nonzero(~(arrays["terminated"] | arrays["truncated"]))[0]
    arrays["next_obs"][rng.choice(inside)] += 0.1


def lost_end(arrays, rng):
    ends = np.nonzero(arrays["terminated"] | arrays["truncated"])[0]
    row = ends[rng.integers(len(ends) - 1)]
    arrays["terminated"][row] = arrays["truncated"][row] = False


def beyond_bounds(arrays, rng):
    arrays["action"][rng.integers(len(arrays["action"])), 0] = rng.choice([-2.1, 2.1, 50.0])


def bad_flag(arrays, rng):
    arrays["terminated"] = arrays["terminated"].astype(float)
    arrays["terminated"][rng.integers(len(arrays["terminated"]))] = rng.choice([2.0, -1.0, 0.5])


def text_column(arrays, rng):
    name = rng.choice(["reward", "terminated"])
    arrays[name] = arrays[name].astype(str)
    arrays[name][rng.integers(len(arrays[name]))] = "many"


def wrong_dims(arrays, rng):
    name = rng.choice(["obs", "action"])
    wider = np.concatenate([arrays[name], arrays[name]], axis=1)
    arrays[name] = wider
    if name == "obs":
        arrays["next_obs"] = np.concatenate([arrays["next_obs"]] * 2, axis=1)


def no_rows(arrays, rng):
    for name in arrays:
        arrays[name] = arrays[name][:0]


def other_length(arrays, rng):
    name = rng.choice(list(arrays))
    arrays[name] = arrays[name][: -rng.integers(1, 3)]


def three_dimensions(arrays, rng):
    arrays["obs"] = np.repeat(arrays["obs"][:, None], 2, axis=1)


def two_columns(arrays, rng):
    name = rng.choice(["reward", "terminated"])
    arrays[name] = np.stack([arrays[name]] * 2, axis=1)


def complex_numbers(arrays, rng):
    arrays["reward"] = arrays["reward"] + 1j


IN_TABLES = (bad_value, missing_key, no_flags, merged_done, shuffled_rows, wrong_next_obs, lost_end,
             beyond_bounds, bad_flag, text_column, wrong_dims, no_rows)  # fmt: skip
IN_ARRAYS = (*IN_TABLES, other_length, three_dimensions, two_columns, complex_numbers)


def write_arrays(path, kind, arrays):
    if kind == "npz":
        np.savez_compressed(path, **arrays)
    elif kind == "hdf5":
        with h5py.File(path, "w") as file:
            for name, array in arrays.items():
                text = array.dtype.kind == "U"
                file[name] = array.astype(h5py.string_dtype()) if text else array
    else:
        columns = {}
        for name, array in arrays.items():
            wide = name in ("obs", "next_obs", "action")
            parts = {f"{name}_{i}": c for i, c in enumerate(array.T)} if wide else {name: array}
            columns |= parts
        frame = pd.DataFrame(columns)
        frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path)


def write_neorl(path, arrays, rng, broken):
    """As NeoRL stores it, under the name that `load("neorl/hopper-low")` looks for."""
    ends = arrays["terminated"] | arrays["truncated"]
    tile = {"obs": (1, 4), "next_obs": (1, 4), "action": (1, 3)}
    values = {k: np.tile(arrays[k] / 2, n).astype(np.float32) for k, n in tile.items()}
    values["reward"] = arrays["reward"][:, None]
    values["done"] = ends[:, None].astype(np.float32)
    values["index"] = (np.nonzero(ends)[0][:-1] + 1).astype(np.float32)
    if broken:
        fault = rng.choice(["index", "nan", "missing", "bounds", "dims", "next", "text", "length"])
        if fault == "index":
            values["index"] = values["index"][::-1] + (1 if len(values["index"]) == 1 else 0)
        elif fault == "nan":
            values["reward"][rng.integers(len(values["reward"]))] = np.nan
        elif fault == "missing":
            del values[rng.choice(["obs", "action", "reward", "next_obs", "done"])]
        elif fault == "bounds":
            values["action"][rng.integers(len(ends)), 1] = 1.5
        elif fault == "dims":
            values["obs"], values["next_obs"] = values["obs"][:, 1:], values["next_obs"][:, 1:]
        elif fault == "next":
            values["next_obs"] = np.roll(values["next_obs"], 1, axis=0)
        elif fault == "text":
            values["done"] = values["done"].astype(str)
        else:
            values["reward"] = values["reward"][1:]
    np.savez(path, **values)


def write_minari(folder, arrays, rng, broken):
    folder.mkdir(exist_ok=True)
    ends = np.nonzero(arrays["terminated"] | arrays["truncated"])[0] + 1
    fault = rng.choice(
        ["leaf", "length", "nan", "middle", "total", "json", "space", "dims", "bounds", "format"]
    )
    fault = fault if broken else ""
    box = {"type": "Box", "shape": [3 + (fault == "dims")], "low": [-9.0] * 3, "high": [9.0] * 3}
    act = {"type": "Box", "shape": [1], "low": [-2.0], "high": [2.0]}
    meta = {
        "total_steps": len(arrays["reward"]) + (fault == "total"),
        "data_format": "arrows" if fault == "format" else "hdf5",
        "observation_space": json.dumps({"type": "Text"} if fault == "space" else box),
        "action_space": json.dumps(act),
    }
    text = json.dumps(meta)
    (folder / "metadata.json").write_text(text[:-9] if fault == "json" else text)
    chosen = rng.integers(len(ends))
    with h5py.File(folder / "main_data.hdf5", "w") as file:
        for number, (a, b) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
            obs = np.concatenate([arrays["obs"][a:b], arrays["next_obs"][b - 1 : b]])
            values = {
                "observations": obs, "actions": arrays["action"][a:b].copy(),
                "rewards": arrays["reward"][a:b].copy(),
                "terminations": arrays["terminated"][a:b].copy(),
                "truncations": arrays["truncated"][a:b].copy(),
            }  # fmt: skip
            if number == chosen:
                if fault == "leaf":
                    del values[rng.choice(list(values))]
                elif fault == "length":
                    name = rng.choice(list(values))
                    values[name] = values[name][1:]
                elif fault == "nan":
                    values["rewards"][0] = np.nan
                elif fault == "middle":
                    values["terminations"][0] = True
                elif fault == "bounds":
                    values["actions"][0] = -3.0
            for name, value in values.items():
                file[f"episode_{number}/{name}"] = value


def break_compact(path, rng):
    with np.load(path) as loaded:
        values = {name: loaded[name] for name in loaded.files}
    fault = rng.choice(
        ["key", "lengths", "zero", "negative", "float", "flags", "meta", "spec", "nan", "huge",
         "version", "origin", "bounds", "scalar"]
    )  # fmt: skip
    if fault == "key":
        del values[rng.choice(["obs", "action", "reward", "terminated", "truncated"])]
    elif fault in ("lengths", "zero", "negative", "huge"):
        change = {"lengths": 1, "zero": -values["lengths"][0], "negative": -99, "huge": 2**55}
        values["lengths"][0] += change[fault]
    elif fault == "float":
        values["lengths"] = values["lengths"].astype(float)
    elif fault == "flags":
        values["terminated"] = values["truncated"] = np.zeros_like(values["terminated"])
    elif fault == "nan":
        values["obs"][0, 0] = np.nan
    elif fault == "bounds":
        values["action"][0] = 9.0
    elif fault == "scalar":
        values["reward"] = np.float32(1.0)
    else:
        meta = json.loads(str(values["meta"]))
        if fault == "spec":
            meta["spec"]["obs_dim"] = rng.choice([0, 7]).item()
        elif fault == "version":
            meta["version"] = 99
        elif fault == "origin":
            meta["provenance"] = []
        values["meta"] = np.array(json.dumps(meta)[: -5 if fault == "meta" else None])
    np.savez(path, **values)


def damage(path, kind, rng):
    """Faults of the file itself."""
    content = path.read_bytes()
    options = ["empty", "page", "noise", "pickle", "cut"]
    fault = rng.choice(options)
    if fault == "empty":
        path.write_bytes(b"")
    elif fault == "page":
        path.write_bytes(b"<html><body>404, not here</body></html>\n" * 30)
    elif fault == "noise":
        path.write_bytes(rng.bytes(int(rng.integers(1, 3000))))
    elif fault == "pickle":
        if kind in ("npz", "compact", "neorl"):
            pickled_npz(path, rng)
        else:
            path.write_bytes(pickle.dumps({"obs": [1.0, 2.0]}))
    elif kind == "csv":  # whole lines that are missing at the end cannot be noticed
        lines = content.splitlines(keepends=True)
        number = int(rng.integers(1, len(lines)))
        path.write_bytes(b"".join(lines[:number]) + lines[number].rsplit(b",", 2)[0] + b"\n")
    else:
        path.write_bytes(content[: int(rng.integers(1, len(content) - 1))])


class Bomb:
    """Unpickling this would be noticed."""

    def __reduce__(self):
        return (pytest.fail, ("a file was unpickled",))


def pickled_npz(path, rng):
    if rng.random() < 0.5:
        path.write_bytes(pickle.dumps(Bomb()))
        return
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.array([Bomb()], dtype=object), allow_pickle=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("obs.npy", buffer.getvalue())


def make(folder, kind, whole_file, rng, broken):
    """A file of `kind`, good or with one fault; what to load, and the spec to load it with."""
    arrays = good_arrays(rng)
    if kind == "minari":
        target = folder / "minari"
        write_minari(target, arrays, rng, broken and not whole_file)
        if broken and whole_file:
            damage(target / "main_data.hdf5", kind, rng)
        return target, None
    name = "Hopper-v3-low-1000-train-noise.npz"
    path = folder / (name if kind == "neorl" else f"x.{'npz' if kind == 'compact' else kind}")
    if kind == "neorl":
        write_neorl(path, arrays, rng, broken and not whole_file)
    elif kind == "compact":
        save_npz(from_arrays(**arrays, spec=SPEC), path)
        if broken and not whole_file:
            break_compact(path, rng)
    else:
        if broken and not whole_file:
            faults = IN_ARRAYS if kind in ("npz", "hdf5") else IN_TABLES
            faults[rng.integers(len(faults))](arrays, rng)
        write_arrays(path, kind, arrays)
    if broken and whole_file:
        damage(path, kind, rng)
    # a compact file describes its own task, NeoRL's is on the card
    spec = None if kind in ("compact", "neorl") else SPEC
    return ("neorl/hopper-low" if kind == "neorl" else path), spec


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LONGREACH_DATA", str(tmp_path))
    (tmp_path / "neorl").mkdir()
    return tmp_path


def examine(folder, kind, whole_file, seed, broken):
    rng = np.random.default_rng(seed)
    random.seed(seed)
    place = folder / "neorl" if kind == "neorl" else folder
    return make(place, kind, whole_file, rng, broken)


@pytest.mark.parametrize("kind", FORMATS)
def test_the_files_without_a_fault_load(folder, kind):
    for seed in range(5):
        target, spec = examine(folder, kind, False, seed, broken=False)
        data = load(target, spec=spec, verify=False, download=False)
        assert len(data) == len(data.transitions) > 5
        assert not [f for f in check(target, spec=spec, verify=False) if f.severity == "error"]


def test_at_least_two_hundred_malformed_files_are_each_a_data_error(folder):
    seen = Counter()

    @settings(
        max_examples=420,
        derandomize=True,  # the same files in every run
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
    @given(kind=st.sampled_from(FORMATS), whole=st.booleans(), seed=st.integers(0, 2**32 - 1))
    def each(kind, whole, seed):
        target, spec = examine(folder, kind, whole, seed, broken=True)
        with pytest.raises(DataError) as caught:
            load(target, spec=spec, verify=False, download=False)
        text = str(caught.value)
        assert type(caught.value) is DataError and len(text) > 20
        findings = check(target, spec=spec, verify=False, download=False)
        assert any(f.severity == "error" for f in findings), findings
        seen[kind] += 1

    each()
    assert sum(seen.values()) >= 200
    assert set(seen) == set(FORMATS) and min(seen.values()) >= 15, seen


def test_actions_that_never_occur_are_named():
    arrays = {
        "obs": np.random.default_rng(0).normal(size=(20, 2)),
        "reward": np.zeros(20),
        "terminated": np.arange(20) % 5 == 4,
    }
    gaps = from_arrays(**arrays, action=np.array([0, 2, 5, 0] * 5), horizon=9).provenance.notes
    assert any("discrete actions 0 to 5" in n and "never taken: 1, 3, 4" in n for n in gaps)
    full = from_arrays(**arrays, action=np.array([0, 1, 2, 0] * 5), horizon=9).provenance.notes
    assert not any("never taken" in n for n in full)


def test_observations_that_float32_brings_together_are_refused():
    rng = np.random.default_rng(0)
    arrays = good_arrays(rng)
    from_arrays(**arrays, spec=SPEC)
    for name in ("obs", "next_obs"):
        arrays[name][:, 1] += 1.7e9
    with pytest.raises(DataError, match=r"obs\[1\] lies near 1\.7e\+09 and varies by \d\.\d+ only"):
        from_arrays(**arrays, spec=SPEC)


@pytest.mark.parametrize("name", ["obs", "action", "reward"])
@pytest.mark.parametrize("kind", [np.float64, np.int64])
def test_numbers_that_32_bits_bring_together_are_refused(name: str, kind: type) -> None:
    rng = np.random.default_rng(0)
    arrays = good_arrays(rng) | {
        "boundaries": "cut",
        "action_low": -1e9,
        "action_high": 1e9,
        "discrete": False,
    }
    arrays[name] = (433_920_001 + 6 * rng.normal(size=arrays[name].shape)).astype(kind)
    message = "varies by .* 32-bit" if kind is np.float64 or name == "action" else "float32 would"
    with pytest.raises(DataError, match=message):
        from_arrays(**arrays)
    arrays[name] = (arrays[name] - 433_920_001).astype(np.float64)
    from_arrays(**arrays)


def test_blank_cells_of_whole_numbers_and_of_episodes_are_named(tmp_path) -> None:
    head = "obs_0,action_0,reward,terminated,episode\n"
    rows = ["70,0.1,1,0,A", "71,0.4,2,1,A", "80,0.5,0,0,B", "82,0.1,0,1,B"]
    for row, bad, message in (
        (1, "71,0.4,,1,A", "reward is not finite in row 1"),
        (2, ",0.5,0,0,B", "obs.* row 2"),
        (3, "82,0.1,0,1,", "episode is missing in row 3"),
    ):
        (tmp_path / "log.csv").write_text(head + "\n".join([*rows[:row], bad, *rows[row + 1 :]]))
        with pytest.raises(DataError, match=message):
            load(str(tmp_path / "log.csv"))


def test_columns_of_objects_and_dates_of_a_frame() -> None:
    frame = pd.DataFrame({"obs_0": [1.0, 2.0, 3.0], "action_0": [0.1, 0.2, 0.3], "episode": 0})
    frame["reward"] = np.array([1, 2, 3], dtype=object)
    frame["terminated"] = np.array([False, False, True], dtype=object)
    data = from_dataframe(frame, action_low=0.0, action_high=1.0)
    assert data.transitions.reward.tolist() == [1.0, 2.0, 3.0]
    assert data.transitions.terminated.tolist() == [False, False, True]
    frame["obs_0"] = pd.to_datetime(["2024-01-01", "2024-01-02", "2024-01-03"])
    with pytest.raises(DataError, match="obs_0 holds dates"):
        from_dataframe(frame, action_low=0.0, action_high=1.0)


def test_tensors_of_bfloat16_are_taken() -> None:
    arrays = good_arrays(np.random.default_rng(0))
    half = torch.from_numpy(arrays["obs"]).bfloat16()
    data = from_arrays(**arrays | {"obs": half}, boundaries="cut", spec=SPEC)
    assert torch.equal(data.transitions.obs, half.float())


def test_infinite_numbers_of_half_precision_are_refused() -> None:
    arrays = good_arrays(np.random.default_rng(0))
    half = {name: arrays[name].astype(np.float16) for name in ("obs", "reward")}
    good = from_arrays(**arrays | half, boundaries="cut", spec=SPEC)
    assert torch.equal(good.transitions.reward, torch.from_numpy(half["reward"]).float())
    for name, value in half.items():
        broken = value.copy()
        broken[2] = np.inf
        with pytest.raises(DataError, match=f"{name} is not finite in row 2"):
            from_arrays(**arrays | half | {name: broken}, boundaries="cut", spec=SPEC)


def test_arrays_of_the_other_byte_order_are_taken() -> None:
    arrays = good_arrays(np.random.default_rng(0))
    arrays["state"] = np.arange(2.0 * len(arrays["obs"])).reshape(-1, 2)
    swapped = {name: a.astype(a.dtype.newbyteorder()) for name, a in arrays.items()}
    ours, theirs = (from_arrays(**a, spec=SPEC).transitions for a in (arrays, swapped))
    for name in ("obs", "action", "reward", "state", "terminated"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
    assert theirs.state is not None and theirs.state.dtype == torch.float64
