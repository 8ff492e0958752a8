"""A Redis Cluster of its own for a test."""

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from typing import Any

import redis

from tests.servers.ports import HOST
from tests.servers.redis import RedisServer
from tests.servers.server import ServerGroup
from tests.servers.waiting import wait_until

SLOTS = 16_384
NODES = 3


class RedisCluster(ServerGroup):
    """Three masters that share the slots, each with as many `replicas`.

    `nodes[i]` is a `RedisServer`: kill, pause and restart it as any other. A node that is silent for
    `node_timeout` seconds counts as failed; where it has a replica, that one takes over.
    """

    def __init__(self, folder: Path, *, replicas: int = 0, node_timeout: float = 1.0) -> None:
        extra = [
            "cluster-enabled yes",
            f"cluster-node-timeout {int(node_timeout * 1000)}",
            "cluster-replica-validity-factor 0",
            "repl-diskless-sync-delay 0",
        ]
        count = NODES * (1 + replicas)
        self.all = [RedisServer(folder / f"node-{number}", extra=extra) for number in range(count)]
        self.nodes, self.replicas = self.all[:NODES], self.all[NODES:]

    @property
    def url(self) -> str:
        """Of the first node that runs; the others are learnt from it."""
        return self.running[0].url

    @property
    def running(self) -> list[RedisServer]:
        """All nodes and replicas but those that were killed or stopped."""
        return [node for node in self.all if node.running]

    @property
    def addresses(self) -> list[tuple[str, int]]:
        return [(HOST, node.port) for node in self.all]

    def client(self, **options: Any) -> "redis.RedisCluster":
        """A plain client of the whole cluster."""
        return redis.RedisCluster.from_url(self.url, **options)

    def _start(self, stack: ExitStack) -> None:
        for node in self.all:
            stack.enter_context(node)
        for number, node in enumerate(self.nodes):
            slots = range(SLOTS * number // NODES, SLOTS * (number + 1) // NODES)
            ask(node, "CLUSTER ADDSLOTS", *slots)
            ask(node, "CLUSTER SET-CONFIG-EPOCH", number + 1)
        for node in self.all[1:]:
            ask(node, "CLUSTER MEET", HOST, self.all[0].port)
        wait_until(self._agrees, "the nodes agree")
        for replica, master in self._replicated():
            ask(replica, "CLUSTER REPLICATE", ask(master, "CLUSTER MYID"))
        for replica in self.replicas:
            wait_until(lambda: in_step(replica), "the replica is in step")  # noqa: B023 -- at once

    def node_of(self, key: bytes) -> RedisServer:
        """The node that serves a key now."""
        with self.client() as client:
            port = client.get_node_from_key(key.decode("latin-1")).port
        return next(node for node in self.all if node.port == port)

    def replicate(self) -> None:
        """Wait until the replicas have all that was written: replication acknowledges nothing."""
        for replica, master in self._replicated():
            written = _offset(master, "master_repl_offset")
            wait_until(
                lambda: _offset(replica, "slave_repl_offset") >= written,  # noqa: B023 -- at once
                "the replica has what its master wrote",
            )

    def _replicated(self) -> Iterator[tuple[RedisServer, RedisServer]]:
        """Each replica with its master."""
        return zip(self.replicas, cycle(self.nodes), strict=False)

    def _agrees(self) -> bool:
        """Whether every node sees a whole cluster with all the others in it."""
        return all(
            info["cluster_state"] == "ok" and int(info["cluster_known_nodes"]) >= len(self.all)
            for info in (ask(node, "CLUSTER INFO") for node in self.all)
        )


def in_step(replica: RedisServer) -> bool:
    """Whether a replica has its master's data and hears of every change."""
    with replica.client() as client:
        return bool(client.info("replication").get("master_link_status") == "up")


def _offset(node: RedisServer, field: str) -> int:
    with node.client() as client:
        return int(client.info("replication")[field])


def ask(node: RedisServer, *command: Any) -> Any:
    """One node's answer to a command."""
    with node.client(decode_responses=True) as client:
        return client.execute_command(*command)
