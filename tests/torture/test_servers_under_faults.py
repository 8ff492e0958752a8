"""Real servers that are killed, paused, emptied and cut off while processes take turns on them.

The torture kills and pauses the processes meanwhile and checks their histories: exclusion, tokens, and
that everybody is served once all is calm. What each store keeps through a fault is in
`docs/guarantees.md`, and what it loses is shown here, too.
"""

from itertools import cycle
from pathlib import Path

import pytest

from dibs import LeaseLost
from dibs.sync import connect
from dibs.testing import TorturePlan
from tests.servers.redis import RedisServer
from tests.torture.processes import FAULTS, running, torture

pytestmark = [
    *(pytest.mark.slow, pytest.mark.once, pytest.mark.serial, pytest.mark.multiprocess),
    pytest.mark.timeout(180),
]

TTL = 1.0

SHORT = [("redis", *FAULTS), ("postgres", "killed"), ("etcd cluster", "leader killed")]
"""Each of the faults happens once, and then the run ends."""
LONG = [
    *((store, fault) for store in ("redis", "postgres", "etcd") for fault in FAULTS),
    ("postgres", "sessions ended"),
]
"""They happen again and again, and there is a calm phase, in which everybody is served."""


@pytest.mark.parametrize(
    ("faulty", "is_long"),
    [
        *(pytest.param(each, False, id=each[0]) for each in SHORT),
        *(pytest.param(each, True, id=" ".join(each), marks=pytest.mark.long) for each in LONG),
    ],
)
def test_leases_are_kept_through_faults(
    faulty: tuple[str, ...], is_long: bool, tmp_path: Path
) -> None:
    store, *names = faulty
    every = 2.4 if is_long else 0.3
    times = [(every, name, 1.2 * TTL if name == "paused" else 0.3) for name in names]
    plan = TorturePlan(seconds=20.0 if is_long else 90.0, ttl=TTL, processes=3, seed=1)
    with running(store, tmp_path) as (url, faults):
        verdict, happened = torture(
            url,
            plan,
            faults,
            cycle(times) if is_long else times,
            lambda progress, done: not is_long and {*done} == {*names} and progress.struck > 0,
        )
    assert {*happened} == {*names}, "not every fault has happened"
    assert verdict.violations == [], str(verdict)
    assert verdict.cycles > 10, str(verdict)
    assert verdict.struck > 0, str(verdict)


# ---- Redis without persistence --------------------------------------------------------------------


def test_redis_with_an_old_snapshot_keeps_exclusion_by_its_hold_off(tmp_path: Path) -> None:
    """It comes back with what it had before the lease, and that it was running already."""
    with RedisServer(tmp_path) as server:
        soon, url = (f"{server.url}?restart_holdoff={seconds}s" for seconds in (0.1, 3))
        with connect(soon) as client:
            client.lock("first").acquire(wait=10).release()
            with server.client() as plain:
                plain.save()
            held = client.lock("a", ttl=2).acquire()
            server.kill()
            server.start()
            with connect(url) as others, others.lock("a").acquire(wait=10) as second:
                assert held.remaining == 0
                assert second.token > held.token


def test_redis_without_persistence_forgets_leases_and_tokens_still_rise(tmp_path: Path) -> None:
    """The fault that the hold-off and the log are for: others are granted what is still held."""
    with RedisServer(tmp_path) as server, connect(server.url) as client:
        held = client.lock("a", ttl="2m").acquire()
        server.kill()
        server.start()
        with connect(server.url) as others, others.lock("a", ttl="2m").acquire(wait=30) as second:
            assert held.remaining > 0, "its holder believes in it until its next renewal"
            assert second.token > held.token
        held.release()


def test_redis_emptied_by_hand_tokens_still_rise(redis_server: RedisServer, redis_url: str) -> None:
    with connect(redis_url) as client, redis_server.client() as plain:
        tokens = []
        for _ in range(20):
            with client.lock("a").acquire(wait=10) as lease:
                tokens.append(lease.token)
            plain.flushall()
        assert tokens == sorted(set(tokens))
        lost = client.lock("a", ttl=TTL).acquire()
        plain.flushall()
        assert lost.wait_lost(10)
        with pytest.raises(LeaseLost, match="the store has no such lease any more"):
            lost.ensure()
