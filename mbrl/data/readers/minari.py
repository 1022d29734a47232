"""Our own reader of Minari folders (h5py and json; pyarrow for its arrow format): one folder a
dataset with data/metadata.json and the episodes, T + 1 observations each."""

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mbrl.data.cards import spec_of_task
from mbrl.data.columns import Columns, Options
from mbrl.data.locate import homes
from mbrl.data.readers.files import file_hash, reading, require_own
from mbrl.data.readers.named import Source
from mbrl.data.task_spec import given_spec
from mbrl.errors import DataError
from mbrl.types import Provenance, Spec

LEAVES = ("observations", "actions", "rewards", "terminations", "truncations")


def read_minari(name: str, options: Options) -> Source:
    """The dataset with Minari's id `name`, e.g. `mujoco/hopper/medium-v0`."""
    for home in homes("minari"):
        data = home / name / "data"
        if (data / "metadata.json").is_file():
            return read_minari_folder(data, f"minari/{name}", options)
    places = "\n".join(f"    {home / name / 'data'}" for home in homes("minari"))
    raise DataError(
        f"minari/{name} is not on this machine; looked in\n{places}\nFetch it with\n"
        f"    pip install 'minari[hf]' && minari download {name}\n"
        "and call again; reading needs no minari package"
    )


def read_minari_folder(data: Path, card: str, options: Options) -> Source:
    """A Minari data folder (the one that holds metadata.json)."""
    meta = _metadata(data / "metadata.json")
    spaces = {k: _space(data, meta, k) for k in ("observation_space", "action_space")}
    kind = str(meta.get("data_format", "hdf5"))
    if kind == "hdf5":
        path = data / "main_data.hdf5"
        episodes = _hdf5_episodes(path)
        sha256 = file_hash(path)
    elif kind == "arrow":
        episodes, sha256 = _arrow_episodes(data), _folder_hash(data)
    else:
        raise DataError(f"{data}: data_format {kind!r} is not known; allowed: hdf5, arrow")
    columns = _join(data, episodes, spaces["action_space"])
    rows = len(columns.need("reward"))
    for name, count in (("steps", rows), ("episodes", len(episodes))):
        total = meta.get(f"total_{name}", count)
        if type(total) is not int:
            raise DataError(f"{data}: total_{name} in metadata.json is {total!r}, not a count")
        if total != count:
            raise DataError(
                f"{data}: metadata.json announces {total} {name}, there are {count}; the download "
                "may be incomplete"
            )
    licence = meta.get("license") or meta.get("licence")
    provenance = Provenance(
        card=card, sha256=sha256, licence=str(licence) if licence else "not stated",
        recipe=str(meta.get("algorithm_name") or "") or None,
    )  # fmt: skip
    spec = given_spec(options)
    if spec is None:
        with reading(data / "metadata.json", "Minari metadata"):
            spec = _spec(card, meta, spaces)
        known = spec_of_task(spec.task)
        if spec.reference_returns is None and known is not None:
            spec = replace(spec, reference_returns=known.reference_returns)
            columns = columns.with_notes(f"scored by this library's returns for {spec.task}")
    return Source(columns, spec, provenance, options)


def _folder_hash(data: Path) -> str:
    """One digest of the names and contents of all files of an arrow dataset."""
    digest = hashlib.sha256()
    for path in sorted(data.rglob("*")):
        if path.is_file():
            digest.update(f"{path.relative_to(data)} {file_hash(path)}\n".encode())
    return digest.hexdigest()


def _metadata(path: Path) -> dict[str, Any]:
    with reading(path, "JSON"):
        values = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise DataError(f"{path} must hold one JSON object")
        return values


def _space(data: Path, meta: dict[str, Any], key: str) -> dict[str, Any]:
    """A space as Minari serialises it; only flat boxes and discrete actions can be used."""
    with reading(data / "metadata.json", "Minari metadata"):
        value = meta.get(key)
        space: dict[str, Any] = json.loads(value) if isinstance(value, str) else value or {}
        kind = space.get("type")
        if kind in ("Dict", "Tuple"):
            parts = space.get("subspaces", {})
            names = list(parts) if isinstance(parts, dict) else range(len(parts))
            raise DataError(
                f"{data}: the {key} is a {kind} of {', '.join(map(str, names))}. This library "
                "works on vectors: flatten it (gymnasium's FlattenObservation), write the arrays "
                "with numpy.savez and load that file"
            )
        shape = space.get("shape", [])
        if kind not in ("Box", "Discrete") or (kind == "Box" and len(shape) != 1):
            raise DataError(
                f"{data}: the {key} is {kind} with shape {shape}; vectors (Box) and, for actions, "
                "Discrete can be used"
            )
        if kind == "Discrete" and key == "observation_space":
            raise DataError(f"{data}: observations are Discrete; encode them as vectors first")
        return space


def _spec(card: str, meta: dict[str, Any], spaces: dict[str, Any]) -> Spec:
    env: dict[str, Any] = {}
    if meta.get("env_spec"):
        raw = meta["env_spec"]
        env = dict(json.loads(raw) if isinstance(raw, str) else raw)
    scores = [meta.get(k) for k in ("ref_min_score", "ref_max_score")]
    known = [float(v) for v in scores if isinstance(v, int | float)]
    options = {k: v for k, v in (env.get("kwargs") or {}).items() if k != "render_mode"}
    common: dict[str, Any] = {
        "task": str(env.get("id") or card),
        "task_options": options if env.get("id") else {},
        "obs_dim": int(spaces["observation_space"]["shape"][0]),
        "max_episode_steps": env.get("max_episode_steps"),
        "reference_returns": (known[0], known[1]) if len(known) == 2 else None,
    }
    action = spaces["action_space"]
    if action["type"] == "Discrete":
        return Spec(num_actions=int(action["n"]), **common)
    low, high = (tuple(float(v) for v in action[k]) for k in ("low", "high"))
    return Spec(action_dim=int(action["shape"][0]), action_low=low, action_high=high, **common)


def _hdf5_episodes(path: Path) -> list[dict[str, np.ndarray]]:
    import h5py

    with reading(path, "HDF5"), h5py.File(path, "r") as file:
        require_own(path, file)
        names = [n for n in file if str(n).startswith("episode_")]
        names.sort(key=lambda name: int(name.split("_")[1]))
        groups = [file[name] for name in names]
        for name, group in zip(names, groups, strict=True):
            missing = [leaf for leaf in LEAVES if leaf not in group]
            if missing:
                raise DataError(f"{path}: {name} has no {', '.join(missing)}")
        return [{leaf: np.asarray(g[leaf][()]) for leaf in LEAVES} for g in groups]


def _arrow_episodes(data: Path) -> list[dict[str, np.ndarray]]:
    """One folder an episode; the rows of the last step repeat nothing and are cut off."""
    folders = [entry for entry in os.scandir(data) if entry.is_dir() and entry.name.isdigit()]
    episodes = []
    with reading(data, "arrow"):
        import pyarrow.dataset as dataset

        for folder in sorted(folders, key=lambda entry: int(entry.name)):
            table = dataset.dataset(
                folder.path, format="arrow", ignore_prefixes=["_", ".", "metadata.json"]
            ).to_table()
            missing = [leaf for leaf in LEAVES if leaf not in table.column_names]
            if missing:
                raise DataError(f"{folder.path} has no {', '.join(missing)}")
            values = {leaf: _column(table.column(leaf)) for leaf in LEAVES}
            episodes.append({k: v if k == "observations" else v[:-1] for k, v in values.items()})
    return episodes


def _flags(data: Path, name: str, values: np.ndarray) -> np.ndarray:
    bad = (values != 0) & (values != 1)
    if bad.any():
        row = int(np.argmax(bad))
        raise DataError(f"{data}: {name} is {values[row]} in row {row}; flags must be 0 or 1")
    return values.astype(bool)


def _column(column: Any) -> np.ndarray:
    values = column.to_numpy()
    return np.stack(list(values)) if values.dtype == object and len(values) else values


def _join(
    data: Path, episodes: list[dict[str, np.ndarray]], action_space: dict[str, Any]
) -> Columns:
    if not episodes:
        raise DataError(f"{data}: there are no episodes")
    for number, episode in enumerate(episodes):
        steps = len(episode["rewards"])
        lengths = {leaf: len(episode[leaf]) - (leaf == "observations") for leaf in LEAVES}
        if steps == 0 or set(lengths.values()) != {steps}:
            raise DataError(
                f"{data}: episode {number} must have T + 1 observations and T >= 1 of everything "
                f"else, got { ({k: len(v) for k, v in episode.items()}) }"
            )
    with reading(data, "Minari"):
        parts = {leaf: [episode[leaf] for episode in episodes] for leaf in LEAVES}
        action = np.concatenate(parts["actions"])
        if action_space["type"] == "Discrete":
            action = action - int(action_space.get("start", 0))
        truncated, terminated = (
            _flags(data, name, np.concatenate(parts[name]))
            for name in ("truncations", "terminations")
        )
        last = np.cumsum([len(reward) for reward in parts["rewards"]]) - 1
        early = terminated | truncated
        early[last] = False
        if early.any():
            raise DataError(f"{data}: row {int(early.argmax())} ends an episode in its middle")
        truncated[last] |= ~terminated[last]  # an episode cut by the end of the recording
        return Columns(
            obs=np.concatenate([obs[:-1] for obs in parts["observations"]]),
            next_obs=np.concatenate([obs[1:] for obs in parts["observations"]]),
            action=action,
            reward=np.concatenate(parts["rewards"]),
            terminated=terminated,
            truncated=truncated,
            present=LEAVES,
        )
