"""The transfer queue, against a slow model of it: which stage has got which row."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mbrl.distributed.transfer_queue import RayTransferQueue, Stage, TransferQueue
from mbrl.errors import ConfigError

FIELDS = ("answer", "old", "reward", "advantage")
STAGES = {
    "old": Stage(("answer",)),
    "advantage": Stage(("answer", "reward"), groups=True),
    "learn": Stage(("answer", "old", "advantage")),
}


def queue(**settings: Any) -> TransferQueue:
    return TransferQueue(FIELDS, STAGES, **settings)


moves = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.integers(1, 3), st.just("")),
        *[st.tuples(st.just("put"), st.integers(0, 5), st.sampled_from(FIELDS))] * 4,
        st.tuples(st.just("take"), st.integers(1, 6), st.sampled_from(sorted(STAGES))),
        st.tuples(st.just("advance"), st.just(0), st.just("")),
    ),
    min_size=30,
    max_size=80,
)


@given(moves=moves, group=st.integers(1, 3), staleness=st.sampled_from([None, 0, 1, 2]))
def test_interleaved_calls(moves: list[Any], group: int, staleness: int | None) -> None:
    """No row twice for one stage, none before its fields are there, groups whole, none too old,
    none lost: at the end all stages get what is left."""
    q = queue(group=group, staleness=staleness)
    put: dict[int, set[str]] = {}
    begun: dict[int, int] = {}
    got: dict[str, list[int]] = {name: [] for name in STAGES}
    gone: set[int] = set()
    version = 0

    def check(stage: str, count: int, fewer: bool) -> None:
        old = staleness if staleness is not None else version + 1
        want = [
            n
            for n in sorted(put)
            if n not in got[stage]
            and set(STAGES[stage].reads) <= put[n]
            and version - begun[n] <= old
        ]
        if STAGES[stage].groups:
            whole = [n // group for n in want]
            want = [n for n in want if whole.count(n // group) == group]
        assert q.ready(stage) == want
        taken = q.take(stage, count, fewer=fewer)
        expected = want[:count] if want and (fewer or len(want) >= count) else None
        assert (None if taken is None else taken.rows) == expected
        if taken is not None:
            got[stage] += taken.rows
            assert taken.versions == [begun[n] for n in taken.rows]
            for name in STAGES[stage].reads:
                assert taken.values[name] == [f"{name} {n}" for n in taken.rows]

    for kind, number, name in moves:
        if kind == "open":
            rows = q.open(number)
            assert rows == list(range(len(put), len(put) + number * group))
            put |= {n: set() for n in rows}
            begun |= dict.fromkeys(rows, version)
        elif kind == "put" and put:
            number = max(put) - number % len(put)  # one of the latest
            if name not in put[number]:
                q.put([number], **{name: [f"{name} {number}"]})
                put[number].add(name)
        elif kind == "take":
            check(name, number - number % group or group, fewer=False)
        elif kind == "advance":
            version += 1
            dropped = q.advance()
            assert not gone & set(dropped)
            gone |= set(dropped)
            if staleness is None:
                assert dropped == []
            else:
                assert all(version - begun[n] > staleness for n in dropped)
    for n in put:
        for name in FIELDS:
            if name not in put[n]:
                q.put([n], **{name: [f"{name} {n}"]})
                put[n].add(name)
    for stage in STAGES:
        check(stage, group * max(1, len(put)), fewer=True)
    for stage in STAGES:
        assert len(set(got[stage])) == len(got[stage])
        assert set(got[stage]) | gone == set(put)
    assert q.table == {} and q.dropped == len(gone)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown field 'answr'"):
        TransferQueue(FIELDS, {"learn": Stage(("answr",))})
    with pytest.raises(ConfigError, match="group is 0"):
        queue(group=0)
    q = queue(group=2)
    rows = q.open()
    with pytest.raises(ConfigError, match="unknown field 'answr'"):
        q.put(rows, answr=[1, 2])
    with pytest.raises(ConfigError, match="answer has 1 values for 2 rows"):
        q.put(rows, answer=[1])
    with pytest.raises(ConfigError, match="row 2 was never opened"):
        q.put([2], answer=[1])
    q.put(rows, answer=[1, 2])
    with pytest.raises(ConfigError, match="answer of row 1 is there already"):
        q.put([1], answer=[3])
    with pytest.raises(ConfigError, match="row 0 comes twice"):
        q.put([0, 0], reward=[1, 2])
    with pytest.raises(ConfigError, match="unknown stage 'lern'"):
        q.take("lern", 1)
    with pytest.raises(ConfigError, match="a multiple of 2"):
        q.take("advantage", 3)


@pytest.mark.long
def test_an_actor_gives_the_same() -> None:
    ray = pytest.importorskip("ray")
    told = []
    for kind in (TransferQueue, RayTransferQueue):
        q = kind(FIELDS, STAGES, group=2, staleness=1)
        seen: list[Any] = [q.open(2)]
        q.put([0, 1, 3], answer=["a", "b", "d"])
        seen += [q.take("old", 3), q.take("advantage", 2), q.ready("old")]
        q.put([1, 0], reward=[1.0, 2.0])
        seen += [q.take("advantage", 2), q.advance(), q.open(1), q.advance()]
        seen += [q.take("learn", 5, fewer=True)]
        with pytest.raises(ConfigError, match="row 6 was never opened"):
            q.put([6], answer=["x"])
        told.append(seen)
    q.close()
    ray.shutdown()
    assert told[0] == told[1]
    assert told[0][1].values == {"answer": ["a", "b", "d"]} and told[0][-2] == [0, 1, 2, 3]
