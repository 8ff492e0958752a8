"""A test's own Redis Cluster and Sentinels form, and survive the loss of a server."""

from pathlib import Path

import pytest

from tests.servers.redis_cluster import RedisCluster, ask
from tests.servers.redis_sentinel import RedisSentinel
from tests.servers.waiting import wait_until

pytestmark = pytest.mark.once  # servers and searches are the same for each version of Python


def test_a_cluster_shares_the_keys(tmp_path: Path) -> None:
    with RedisCluster(tmp_path) as cluster, cluster.client() as client:
        for number in range(30):
            assert client.set(f"k{number}", number)
        holders = [node for node in cluster.nodes if node.client().dbsize()]
        assert holders == cluster.nodes
        node = cluster.node_of(b"k7")
        assert node.client().get("k7") == b"7"
    assert not any(node.running for node in cluster.nodes)


def test_a_replica_takes_over_a_killed_node(tmp_path: Path) -> None:
    with RedisCluster(tmp_path, replicas=1, node_timeout=0.5) as cluster:
        cluster.nodes[0].kill()
        replica = cluster.replicas[0]
        wait_until(lambda: replica.client().role()[0] == b"master", "the replica took over")
        wait_until(lambda: _whole(cluster), "the cluster is whole again")
        with cluster.client() as client:
            assert all(client.set(f"k{number}", number) for number in range(30))


def _whole(cluster: RedisCluster) -> bool:
    return all(ask(node, "CLUSTER INFO")["cluster_state"] == "ok" for node in cluster.running)


def test_sentinels_replace_a_killed_master(tmp_path: Path) -> None:
    with RedisSentinel(tmp_path, down_after=0.5) as sentinel:
        before, replica = sentinel.master, sentinel.replica
        before.client().set("a", 1)
        before.client().wait(1, 5000)
        before.kill()
        wait_until(lambda: sentinel.master is replica, "the replica is named")
        wait_until(lambda: replica.client().role()[0] == b"master", "it knows")
        assert replica.client().get("a") == b"1"


def test_a_failover_on_demand(tmp_path: Path) -> None:
    with RedisSentinel(tmp_path, sentinels=1) as sentinel:
        replica = sentinel.replica
        sentinel.failover()
        assert sentinel.master is replica
