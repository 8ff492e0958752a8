"""Every primitive on every store in both worlds: processes are killed and paused, and keep their word.

And the same processes on a store with a bug in one primitive, which the verdict names.
"""

import shutil
from pathlib import Path

import pytest

from dibs.testing import Torture, TorturePlan, Verdict
from dibs.testing.torture.plan import PRIMITIVES
from dibs.testing.torture.worlds import WORLDS, WorldName
from tests.torture.planted import announce

pytestmark = [
    pytest.mark.slow,
    pytest.mark.once,
    pytest.mark.serial,
    pytest.mark.multiprocess,
    pytest.mark.timeout(150),
]

TTL = 0.6
STORES = ["sqlite", "redis", "postgresql"]


@pytest.fixture(autouse=True)
def _do_not_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is thrown away afterwards: no need to see that it drops the places of the dead."""
    monkeypatch.setattr("dibs.testing.torture.namespace.LINGER", 0.0)


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of a store that processes share."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'leases.db'}"
    of_server: str = request.getfixturevalue(
        {"redis": "redis_url", "postgresql": "postgres_url"}[request.param]
    )
    return of_server


def verdict_on(url: str, plan: TorturePlan) -> Verdict:
    verdict = Torture(url, plan).run()
    if verdict.history and verdict.outcome == "violation" and "planted" in url:
        shutil.rmtree(verdict.history)
    return verdict


def tried(url: str, world: WorldName, seconds: float) -> Verdict:
    plan = TorturePlan(seconds=seconds, ttl=TTL, processes=4, tasks=4, worlds=[world], seed=1)
    return verdict_on(url, plan)


@pytest.mark.parametrize("world", WORLDS)
def test_every_primitive_keeps_its_word_under_kills_and_pauses(url: str, world: WorldName) -> None:
    verdict = tried(url, world, 9)
    if verdict.faults["kill"] < 2 and not verdict.violations:
        verdict = tried(url, world, 40)  # the machine is so busy that they had hardly started
    assert verdict.violations == [], str(verdict)
    assert verdict.trouble == "", str(verdict)
    assert verdict.faults["kill"] > 1
    assert verdict.faults.total() - verdict.faults["kill"] > 1
    for primitive in PRIMITIVES:
        assert verdict.done[primitive] > 5, f"{primitive}: {verdict}"
    assert len(verdict.hit_by) > len(PRIMITIVES) / 2, str(verdict)


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a store that may have a bug."""
    announce(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return f"planted://{tmp_path / 'leases.db'}?bug="


@pytest.mark.parametrize(
    ("bug", "primitive", "rule", "words"),
    [
        ("slots-repeat", "semaphore", "slot", "two held the same slot at once"),
        ("a-downgrade-gives-all-up", "rwlock", "overlap", "a writer was not alone"),
        ("too-soon", "tasklock", "too soon", "started again before its min_hold was over"),
        ("two-lead", "leader", "overlap", "two led"),
        ("not-all", "allof", "overlap", "2 units held of 1"),
    ],
)
def test_a_planted_bug_of_one_primitive_is_named(
    planted: str, bug: str, primitive: str, rule: str, words: str
) -> None:
    """The other one beside it is found to be well."""
    plan = TorturePlan(
        seconds=6, ttl=TTL, processes=4, tasks=3, primitives=["lock", primitive], seed=1
    )
    verdict = verdict_on(planted + bug, plan)
    assert verdict.outcome_of(primitive) == "violation", str(verdict)
    assert rule in {violation.rule for violation in verdict.violations}
    assert words in str(verdict)
    assert verdict.broken("lock") == []
    assert verdict.done["lock"] > 0
