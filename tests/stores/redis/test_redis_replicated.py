"""Sentinels and Clusters: who serves a key, also after that has changed."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

import dibs
import dibs.sync
from dibs.core.names import fingerprint
from dibs.errors import AcquireTimeout, BackendUnavailable, NotConfigured
from dibs.model import Failed, Granted, Inspect, Refused, Released, Status
from dibs.stores.redis.ledger import store_key
from dibs.stores.redis.routing import slot_of
from tests.servers.redis import RedisServer
from tests.servers.redis_cluster import SLOTS, RedisCluster, ask, in_step
from tests.servers.redis_sentinel import RedisSentinel
from tests.servers.waiting import wait_until
from tests.stores.sides import (
    KEY,
    Side,
    acquire,
    both_sides,
    granted,
    in_tasks,
    in_threads,
    release,
)

pytestmark = pytest.mark.once  # servers and searches are the same for each version of Python


def sentinel_url(sentinels: RedisSentinel) -> str:
    hosts = ",".join(f"{host}:{port}" for host, port in sentinels.addresses)
    return f"redis://{hosts}/0?sentinel={sentinels.service}"


@pytest.mark.slow
@in_tasks
async def test_a_failover(side: Side, tmp_path: Path) -> None:
    with RedisSentinel(tmp_path, down_after=0.5) as sentinels:
        backend = await side.open(sentinel_url(sentinels))
        token = granted((await backend.apply([acquire("a")]))[0]).token
        wait_for_replica(sentinels)
        old = sentinels.master
        sentinels.failover()
        with old.client() as client:  # as the Sentinels do after some 8 s
            client.replicaof("127.0.0.1", sentinels.master.port)
        wait_until(lambda: is_replica(old), "the old master is demoted")
        (reply,) = await side.again(backend, acquire("b"), within=20)
        assert isinstance(reply, Refused)
        (reply,) = await side.again(backend, acquire("a"), within=20)
        assert granted(reply).token == token
        await side.broken(backend)  # it listened to the old master
        await side.resumed(backend)
        other = await side.open(sentinel_url(sentinels))
        await backend.apply([acquire("b", queue=True, inbox=backend.inbox)])
        await other.apply([release("a")])
        assert (await side.pushed(backend, "granted")).key == KEY


@both_sides
async def test_an_old_master_that_hangs_up_on_nobody(side: Side, tmp_path: Path) -> None:
    """It has lost the ledger, too, since its new master had none: that is what it answers first."""
    with RedisSentinel(tmp_path, sentinels=1) as sentinels:
        backend = await side.open(sentinel_url(sentinels), listen=False)
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


@in_threads
async def test_a_master_that_dies(side: Side, tmp_path: Path) -> None:
    with RedisSentinel(tmp_path, down_after=0.5) as sentinels:
        backend = await side.open(sentinel_url(sentinels))
        await backend.apply([acquire("a")])
        wait_for_replica(sentinels)
        sentinels.master.kill()
        with pytest.raises(BackendUnavailable):
            await backend.apply([acquire("b")])
        (reply,) = await side.again(backend, acquire("b"), within=30)
        assert isinstance(reply, Refused)


@in_threads
async def test_sentinels_that_are_away_and_services_that_nobody_knows(
    side: Side, tmp_path: Path
) -> None:
    with RedisSentinel(tmp_path, sentinels=2) as sentinels:
        url = sentinel_url(sentinels)
        sentinels.sentinels[0].kill()
        granted((await (await side.open(url)).apply([acquire()]))[0])
        with pytest.raises(BackendUnavailable, match="knows no 'nobody'"):
            await side.open(url.replace(sentinels.service, "nobody"))
        sentinels.sentinels[1].kill()
        with pytest.raises(BackendUnavailable, match="no Sentinel leads to the master"):
            await side.open(url)


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


KEYS = [b"lock:%d" % number for number in range(60)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    with RedisCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def url(cluster: RedisCluster) -> str:
    for node in cluster.nodes:
        with node.client() as client:
            client.flushall()
            client.function_flush()
    return cluster_url(cluster)


def cluster_url(cluster: RedisCluster) -> str:
    hosts = ",".join(f"{host}:{port}" for host, port in cluster.addresses)
    return f"redis://{hosts}?cluster=true"


def fcalls(node: RedisServer) -> int:
    with node.client() as client:
        return int(client.info("commandstats").get("cmdstat_fcall", {}).get("calls", 0))


def test_slots_are_those_of_redis(cluster: RedisCluster) -> None:
    with cluster.nodes[0].client() as client:
        for name in (b"a", b"{a}b", b"x{y}{z}", b"{}a", b"{a", b"a}", *map(store_key, KEYS)):
            assert slot_of(name) == client.execute_command("CLUSTER KEYSLOT", name)


@both_sides
async def test_a_batch_over_all_nodes(side: Side, cluster: RedisCluster, url: str) -> None:
    backend = await side.open(url)
    replies = await backend.apply([acquire(key=key) for key in KEYS])
    assert {type(reply) for reply in replies} == {Granted}
    mixed = [Inspect(key) if n % 3 else release(key=key) for n, key in enumerate(KEYS)]
    replies = await backend.apply(mixed)
    for n, (key, reply) in enumerate(zip(KEYS, replies, strict=True)):
        if n % 3:
            assert isinstance(reply, Status)
            assert reply.key == key
        else:
            assert reply == Released()
    page = await backend.scan(b"lock:", None, 100)
    assert [status.key for status in page.items] == sorted(
        key for n, key in enumerate(KEYS) if n % 3
    )


@both_sides
async def test_one_call_for_each_slot(side: Side, cluster: RedisCluster, url: str) -> None:
    backend = await side.open(url)
    await backend.apply([acquire(key=key) for key in KEYS])
    before = sum(map(fcalls, cluster.nodes))
    await backend.apply([release(key=key) for key in KEYS] * 2)
    slots = {slot_of(store_key(key)) for key in KEYS}
    assert sum(map(fcalls, cluster.nodes)) - before == len(slots)


@both_sides
async def test_pushes_reach_their_inbox_from_any_node(side: Side, url: str) -> None:
    waiter, other = await side.open(url), await side.open(url)
    for key in KEYS[:12]:
        await other.apply([acquire("a", key=key)])
        await waiter.apply([acquire("b", key=key, queue=True, inbox=waiter.inbox)])
        await other.apply([release("a", key=key)])
        assert (await side.pushed(waiter, "granted")).key == key


@both_sides
async def test_slots_that_have_moved_and_slots_that_move(
    side: Side, cluster: RedisCluster, url: str
) -> None:
    backend = await side.open(url)
    await backend.apply([acquire(key=key) for key in KEYS])
    slot = slot_of(store_key(KEYS[0]))
    source = owner(cluster, slot)
    target = next(node for node in cluster.nodes if node is not source)
    for finish in (False, True):
        move(slot, source, target, finish=finish, nodes=cluster.nodes)
        replies = await backend.apply([acquire("b", key=key) for key in KEYS])
        assert {type(reply) for reply in replies} == {Refused}
        granted((await backend.apply([acquire(key=KEYS[0])]))[0])
    move(slot, target, source, finish=True, nodes=cluster.nodes)
    granted((await backend.apply([acquire(key=KEYS[0])]))[0])


def owner(cluster: RedisCluster, slot: int) -> RedisServer:
    """The node that serves a slot."""
    (port,) = [at for first, last, at in primaries(cluster.nodes[0]) if first <= slot <= last]
    return next(node for node in cluster.nodes if node.port == port)


def primaries(teller: RedisServer) -> list[tuple[int, int, int]]:
    """Ranges of slots, and the port at which they are served, as a node sees it."""
    with teller.client() as client:
        rows: Any = client.execute_command("CLUSTER SLOTS")
    return [(first, last, primary[1]) for first, last, primary, *_ in rows]


def move(
    slot: int, source: RedisServer, target: RedisServer, *, finish: bool, nodes: list[RedisServer]
) -> None:
    """Move a slot with all its keys, as `redis-cli --cluster reshard` does; or all but its end."""
    with source.client() as here, target.client() as there:
        ids: Any = {
            "here": here.execute_command("CLUSTER MYID"),
            "there": there.execute_command("CLUSTER MYID"),
        }
        there.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", ids["here"])
        here.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", ids["there"])
        names: Any = here.execute_command("CLUSTER GETKEYSINSLOT", slot, 100)
        for name in names:
            here.execute_command("MIGRATE", "127.0.0.1", target.port, name, 0, 5000)
    if finish:
        for node in (target, source, *nodes):
            with node.client() as client:
                client.execute_command("CLUSTER SETSLOT", slot, "NODE", ids["there"])


@both_sides
async def test_any_node_will_do_to_begin_with(side: Side, cluster: RedisCluster, url: str) -> None:
    nowhere = url.replace("redis://", "redis://127.0.0.1:1,")
    granted((await (await side.open(nowhere)).apply([acquire()]))[0])
    with pytest.raises(BackendUnavailable, match="no node of the Cluster can be reached"):
        await side.open("redis://127.0.0.1:1,127.0.0.1:2?cluster=true")


@both_sides
async def test_a_node_that_is_in_no_cluster_any_more_tells_nothing(
    side: Side, cluster: RedisCluster, url: str, tmp_path: Path
) -> None:
    """Such a node, as after a scale-in, goes on to answer: that nobody serves anything."""
    with RedisServer(tmp_path, extra=["cluster-enabled yes"]) as alone:
        backend = await side.open(url.replace("redis://", f"redis://127.0.0.1:{alone.port},"))
        granted((await backend.apply([acquire()]))[0])
        with pytest.raises(BackendUnavailable, match="it is in no Cluster"):
            await side.open(f"redis://127.0.0.1:{alone.port}?cluster=true")


@in_tasks
async def test_a_node_that_was_taken_out_is_left(side: Side, tmp_path: Path) -> None:
    """The only one that is still connected to it, it is asked first when the other one has hung up."""
    with RedisCluster(tmp_path, nodes=2) as cluster:
        left, stays = cluster.nodes
        backend = await side.open(cluster_url(cluster))
        await backend.apply([acquire(key=key) for key in KEYS])
        left_id, stays_id = (ask(node, "CLUSTER MYID") for node in (left, stays))
        ask(left, "FLUSHALL")
        with stays.client() as client, client.pipeline(transaction=False) as pipe:
            for slot in range(SLOTS // 2):
                pipe.execute_command("CLUSTER SETSLOT", slot, "NODE", stays_id)
            pipe.execute()
        ask(stays, "CLUSTER BUMPEPOCH")
        wait_until(lambda: len(primaries(left)) == 1, "the node knows that it serves nothing")
        ask(stays, "CLUSTER FORGET", left_id)
        ask(left, "CLUSTER RESET", "SOFT")
        with stays.client() as client:
            client.client_kill_filter(_type="normal")
        replies = await side.again(backend, *[acquire(key=key) for key in KEYS])
        assert {type(reply) for reply in replies} == {Granted}


@both_sides
async def test_what_is_no_cluster(side: Side, redis_url: str) -> None:
    with pytest.raises(NotConfigured, match="it is no Cluster"):
        await side.open(f"{redis_url}?cluster=true")


@in_threads
async def test_a_node_that_is_away_costs_the_other_keys_nothing(
    side: Side, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("replicated")
    with RedisCluster(folder, replicas=1, node_timeout=1.0) as cluster:
        backend = await side.open(cluster_url(cluster))
        taken = await backend.apply([acquire(key=key) for key in KEYS])
        tokens = [granted(reply).token for reply in taken]
        dead = cluster.node_of(store_key(KEYS[0]))
        cluster.replicate()
        dead.kill()
        with pytest.raises(BackendUnavailable):
            await backend.apply([acquire(key=key) for key in KEYS])
        replies = await backend.apply([acquire(key=key) for key in KEYS])
        kinds = {type(reply) for reply in replies}
        assert kinds <= {Granted, Failed}
        assert isinstance(replies[0], Granted | Failed)
        wait_until(lambda: owner_lives(cluster, dead), "the replica has taken over")
        replies = await side.again(backend, *[acquire(key=key) for key in KEYS], within=20)
        while any(isinstance(reply, Failed) for reply in replies):
            await side.pause(0.1)
            replies = await side.again(backend, *[acquire(key=key) for key in KEYS], within=20)
        assert [granted(reply).token for reply in replies] == tokens


def owner_lives(cluster: RedisCluster, dead: RedisServer) -> bool:
    """The slots of a dead node are served by another."""
    survivor = next(node for node in cluster.nodes if node is not dead)
    with survivor.client() as client:
        info: Any = client.execute_command("CLUSTER INFO")
    return info["cluster_state"] == "ok" and all(
        port != dead.port for _, _, port in primaries(survivor)
    )


@both_sides
async def test_a_key_s_own_order_is_kept(side: Side, url: str) -> None:
    backend = await side.open(url)
    batch = [acquire("a", key=KEY), *(acquire(key=key) for key in KEYS), release("a", key=KEY)]
    replies = await backend.apply([*batch, acquire("b", key=KEY)])
    assert isinstance(replies[0], Granted)
    assert replies[-2] == Released()
    assert granted(replies[-1]).token > granted(replies[0]).token


# ---- a full node ----------------------------------------------------------------------------------


# ---- a node that hangs ----------------------------------------------------------------------------

BUSY = 1.5
"""Seconds for which the healthy keys are used while a node hangs."""


@pytest.fixture(scope="module")
def hanging(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    """A Cluster whose nodes do not notice that one of them hangs, until the tests are over."""
    folder = tmp_path_factory.mktemp("hanging")
    with RedisCluster(folder, node_timeout=600.0) as cluster:
        yield cluster


@contextmanager
def paused(node: RedisServer) -> Iterator[None]:
    node.pause()
    try:
        yield
    finally:
        node.resume()


def one_for_each(cluster: RedisCluster) -> list[bytes]:
    """For each node a key that it serves."""
    served = {owner(cluster, slot_of(store_key(key))).port: key for key in KEYS}
    return [served[node.port] for node in cluster.nodes]


@both_sides
async def test_nodes_that_hang_cost_no_more_than_one(side: Side, hanging: RedisCluster) -> None:
    """Neither where they are connected to, nor where they do not answer. A batch has a second."""
    *hung, healthy = one_for_each(hanging)
    for is_connected in (False, True):
        backend = await side.open(cluster_url(hanging))
        await backend.apply([Inspect(healthy)])
        if is_connected:
            await backend.apply([Inspect(key) for key in hung])
        began = time.monotonic()
        with paused(hanging.nodes[0]), paused(hanging.nodes[1]):
            batch = [Inspect(key) for key in (*hung, healthy)]
            if is_connected:
                with pytest.raises(BackendUnavailable, match="did not answer in time"):
                    await backend.apply(batch)
            else:
                replies = await backend.apply(batch)
                assert [type(reply) for reply in replies] == [Failed, Failed, Status]
            assert time.monotonic() - began < 1.5


@in_threads
async def test_a_node_that_has_hung_up_is_not_taken_for_one_that_hangs(
    side: Side, hanging: RedisCluster
) -> None:
    batch = [Inspect(key) for key in one_for_each(hanging)]
    backend = await side.open(cluster_url(hanging), listen=False)
    await backend.apply(batch)
    with hanging.nodes[1].client() as client, paused(hanging.nodes[0]):
        client.client_kill_filter(_type="normal")
        with pytest.raises(BackendUnavailable, match="did not answer in time"):
            await backend.apply(batch)
        replies = await backend.apply(batch)
        assert [type(reply) for reply in replies] == [Failed, Status, Status]


@both_sides
async def test_a_batch_that_fails_in_part_still_brings_its_notifications(
    side: Side, hanging: RedisCluster
) -> None:
    hung, key, _ = one_for_each(hanging)
    backend = await side.open(cluster_url(hanging))
    await backend.apply([acquire("a", key=key), Inspect(hung)])
    await backend.apply([acquire("b", key=key, queue=True, inbox=backend.inbox)])
    with paused(hanging.nodes[0]):
        with pytest.raises(BackendUnavailable, match="did not answer in time"):
            await backend.apply([release("a", key=key), Inspect(hung)])
        assert (await side.pushed(backend, "granted")).lease == fingerprint("b")
    await backend.apply([release("b", key=key)])


def divided(cluster: RedisCluster, hanging: int) -> tuple[list[str], list[str]]:
    """Names that the first nodes serve, and names that others serve."""
    nodes = cluster.nodes[:hanging]
    served = {key: owner(cluster, slot_of(store_key(key))) in nodes for key in KEYS}
    names = {key: key.decode().removeprefix("lock:") for key in KEYS}
    return [names[key] for key in KEYS if served[key]], [
        names[key] for key in KEYS if not served[key]
    ]


async def test_hanging_nodes_cost_the_tasks_of_others_a_second_at_most(
    hanging: RedisCluster,
) -> None:
    hung, healthy = divided(hanging, 2)
    slowest = 0.0
    async with dibs.connect(cluster_url(hanging)) as client:

        async def try_the_hung(name: str) -> None:
            while time.monotonic() < end:
                with pytest.raises((AcquireTimeout, BackendUnavailable)):
                    await client.lock(name, ttl=9.0).acquire(wait=1.0)

        async def use(name: str) -> None:
            nonlocal slowest
            while time.monotonic() < end:
                began = time.monotonic()
                async with client.lock(name, ttl=9.0, wait=10.0):
                    pass
                slowest = max(slowest, time.monotonic() - began)
                await asyncio.sleep(0.01)

        end = time.monotonic() + 0.2
        await asyncio.gather(*map(use, healthy))
        end = time.monotonic() + BUSY
        slowest = 0.0
        with ExitStack() as stack:
            for node in hanging.nodes[:2]:
                stack.enter_context(paused(node))
            await asyncio.gather(*map(try_the_hung, hung), *map(use, healthy))
        assert slowest < 2.0
        async with client.lock(hung[0], wait=10.0):
            pass


def test_a_hanging_node_costs_threads_no_lease_of_another(hanging: RedisCluster) -> None:
    """The keeper renews the leases of all nodes in one batch."""
    hung, healthy = divided(hanging, 1)
    lost = threading.Event()
    with dibs.sync.connect(cluster_url(hanging)) as client:
        kept = [client.lock(name, ttl=3.0, on_lost=lambda _: lost.set()) for name in healthy]
        leases = [lock.acquire(wait=0) for lock in kept]
        others = [client.lock(name, ttl=3.0).acquire(wait=0) for name in hung]
        with paused(hanging.nodes[0]):
            assert not lost.wait(4.0)
        for lease in (*leases, *others):
            lease.release()
