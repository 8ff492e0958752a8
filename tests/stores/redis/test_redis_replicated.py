"""Sentinels and Clusters: which server has a key, also after that has changed."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import redis

from dibs.errors import BackendUnavailable
from dibs.model import Failed, Granted, Inspect, Refused, Released, Status
from dibs.stores.redis.ledger import store_key
from dibs.stores.redis.routing import slot_of
from tests.servers.redis import RedisServer
from tests.servers.redis_cluster import RedisCluster, ask
from tests.servers.redis_sentinel import RedisSentinel
from tests.servers.waiting import wait_until
from tests.stores.redis.counting import calls
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


@in_threads
async def test_a_master_that_dies(side: Side, tmp_path: Path) -> None:
    """And then the Sentinels, one after the other."""
    with RedisSentinel(tmp_path, down_after=0.5) as sentinels:
        url = sentinel_url(sentinels)
        backend = await side.open(url)
        await backend.apply([acquire("a")])
        wait_for_replica(sentinels)
        sentinels.master.kill()
        with pytest.raises(BackendUnavailable):
            await backend.apply([acquire("b")])
        (reply,) = await side.again(backend, acquire("b"), within=30)
        assert isinstance(reply, Refused)
        with pytest.raises(BackendUnavailable, match="knows no 'nobody'"):
            await side.open(url.replace(sentinels.service, "nobody"))
        first, *others = sentinels.sentinels
        first.kill()
        await (await side.open(url)).apply([Inspect(KEY)])
        for sentinel in others:
            sentinel.kill()
        with pytest.raises(BackendUnavailable, match="no Sentinel leads to the master"):
            await side.open(url)


KEYS = [b"lock:%d" % number for number in range(60)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    """Its nodes do not notice that one of them hangs, until the tests are over."""
    with RedisCluster(tmp_path_factory.mktemp("cluster"), node_timeout=600.0) as cluster:
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


def test_slots_are_those_of_redis(cluster: RedisCluster) -> None:
    for name in (b"a", b"{a}b", b"x{y}{z}", b"{}a", b"{a", b"a}", *map(store_key, KEYS)):
        assert slot_of(name) == ask(cluster.nodes[0], "CLUSTER KEYSLOT", name)


@both_sides
async def test_a_batch_over_all_nodes_is_one_call_for_each_slot(
    side: Side, cluster: RedisCluster, url: str
) -> None:
    backend = await side.open(url)
    batch = [acquire("a", key=KEY), *(acquire(key=key) for key in KEYS), release("a", key=KEY)]
    replies = await backend.apply([*batch, acquire("b", key=KEY)])
    assert {type(reply) for reply in replies[:-2]} == {Granted}
    assert replies[-2] == Released()
    assert granted(replies[-1]).token > granted(replies[0]).token, "the order of a key is kept"
    before = sum(calls(node)["fcall"] for node in cluster.nodes)
    mixed = [Inspect(key) if n % 3 else release(key=key) for n, key in enumerate(KEYS)]
    replies = await backend.apply(mixed * 2)
    slots = {slot_of(store_key(key)) for key in KEYS}
    assert sum(calls(node)["fcall"] for node in cluster.nodes) - before == len(slots)
    for n, (key, reply) in enumerate(zip(KEYS, replies[: len(KEYS)], strict=True)):
        if n % 3:
            assert isinstance(reply, Status)
            assert reply.key == key
        else:
            assert reply == Released()
    page = await backend.scan(b"lock:", None, 100)
    held = [key for n, key in enumerate(KEYS) if n % 3]
    assert [status.key for status in page.items] == sorted([*held, KEY])


@both_sides
async def test_pushes_reach_their_inbox_from_any_node(side: Side, url: str) -> None:
    waiter, other = await side.open(url), await side.open(url)
    for key in KEYS[:12]:
        await side.hand_over(waiter, other, key)


@in_tasks
async def test_slots_that_have_moved_and_slots_that_move(
    side: Side, cluster: RedisCluster, url: str
) -> None:
    backend = await side.open(url)
    await backend.apply([acquire(key=key) for key in KEYS])
    slot = slot_of(store_key(KEYS[0]))
    source = cluster.node_of(store_key(KEYS[0]))
    target = next(node for node in cluster.nodes if node is not source)
    for finish in (False, True):
        move(slot, source, target, finish=finish, nodes=cluster.nodes)
        replies = await backend.apply([acquire("b", key=key) for key in KEYS])
        assert {type(reply) for reply in replies} == {Refused}
        granted((await backend.apply([acquire(key=KEYS[0])]))[0])
    move(slot, target, source, finish=True, nodes=cluster.nodes)
    granted((await backend.apply([acquire(key=KEYS[0])]))[0])


def move(
    slot: int,
    source: RedisServer,
    target: RedisServer,
    *,
    finish: bool,
    nodes: Sequence[RedisServer],
) -> None:
    """Move a slot with all its keys, as `redis-cli --cluster reshard` does; or all but its end."""
    here, there = ask(source, "CLUSTER MYID"), ask(target, "CLUSTER MYID")
    ask(target, "CLUSTER SETSLOT", slot, "IMPORTING", here)
    ask(source, "CLUSTER SETSLOT", slot, "MIGRATING", there)
    for name in ask(source, "CLUSTER GETKEYSINSLOT", slot, 100):
        ask(source, "MIGRATE", "127.0.0.1", target.port, name, 0, 5000)
    if finish:
        for node in (target, source, *nodes):
            ask(node, "CLUSTER SETSLOT", slot, "NODE", there)


@in_tasks
async def test_any_node_of_the_cluster_will_do_to_begin_with(
    side: Side, url: str, tmp_path: Path
) -> None:
    """One that was taken out goes on to answer: that nobody serves anything."""
    with RedisServer(tmp_path, extra=["cluster-enabled yes"]) as alone:
        nowhere = f"127.0.0.1:1,127.0.0.1:{alone.port}"
        backend = await side.open(url.replace("redis://", f"redis://{nowhere},"))
        granted((await backend.apply([acquire()]))[0])
        for hosts, told in {
            "127.0.0.1:1,127.0.0.1:2": "no node of the Cluster can be reached",
            f"127.0.0.1:{alone.port}": "it is in no Cluster",
        }.items():
            with pytest.raises(BackendUnavailable, match=told):
                await side.open(f"redis://{hosts}?cluster=true")


@in_threads
async def test_a_node_that_dies_costs_the_other_keys_nothing(side: Side, tmp_path: Path) -> None:
    with RedisCluster(tmp_path, replicas=1, node_timeout=1.0) as cluster:
        backend = await side.open(cluster_url(cluster))
        every = [acquire(key=key) for key in KEYS]
        tokens = [granted(reply).token for reply in await backend.apply(every)]
        dead = cluster.node_of(store_key(KEYS[0]))
        cluster.replicate()
        dead.kill()
        with pytest.raises(BackendUnavailable):
            await backend.apply(every)
        replies = await backend.apply(every)
        assert {type(reply) for reply in replies} == {Granted, Failed}
        while any(isinstance(reply, Failed) for reply in replies):  # until its replica takes over
            await side.pause(0.1)
            replies = await side.again(backend, *every, within=20)
        assert [granted(reply).token for reply in replies] == tokens


@contextmanager
def paused(*nodes: RedisServer) -> Iterator[None]:
    with ExitStack() as stack:
        for node in nodes:
            node.pause()
            stack.callback(node.resume)
        yield


@both_sides
async def test_nodes_that_hang_cost_no_more_than_one(
    side: Side, cluster: RedisCluster, url: str
) -> None:
    """Neither where they are connected to, nor where they do not answer. A batch has a second."""
    served = {cluster.node_of(store_key(key)).port: key for key in KEYS[:12]}
    *hung, healthy = [served[node.port] for node in cluster.nodes]
    for is_connected in (False, True):
        backend = await side.open(url)
        await backend.apply([Inspect(healthy)])
        if is_connected:
            await backend.apply([Inspect(key) for key in hung])
        began = time.monotonic()
        with paused(*cluster.nodes[:2]):
            batch = [Inspect(key) for key in (*hung, healthy)]
            if is_connected:
                with pytest.raises(BackendUnavailable, match="did not answer in time"):
                    await backend.apply(batch)
                assert time.monotonic() - began < 1.5
                began = time.monotonic()
            replies = await backend.apply(batch)
            assert [type(reply) for reply in replies] == [Failed, Failed, Status]
            assert time.monotonic() - began < (0.7 if is_connected else 1.5), "it is left for now"
