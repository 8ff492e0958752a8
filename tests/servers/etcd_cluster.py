"""An etcd cluster for one test."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx2

from tests.servers.etcd import EtcdServer
from tests.servers.ports import free_port
from tests.servers.process import ServerFailed
from tests.servers.server import TRIES, ServerGroup
from tests.servers.waiting import wait_until

# Milliseconds, half of the defaults, so that tests wait less for a new leader.
FAST_ELECTION = ("--heartbeat-interval", "50", "--election-timeout", "500")


class EtcdCluster(ServerGroup):
    """Three members on loopback. `members[i]` is an `EtcdServer` that you can kill, pause and restart.

    Two members are a quorum. A single member neither starts nor answers. Without a leader, requests fail
    or take seconds, so wait with `leader()` after you have killed one.
    """

    def __init__(self, folder: Path) -> None:
        folders = [folder / f"member-{number}" for number in range(3)]
        self.members = [EtcdServer(each, extra=FAST_ELECTION) for each in folders]
        for member in self.members:
            member.members = self.members

    def _start(self, stack: ExitStack) -> None:
        for _ in range(TRIES):
            for member in self.members:
                shutil.rmtree(member.folder, ignore_errors=True)
                member.port = free_port(also=member.SECOND_PORT)
            with ExitStack() as started:
                for member in self.members:
                    started.push(member)
                try:
                    with ThreadPoolExecutor(len(self.members)) as threads:
                        list(threads.map(EtcdServer.start, self.members))
                except ServerFailed as failure:
                    if EtcdServer.PORT_IS_TAKEN not in str(failure):
                        raise
                else:
                    stack.push(started.pop_all())
                    return
        raise ServerFailed(f"no free ports in {TRIES} tries")

    def leader(self) -> EtcdServer:
        """Wait until all running members agree on a leader that runs, and return it."""
        return wait_until(self._agreed_leader, "the members have a leader")[0]

    def _agreed_leader(self) -> list[EtcdServer]:
        """Return the leader, or nothing yet."""
        running = [member for member in self.members if member.running]
        try:
            seen = [member.call("maintenance/status", {}) for member in running]
        except httpx2.HTTPError:
            return []
        leaders = {status.get("leader") for status in seen}
        ids = [status["header"]["member_id"] for status in seen]
        return [member for member, known in zip(running, ids, strict=True) if {known} == leaders]
