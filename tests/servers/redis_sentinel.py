"""A Redis with a replica and Sentinels of its own for a test."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from redis.sentinel import MasterNotFoundError, Sentinel

from tests.servers.ports import HOST
from tests.servers.redis import RedisServer
from tests.servers.redis_cluster import in_step
from tests.servers.server import ServerGroup
from tests.servers.waiting import wait_until


class SentinelServer(RedisServer):
    """One Sentinel: the same program in another mode."""

    mode = ("--sentinel",)

    def _lines(self) -> list[str]:
        return [f"bind {HOST}", f"dir {self.folder}", f"port {self.port}", *self.extra]


class RedisSentinel(ServerGroup):
    """`servers[0]` begins as the master, the other as its replica; `sentinels` watch them.

    A master that is silent for `down_after` seconds, for a quorum of Sentinels, is replaced. Replication
    is asynchronous, as always: a failover loses what the replica had not heard.
    """

    service = "leases"

    def __init__(self, folder: Path, *, down_after: float = 1.0) -> None:
        at_once = ["repl-diskless-sync-delay 0"]
        self.servers = [RedisServer(folder / f"server-{n}", extra=at_once) for n in range(2)]
        self.sentinels = [SentinelServer(folder / f"sentinel-{n}") for n in range(3)]
        self._down_after = down_after

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Of the Sentinels: what a client is given, with the name of the `service`."""
        return [(HOST, sentinel.port) for sentinel in self.sentinels]

    @property
    def master(self) -> RedisServer:
        """The server that the Sentinels name; in the middle of a failover, as soon as they do."""
        return wait_until(self._named, "a Sentinel names a master")[0]

    def _start(self, stack: ExitStack) -> None:
        master, replica = (stack.enter_context(server) for server in self.servers)
        with replica.client() as client:
            client.replicaof(HOST, master.port)
        wait_until(lambda: in_step(replica), "the replica is in step")
        quorum = len(self.sentinels) // 2 + 1
        for sentinel in self.sentinels:
            sentinel.extra = (
                f"sentinel monitor {self.service} {HOST} {master.port} {quorum}",
                f"sentinel down-after-milliseconds {self.service} {int(self._down_after * 1000)}",
                f"sentinel failover-timeout {self.service} {int(self._down_after * 4000)}",
            )
            stack.enter_context(sentinel)
        wait_until(lambda: all(map(self._sees_all, self.sentinels)), "the Sentinels agree")

    def failover(self) -> None:
        """Have the replica promoted now, and wait until the Sentinels name it."""
        before = self.master
        with self.sentinels[0].client() as client:
            client.sentinel_failover(self.service)
        wait_until(lambda: self.master is not before, "another master is named")

    def _named(self) -> list[RedisServer]:
        """The master, or nothing while there is none."""
        running = [(HOST, sentinel.port) for sentinel in self.sentinels if sentinel.running]
        asked: Any = Sentinel(running, socket_timeout=2)  # type: ignore[no-untyped-call]
        try:
            _, port = asked.discover_master(self.service)
        except MasterNotFoundError:
            return []
        return [server for server in self.servers if server.port == port]

    def _sees_all(self, sentinel: RedisServer) -> bool:
        """Whether it sees the master, all the others, and a replica fit to take over."""
        with sentinel.client() as client:
            master: Any = client.sentinel_master(self.service)
            replicas: Any = client.sentinel_slaves(self.service)
        return (
            master["flags"] == "master"
            and master["num-other-sentinels"] == len(self.sentinels) - 1
            and [(one["flags"], one["master-link-status"]) for one in replicas] == [("slave", "ok")]
        )
