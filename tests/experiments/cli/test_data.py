"""The `data` verb: every subcommand prints what a person needs and leaves with the right status."""

import json

import numpy as np
import pytest

from experiments.cli.data import main as data_main
from mbrl import tasks
from mbrl.data import from_arrays, load, local_target, save_npz
from mbrl.errors import ConfigError, DataError
from tests.conftest import random_dataset


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LONGREACH_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def arrays(rows=6):
    obs = np.random.default_rng(0).normal(size=(rows + 1, 3)).astype(np.float32)
    last = np.arange(rows) == rows - 1
    return {
        "obs": obs[:-1],
        "next_obs": obs[1:].copy(),
        "action": np.linspace(-1.9, 1.9, rows)[:, None],
        "reward": np.ones(rows),
        "terminated": np.zeros(rows, bool),
        "truncated": last,
    }


def run(capsys, *arguments):
    status = data_main(list(arguments))
    return status, capsys.readouterr().out


def test_list_and_info(capsys):
    save_npz(from_arrays(**arrays(), spec="Pendulum-v1"), local_target("pendulum", "medium"))
    status, text = run(capsys, "list")
    assert status == 0 and "D4RL" in text and "pendulum" in text
    _, text = run(capsys, "list", "swimmer")
    assert "collect swimmer --tiers random" in text
    _, text = run(capsys, "list", "minari")
    assert "minari download mujoco/hopper/medium-v0" in text
    _, text = run(capsys, "info", "d4rl/hopper-medium-v2")
    for part in ("Hopper-v4", "CC-BY-4.0", "3234.3", "sha256", "hopper_medium-v2.hdf5"):
        assert part in text
    with pytest.raises(ConfigError, match="hopper-medium-v2"):
        run(capsys, "info", "d4rl/hoper-medium-v2")


def test_check_lists_findings_and_its_status_says_whether_the_data_can_be_used(capsys, home):
    values = arrays()
    np.savez(home / "good.npz", **values)
    status, text = run(capsys, "check", str(home / "good.npz"), "--task", "Pendulum-v1")
    assert status == 0 and "6 transitions, 1 episodes" in text
    values["action"][2] = 5.0
    values["next_obs"][3] += 1.0
    np.savez(home / "bad.npz", **values)
    status, text = run(capsys, "check", str(home / "bad.npz"), "--task", "Pendulum-v1")
    assert status == 1 and text.count("error:") == 2
    merged = {k: v for k, v in arrays().items() if k not in ("terminated", "truncated")}
    np.savez(home / "done.npz", **merged, done=arrays()["truncated"])
    status, text = run(capsys, "check", str(home / "done.npz"), "--task", "Pendulum-v1")
    assert status == 1 and "merged" in text
    options = ("--task", "Pendulum-v1", "--done-means", "by-length", "--horizon", "6")
    assert run(capsys, "check", str(home / "done.npz"), *options)[0] == 0


def test_import_writes_a_file_that_loads(capsys, home):
    np.savez(home / "mine.npz", **arrays())
    status, text = run(capsys, "import", str(home / "mine.npz"), "--task", "Pendulum-v1")
    assert status == 0 and "written to" in text
    data = load(home / "data/imported/mine.npz")
    assert data.spec.task == "Pendulum-v1" and len(data) == 6
    with pytest.raises(DataError, match=r"end the name in \.npz"):
        run(capsys, "import", str(home / "mine.npz"), "--task", "Pendulum-v1", "--out", "x.hdf5")
    # Again is again; another file of that name is not written over it.
    assert run(capsys, "import", str(home / "mine.npz"), "--task", "Pendulum-v1")[0] == 0
    (home / "other").mkdir()
    np.savez(home / "other/mine.npz", **arrays())
    with pytest.raises(DataError, match=r"has the rows of .*mine\.npz; give --out"):
        run(capsys, "import", str(home / "other/mine.npz"), "--task", "Pendulum-v1")


def test_fetch_finds_what_is_here_and_says_how_to_record_what_is_not(capsys):
    save_npz(from_arrays(**arrays(), spec="Pendulum-v1"), local_target("pendulum", "medium"))
    status, text = run(capsys, "fetch", "pendulum/medium")
    assert status == 0 and "medium.npz" in text
    with pytest.raises(DataError, match="collect swimmer --tiers expert"):
        run(capsys, "fetch", "swimmer/expert")


def log_of_a_clinic(path):
    rng = np.random.default_rng(0)
    lines = ["patient;hour;heart rate;lactate;dose;died"]
    for patient in range(8):
        for hour in range(5):
            numbers = f"{rng.normal(80, 9):.2f};{rng.uniform(1, 4):.2f};{rng.uniform():.3f}"
            lines.append(f"P{patient};{hour};{numbers};{patient % 2}")
    path.write_text("\n".join(lines).replace(".", ","), encoding="utf-8-sig")
    return str(path)


CLINIC = (
    "--obs", "heart rate,lactate", "--action", "dose", "--reward=-fill(next(lactate), 0)",
    "--episode", "patient", "--order", "hour", "--terminated", "last and died == 1",
)  # fmt: skip


def test_a_log_of_ones_own_is_imported_checked_and_named_to_the_end(home, capsys):
    source = log_of_a_clinic(home / "log.csv")
    status, text = run(capsys, "import", source, *CLINIC, "--out", str(home / "mine.npz"))
    assert status == 0 and "4 last rows of episodes that were cut are dropped" in text
    data = load(home / "mine.npz")
    assert data.spec.obs_names == ("heart rate", "lactate") and len(data) == 36
    status, text = run(capsys, "info", str(home / "mine.npz"))
    assert status == 0 and "heart rate:" in text and "log.csv" in text
    status, text = run(capsys, "check", source, *CLINIC)
    assert status == 0 and "actions: dose" in text and "nearest observations" in text
    status, text = run(capsys, "check", source, *CLINIC, "--json")
    result = json.loads(text)
    assert status == 0 and result["usable"] and result["coverage"]["neighbours"] == 10


def test_all_that_is_wrong_with_a_log_is_said_at_once(home, capsys):
    source = log_of_a_clinic(home / "log.csv")
    wrong = ["--obs", "heart rate", "--action", "dose", "--reward", "gain", "--order", "hour"]
    status, text = run(capsys, "check", source, *wrong, "--episode", "patient",
                       "--terminated", "died")  # fmt: skip
    assert status == 1
    assert "no column 'gain'" in text and "say --terminated 'last and `died`'" in text
    status, text = run(capsys, "check", source)
    assert status == 1 and "heart rate" in text and "--obs" in text


def test_replay_compares_a_task_with_its_data(capsys, home):
    names = ("pendulum/medium", "cartpole/medium")
    policies = ("--policies", "random", "--episodes", "20")
    status, text = run(capsys, "replay", *names, *policies)
    assert status == 0 and "10,000 of 10,000" in text.replace("\n", " ")
    assert "Pendulum-v1: random: -1" in text and "CartPole-v1: random: " in text
    values = arrays()
    values["action"] = values["action"].clip(-1, 1)
    np.savez(home / "mine.npz", **values)
    with pytest.raises(ConfigError, match="no task 'file' here; give --task"):
        run(capsys, "replay", str(home / "mine.npz"))
    with pytest.raises(DataError, match="in which state Pendulum-v1 was"):  # off the circle
        run(capsys, "replay", str(home / "mine.npz"), "--task", "Pendulum-v1")
    with pytest.raises(ConfigError, match="policy is 'best'"):
        run(capsys, "replay", "pendulum/medium", "--policies", "best")


def test_replay_says_what_the_rows_do_not_tell(home, capsys):
    """Both logs are of one id, with options of their own: the values of policies are of both."""
    names = []
    for share in (0.2, 0.5):
        logged = random_dataset(f"Pendulum-v1,random_actions={share}", 30)
        names.append(str(save_npz(logged, home / f"{share}.npz")))
    policies = ("--policies", "random", "--episodes", "2")
    status, text = run(capsys, "replay", *names, *policies)
    assert status == 0
    assert text.count("compared without random_actions, which rows do not record") == 2
    assert "Pendulum-v1,random_actions=0.2: random: -" in text
    assert "Pendulum-v1,random_actions=0.5: random: -" in text


def test_export_with_rows_that_stay(home, capsys):
    """Six rows in a maze, an episode each, with one more behind each."""
    task = tasks.make("PointMaze-medium-v0")
    size = task.spec.obs_dim
    values = arrays() | {"action": np.zeros((6, task.spec.action_dim))}
    values |= {"obs": np.zeros((6, size)), "next_obs": np.ones((6, size)), "boundaries": "cut"}
    given, made = home / "maze.npz", home / "stays.npz"
    save_npz(from_arrays(**values, spec=task.spec), given)
    words = ("--out", str(made))
    with pytest.raises(ConfigError, match="does not end in a format; give --format: minari"):
        run(capsys, "export", str(given), "--out", str(home / "stays"))
    assert run(capsys, "export", str(given), "--last-states", *words)[0] == 0
    assert load(made).spec.goal == task.spec.goal
    rows = load(made).transitions
    assert len(rows) == len(load(given).transitions) + 6
    assert (rows.obs[1::2] == 1).all() and (rows.next_obs == 1).all()
