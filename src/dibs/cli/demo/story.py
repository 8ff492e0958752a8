"""Turns events into the demo's lines: who dies, who comes next, who leads, who forgot to renew."""

from dibs.cli.wording import counted, shown, span
from dibs.model import Holder
from dibs.server.observatory.events import Event


class Story:
    """Picks the events worth a line, and counts."""

    def __init__(self) -> None:
        self._left: dict[bytes, Holder] = {}
        """Whose holder was killed, until somebody else holds it."""
        self._dead: set[str] = set()
        """Leases of workers that were killed, and leases whose expiry was reported."""
        self._grants = 0
        self._longest = 0.0
        self._kills = 0
        self._in_all = 0

    def killed(self, key: bytes, holder: Holder) -> str:
        """Somebody has died, and holds this."""
        self._left[key] = holder
        self._dead.add(holder.lease)
        self._kills += 1
        who, pid, name = worker_of(holder.owner), process_of(holder.owner), shown(key)
        return f"kill -9 {pid}: {who} dies while holding {name}, for {holder.expires_in:.1f} s more"

    def heard(self, event: Event) -> str:
        """What is to be told of it; empty for nothing."""
        who, name = worker_of(event.owner), shown(event.key)
        if event.what == "expired":
            if event.lease in self._dead:
                return ""
            self._dead.add(event.lease)
            return f"{name}: {who} did not renew its lease, so it expired"
        if event.what != "granted":
            return ""
        self._grants += 1
        self._in_all += 1
        self._longest = max(self._longest, event.waited or 0.0)
        dead = self._left.pop(event.key, None)
        if dead is not None:
            return f"{name} passes from {worker_of(dead.owner)}, which is dead, to {who}"
        return f"{name}: {who} is the leader now" if event.kind == "leader" else ""

    def summed_up(self, seconds: float) -> str:
        """How much has happened since this was asked last."""
        grants, longest = self._grants, self._longest
        self._grants, self._longest = 0, 0.0
        return (
            f"{counted(grants, 'grant')} in {span(seconds)}; the longest wait was {longest:.1f} s"
        )

    def closed(self) -> str:
        """The last word, once nothing runs any more."""
        grants, kills = counted(self._in_all, "grant"), counted(self._kills, "kill")
        return f"{grants} and {kills} in total; all processes have ended"


def worker_of(owner: str) -> str:
    """The worker's name in `host/pid/name`."""
    return owner.rpartition("/")[2]


def process_of(owner: str) -> int:
    """The process in it; 0 for none."""
    pid = owner.rpartition("/")[0].rpartition("/")[2]
    return int(pid) if pid.isdecimal() else 0
