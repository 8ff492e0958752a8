"""Sentinels: who the master is, also after it has changed."""

from pathlib import Path

import pytest
import redis

from dibs.errors import BackendUnavailable
from dibs.model import Refused
from tests.servers.redis import RedisServer
from tests.servers.redis_cluster import in_step
from tests.servers.redis_sentinel import RedisSentinel
from tests.servers.waiting import wait_until
from tests.stores.redis.both_worlds import KEY, Side, acquire, granted, release

pytestmark = pytest.mark.once  # servers and searches are the same for each version of Python


@pytest.fixture(params=["async", "blocking"])
def side(request: pytest.FixtureRequest) -> Side:
    return Side(request.param)


def url_of(sentinels: RedisSentinel) -> str:
    hosts = ",".join(f"{host}:{port}" for host, port in sentinels.addresses)
    return f"redis://{hosts}/0?sentinel={sentinels.service}"


@pytest.mark.slow
def test_a_failover(side: Side, tmp_path: Path) -> None:
    async def case() -> None:
        with RedisSentinel(tmp_path) as sentinels:
            backend = await side.open(url_of(sentinels))
            token = granted((await backend.apply([acquire("a")]))[0]).token
            wait_for_replica(sentinels)
            old = sentinels.master
            sentinels.failover()
            wait_until(lambda: is_replica(old), "the Sentinels have demoted the old master")
            (reply,) = await side.again(backend, acquire("b"), within=20)
            assert isinstance(reply, Refused)
            (reply,) = await side.again(backend, acquire("a"), within=20)
            assert granted(reply).token == token
            await side.broken(backend)  # it listened to the old master
            await side.resumed(backend)
            other = await side.open(url_of(sentinels))
            await backend.apply([acquire("b", queue=True, inbox=backend.inbox)])
            await other.apply([release("a")])
            assert (await side.pushed(backend, "granted")).key == KEY

    side.run(case)


def test_an_old_master_that_hangs_up_on_nobody(side: Side, tmp_path: Path) -> None:
    """It has lost the ledger, too, since its new master had none: that is what it answers first."""

    async def case() -> None:
        with RedisSentinel(tmp_path, sentinels=1) as sentinels:
            backend = await side.open(url_of(sentinels), listen=False)
            await backend.apply([acquire("a")])
            wait_for_replica(sentinels)
            old, new = sentinels.master, sentinels.replica
            with sentinels.sentinels[0].client() as sentinel:
                sentinel.sentinel_remove(sentinels.service)
                with old.client() as here, new.client() as there:
                    there.replicaof("NO", "ONE")
                    there.function_flush()
                    here.replicaof("127.0.0.1", new.port)
                    wait_until(lambda: in_step(old), "the old master follows the new one")
                    assert here.function_list() == []
                sentinel.sentinel_monitor(sentinels.service, "127.0.0.1", new.port, 1)
            with pytest.raises(BackendUnavailable, match="it is a replica"):
                await backend.apply([acquire("b")])
            assert isinstance((await backend.apply([acquire("b")]))[0], Refused)

    side.run(case)


def test_a_master_that_dies(side: Side, tmp_path: Path) -> None:
    async def case() -> None:
        with RedisSentinel(tmp_path) as sentinels:
            backend = await side.open(url_of(sentinels))
            await backend.apply([acquire("a")])
            wait_for_replica(sentinels)
            sentinels.master.kill()
            with pytest.raises(BackendUnavailable):
                await backend.apply([acquire("b")])
            (reply,) = await side.again(backend, acquire("b"), within=30)
            assert isinstance(reply, Refused)

    side.run(case)


def test_sentinels_that_are_away_and_services_that_nobody_knows(side: Side, tmp_path: Path) -> None:
    async def case() -> None:
        with RedisSentinel(tmp_path, sentinels=2) as sentinels:
            url = url_of(sentinels)
            sentinels.sentinels[0].kill()
            granted((await (await side.open(url)).apply([acquire()]))[0])
            with pytest.raises(BackendUnavailable, match="knows no 'nobody'"):
                await side.open(url.replace(sentinels.service, "nobody"))
            sentinels.sentinels[1].kill()
            with pytest.raises(BackendUnavailable, match="no Sentinel leads to the master"):
                await side.open(url)

    side.run(case)


def is_replica(server: RedisServer) -> bool:
    """Until then it would go on to serve whoever is connected: a hazard of Sentinel itself."""
    try:
        with server.client() as client:
            return bool(client.info("replication")["role"] == "slave")
    except redis.ConnectionError:  # just then: it hangs up on everybody
        return False


def wait_for_replica(sentinels: RedisSentinel) -> None:
    with sentinels.master.client() as client:
        client.execute_command("WAIT", 1, 5000)
