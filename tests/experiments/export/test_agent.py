"""Every algorithm's policy leaves the library and acts the same in onnxruntime, which none of this
code is part of."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("onnxscript", reason="the extra `onnx` is not installed")
import onnxruntime
from safetensors.numpy import load_file

import longreach as lr
from algorithms import ALGORITHMS, BC
from algorithms.neubay import NEUBAY
from experiments.export import agent as exporting
from experiments.export.agent import FILES, export
from experiments.export.fallback import describe_fallback, fallback_of
from experiments.export.files import NEEDED
from experiments.export.parity import Parity
from experiments.settings import build_config
from mbrl.data.out_of_data import OutOfData
from mbrl.errors import CheckpointError, ConfigError
from mbrl.types import Dataset, Spec, Transitions
from tests.algorithms.test_algorithms import build
from tests.small import CONFIGS, REPRESENTATIVE, takes

pytestmark = pytest.mark.usefixtures("one_registry")

# Others have the policies of SAC and of BC.
KINDS_OF_POLICY = set(REPRESENTATIVE) - {
    "cql", "iql", "sac", "edac", "wsrl", "mbpo", "morel", "pgd", "gcbc", "smore", "shac", "famo2o",
    "td3_bc", "generative_bc",
}  # fmt: skip
KINDS = [
    pytest.param(name, kind, marks=[] if name in KINDS_OF_POLICY else pytest.mark.long)
    for name in ALGORITHMS
    for kind in ("continuous", "discrete")
    if takes(name, kind) and name not in ("pets", "neubay")  # neubay has a test of its own
]

# A policy that moves actions at two levels and not at six, which a program has all in a row.
SHORTER = {"cdsa": {"levels": 4}}


def session(folder: Path) -> Any:
    return onnxruntime.InferenceSession(str(folder / "policy.onnx"))


def run(folder: Path, **values: Any) -> dict[str, np.ndarray]:
    opened = session(folder)
    names = [output.name for output in opened.get_outputs()]
    return dict(zip(names, opened.run(None, values), strict=True))


def act(agent: Any, obs: Tensor) -> np.ndarray:
    return agent.act(obs.numpy())[0]


def assert_complete(card: dict[str, Any], folder: Path, limit: float) -> None:
    assert sorted(f.name for f in folder.iterdir()) == sorted(FILES)
    assert card["parity"]["rows"] == 1000 and card["parity"]["action"] <= limit


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_every_algorithm_acts_the_same(
    name: str, kind: str, pendulum: Dataset, cartpole: Dataset, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setitem(CONFIGS, name, CONFIGS[name] | SHORTER.get(name, {}))
    data = pendulum if kind == "continuous" else cartpole
    agent = build(name, data.spec)
    with torch.no_grad():  # weights as they begin are small: larger ones say more
        for weight in agent.policy.parameters():
            weight.mul_(1.5)
    card = export(agent, tmp_path / "out", data)
    assert_complete(card, tmp_path / "out", 1e-6 if kind == "continuous" else 0)
    if name == "hecrl":  # it has a state, whose inputs the next test gives to neubay
        return
    obs = torch.randn(37, data.spec.obs_dim, generator=torch.Generator().manual_seed(3))
    action = run(tmp_path / "out", obs=obs.numpy())["action"]
    if kind == "discrete":
        assert action.dtype == np.int64
        np.testing.assert_array_equal(action, act(agent, obs))
    else:
        span = np.subtract(data.spec.action_high, data.spec.action_low)
        assert np.abs((action - act(agent, obs)) / span).max() <= 1e-6


@pytest.mark.parametrize(
    "memory", [*(pytest.param(m, marks=pytest.mark.long) for m in ("gru", "none")), "lru"]
)
def test_a_policy_with_memory_acts_the_same_along_an_episode(
    memory: str, pendulum: Dataset, tmp_path: Path
) -> None:
    """Its state goes in and out; zeros begin an episode, whatever stands beside them."""
    values = CONFIGS["neubay"]
    learner = values["learner"] | {"memory": values["learner"]["memory"] | {"kind": memory}}
    rollouts = values["rollouts"] | {"termination": "never"}
    config = build_config("neubay", values | {"learner": learner, "rollouts": rollouts})
    agent = NEUBAY(pendulum.spec, config, seed=1)
    folder = tmp_path / "out"
    assert_complete(lr.export(agent, folder, pendulum), folder, 1e-6)
    opened = session(folder)
    names = [output.name for output in opened.get_outputs()]
    size = opened.get_inputs()[1].shape[1]
    state, carried = np.zeros((4, size), np.float32), None
    action, reward = np.full((4, 1), 7.0, np.float32), np.full(4, 9.0, np.float32)
    generator = np.random.default_rng(0)
    for _ in range(12):
        obs = generator.normal(size=(4, 3)).astype(np.float32)
        values = {"obs": obs, "state": state}
        values |= {"previous_action": action, "previous_reward": reward}
        result = dict(zip(names, opened.run(None, values), strict=True))
        mine, carried = agent.act(obs, state=carried)
        assert np.abs(result["action"] - mine).max() <= 4e-6  # of a range of 4
        action, state = result["action"], result["next_state"]
        reward = generator.normal(size=4).astype(np.float32)
        carried = agent.policy.observe_reward(carried, torch.from_numpy(reward))


def test_a_planner_is_refused(pendulum: Dataset, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="plans with its world model"):
        export(build("pets", pendulum.spec), tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def cloned(one_registry: None, pendulum: Dataset, tmp_path_factory: Any) -> tuple[Any, Path]:
    """An agent and its files."""
    agent, folder = build("bc", pendulum.spec), tmp_path_factory.mktemp("cloned") / "out"
    export(agent, folder, pendulum)
    return agent, folder


def test_a_batch_of_one_and_of_many(cloned: tuple[Any, Path]) -> None:
    agent, folder = cloned
    program = torch.export.load(folder / "policy.pt2").module()
    for rows in (1, 2, 513):
        obs = torch.randn(rows, 3)
        assert run(folder, obs=obs.numpy())["action"].shape == (rows, 1)
        with torch.no_grad():
            assert np.allclose(program(obs)[0].numpy(), act(agent, obs), atol=4e-6)


def test_the_file_is_valid_and_its_batch_is_free(pendulum: Dataset, tmp_path: Path) -> None:
    import onnx

    export(build("iql", pendulum.spec), tmp_path / "out", pendulum, fallback="-1.5")
    onnx.checker.check_model(str(tmp_path / "out" / "policy.onnx"), full_check=True)
    opened = session(tmp_path / "out")
    assert [(i.name, i.shape) for i in opened.get_inputs()] == [("obs", ["batch", 3])]
    shapes = {o.name: (o.shape, o.type) for o in opened.get_outputs()}
    assert shapes == {
        "action": (["batch", 1], "tensor(float)"),
        "out_of_data": (["batch"], "tensor(float)"),
        "fallback_used": (["batch"], "tensor(bool)"),
    }


def test_the_normaliser_and_the_scale_are_inside(tmp_path: Path) -> None:
    """Raw observations far from 0, actions in uneven bounds."""
    spec = Spec("far", 2, 2, None, (-2.0, 0.0), (4.0, 0.5), 10)
    rows = 200
    generator = torch.Generator().manual_seed(0)
    obs = torch.randn(rows, 2, generator=generator) * torch.tensor([0.1, 500.0]) + 1000
    action = torch.rand(rows, 2, generator=generator) * torch.tensor([6.0, 0.5])
    action = action - torch.tensor([2.0, 0.0])
    ends = torch.arange(rows) % 10 == 9
    data = Dataset(
        Transitions(obs, action, torch.zeros(rows), obs, torch.zeros_like(ends), ends), spec
    )
    agent = BC(spec, seed=0).fit(data, 30, callbacks=[])
    export(agent, tmp_path / "out", data)
    given = run(tmp_path / "out", obs=obs.numpy())["action"]
    assert np.abs((given - act(agent, obs)) / [6.0, 0.5]).max() <= 1e-6
    weights = load_file(tmp_path / "out" / "policy.safetensors")
    np.testing.assert_allclose(weights["policy.normaliser.mean"], obs.mean(0), rtol=1e-6)
    np.testing.assert_allclose(weights["policy.scale.centre"], [1.0, 0.25])


def test_masks_go_in(tmp_path: Path) -> None:
    spec = Spec("masked", 2, 1, 3, max_episode_steps=5, action_mask=True)
    agent = BC(spec, seed=0)
    before = torch.get_rng_state()
    export(agent, tmp_path / "out")
    assert torch.equal(torch.get_rng_state(), before)
    obs = torch.randn(60, 2)
    mask = torch.rand(60, 3) < 0.4
    mask[:, 1] |= ~mask.any(1)
    action = run(tmp_path / "out", obs=obs.numpy(), action_mask=mask.numpy())["action"]
    assert mask.numpy()[np.arange(60), action].all()
    np.testing.assert_array_equal(action, agent.act(obs, mask=mask)[0])


def test_a_file_that_differs_is_refused_and_nothing_stays(
    pendulum: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = exporting.write_programs

    def wrong(parts: Any, folder: Path) -> None:
        with torch.no_grad():
            written(parts, folder)
            parts.policy.net.layers[-1].bias.add_(1e-5)

    monkeypatch.setattr(exporting, "write_programs", wrong)
    with pytest.raises(CheckpointError, match=r"policy.onnx differs .* Nothing was written"):
        export(build("bc", pendulum.spec), tmp_path / "out", pendulum)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_an_error_and_not_the_end_of_python(
    pendulum: Dataset, tmp_path: Path
) -> None:
    (tmp_path / "policy.pt2").symlink_to("/dev/full")
    parts = exporting.parts_of(build("bc", pendulum.spec), None, None, torch.float32)
    with pytest.raises(OSError, match="No space left"):
        exporting.write_programs(parts, tmp_path)


@pytest.mark.parametrize("name", ["action", "out_of_data"])
def test_what_is_no_number_does_not_hold(name: str) -> None:
    one = Parity(rows=1, **{name: float("nan")})
    total = Parity(rows=1)
    total.add(one)
    assert not one.holds and not total.holds and Parity(rows=1).holds


def test_double_precision_where_single_is_too_coarse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large raw observations lose digits in float32, in the policy as in its file. How many depends
    on the processor, so the limit is one that no float32 keeps to."""
    monkeypatch.setattr("experiments.export.parity.LIMIT", 1e-9)
    spec = Spec("large", 40, 2, None, (-1.0, -1.0), (1.0, 1.0), 10)
    agent = build("sac", spec)
    with torch.no_grad():
        agent.policy.net.layers[0].weight.mul_(1000)
    with pytest.raises(CheckpointError, match="--precision float64"):
        export(agent, tmp_path / "out")
    card = export(agent, tmp_path / "out", precision="float64")
    assert card["parity"]["action"] < 1e-7
    assert session(tmp_path / "out").get_outputs()[0].type == "tensor(float)"


def test_missing_packages_are_named(
    pendulum: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiments.export.files.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs onnx, .*\[onnx\]"):
        export(build("bc", pendulum.spec), tmp_path / "out", pendulum)


def test_the_extra_is_what_export_needs() -> None:
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    extra = tomllib.loads(text)["project"]["optional-dependencies"]["onnx"]
    assert {re.match(r"\w+", entry)[0] for entry in extra} == set(NEEDED)  # type: ignore[index]


# The score and the fallback.


def test_the_score_in_the_file_is_the_one_of_the_data(
    cloned: tuple[Any, Path], pendulum: Dataset
) -> None:
    _, folder = cloned
    obs = pendulum.transitions.obs.numpy()
    score = run(folder, obs=obs)["out_of_data"]
    assert 0 < (score > 1).mean() < 0.03
    assert run(folder, obs=obs * 4)["out_of_data"].min() > 1


@pytest.mark.parametrize("wanted", ["cloned", "1.5"])
def test_the_fallback_acts_outside_the_data_alone(
    wanted: str, pendulum: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiments.export.fallback.UPDATES", 50)
    agent = build("sac", pendulum.spec)
    export(agent, tmp_path / "out", pendulum, fallback=wanted)
    inside, far = pendulum.transitions.obs, pendulum.transitions.obs * 4
    result = run(tmp_path / "out", obs=torch.cat([inside, far]).numpy())
    used, score = result["fallback_used"], result["out_of_data"]
    np.testing.assert_array_equal(used, score > 1)
    assert used[len(inside) :].all()
    own = act(agent, inside)[~used[: len(inside)]]
    assert np.abs(result["action"][: len(inside)][~used[: len(inside)]] - own).max() <= 4e-6
    if wanted == "1.5":
        assert (result["action"][used] == 1.5).all()
    else:
        clone = BC(pendulum.spec, seed=0).fit(pendulum, 50, callbacks=[])
        expected = act(clone, torch.cat([inside, far]))[used]
        assert np.abs(result["action"][used] - expected).max() <= 4e-6


def test_a_fixed_discrete_action_by_name(cartpole: Dataset, tmp_path: Path) -> None:
    spec = Spec("named", 4, 1, 2, action_names=("left", "right"))
    data = Dataset(cartpole.transitions, spec)
    export(build("bc", spec), tmp_path / "out", data, fallback="right")
    far = data.transitions.obs.numpy() * 20 + 10
    far[:2, 0] = np.nan, np.inf
    result = run(tmp_path / "out", obs=far)
    assert (result["action"] == 1).all() and result["fallback_used"].all()
    with pytest.raises(ConfigError, match="did you mean 'left'"):
        export(build("bc", spec), tmp_path / "out", data, fallback="leftt")
    with pytest.raises(ConfigError, match="fallback"):  # a number is no name
        export(build("bc", spec), tmp_path / "out", data, fallback="1")


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ("a,b", "cloned, or 1 numbers"),
        ("5", "from"),
        ("1,1", "is 1 numbers"),
        (np.array([0.5, 0.5]), "is 1 numbers"),
        ([None], "cloned, or 1 numbers"),
    ],
)
def test_an_impossible_fallback(wanted: Any, words: str, pendulum: Dataset, tmp_path) -> None:
    with pytest.raises(ConfigError, match=words):
        export(build("bc", pendulum.spec), tmp_path / "out", pendulum, fallback=wanted)
    with pytest.raises(ConfigError, match="needs the data"):
        export(build("bc", pendulum.spec), tmp_path / "out", fallback="cloned")


@pytest.mark.parametrize("wanted", [-1.5, [-1.5], np.array([-1.5]), torch.tensor([-1.5])])
def test_a_fixed_action_in_any_form(wanted: Any, pendulum: Dataset) -> None:
    policy = fallback_of(wanted, pendulum.spec, pendulum)
    assert policy is not None and policy(torch.zeros(2, 3)).tolist() == [[-1.5], [-1.5]]
    assert describe_fallback(wanted) in ("the action -1.5", "the action [-1.5]")


def test_memory_with_a_fallback(pendulum: Dataset, tmp_path: Path) -> None:
    card = export(build("neubay", pendulum.spec), tmp_path / "out", pendulum, fallback="0.5")
    names = [port["name"] for port in card["outputs"]]
    assert names == ["action", "out_of_data", "fallback_used", "next_state"]
    # What is no number at a step, in a row each, leaves no trace in the steps that follow it.
    opened, rows = session(tmp_path / "out"), 4
    size = opened.get_inputs()[1].shape[1]
    state, action, reward = (np.zeros(s, np.float32) for s in ((rows, size), (rows, 1), (rows,)))
    obs = pendulum.transitions.obs[: 3 * rows].view(3, rows, 3).numpy()
    for t in range(3):
        seen = obs[t].copy()
        if t == 1:
            seen[0, 1], reward[1], action[2, 0] = np.nan, np.inf, np.nan
        values = {"obs": seen, "state": state, "previous_action": action, "previous_reward": reward}
        result = dict(zip(names, opened.run(None, values), strict=True))
        assert np.isfinite(result["action"]).all() and np.isfinite(result["next_state"]).all()
        if t == 1:
            assert result["fallback_used"][:3].all() and (result["action"][:3] == 0.5).all()
            assert np.array_equal(result["next_state"][:3], state[:3])
            assert not np.array_equal(result["next_state"][3], state[3])
        state, action, reward = result["next_state"], result["action"], np.zeros(rows, np.float32)


# The card.


def test_the_card_says_what_goes_in_and_where_it_is_not_valid(
    pendulum: Dataset, tmp_path: Path
) -> None:
    card = lr.export(build("iql", pendulum.spec), tmp_path / "out", pendulum)
    assert card == json.loads((tmp_path / "out" / "card.json").read_text())
    page = (tmp_path / "out" / "card.md").read_text()
    obs = pendulum.transitions.obs
    for i, entry in enumerate(card["observations"]):
        assert entry["low"] == float(obs[:, i].min()) and entry["high"] == float(obs[:, i].max())
        assert f"| {entry['name']} |" in page
    assert card["data"]["rows"] == 600 and f"{card['data']['fingerprint']}" in page
    assert card["policy"]["config"]["expectile"] == 0.7
    assert all(text in page for text in (*card["limits"], *card["checks"]))
    assert card["exported_with"]["packages"]["onnxruntime"] == onnxruntime.__version__
    assert [o["name"] for o in card["outputs"]] == ["action", "out_of_data"]
    assert isinstance(lr.export, type(export)) and OutOfData.__doc__
