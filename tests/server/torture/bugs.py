"""Bugs to be planted in clients or in servers: the torture has to find each of them.

`python -m tests.server.torture --bug NAME` looks for one. As a script, `bugs.py NAME serve ...`, this is
`dibs serve` with a bug: so it imports nothing of the tests.
"""

import sys
from collections.abc import Callable
from typing import Any, Literal, NamedTuple


def put(owner: Any, name: str, by: Any) -> None:
    """Replace it. A bug in what has another name by now would never be found."""
    if not hasattr(owner, name):
        raise AttributeError(f"{owner!r} has no {name}: plant the bug where that is now")
    setattr(owner, name, by)


def goes_on_after_loss() -> None:
    from dibs.locks.lease import LeaseBase

    put(LeaseBase, "ensure", lambda self: None)


def release_not_done() -> None:
    """A server says that something is released, and the store has never heard of it."""
    from dibs.model import Release, Released
    from dibs.runtime.port import TimedReply
    from dibs.server.leases import LeaseService

    real = LeaseService.ask

    async def ask(self: Any, who: Any, command: Any) -> Any:
        if isinstance(command, Release):
            return TimedReply(Released(), self.runtime.now(), False)
        return await real(self, who, command)

    put(LeaseService, "ask", ask)


def the_same_for_the_same_owner() -> None:
    """Whoever asks again without an id, as after an answer that was lost, gets what its name has already."""
    from dibs.model import Inspect
    from dibs.server.api.locks import LockRoutes
    from dibs.server.api.waiting import WaitingAcquires

    known: dict[tuple[bytes, str], Any] = {}

    def plant(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        async def attempt(self: Any, caller: Any, wanted: Any, *how: Any, keep_id: bool) -> Any:
            had = known.get((wanted.key, wanted.owner))
            if had is not None and not keep_id:
                status = (await self._leases.ask(caller.principal, Inspect(wanted.key))).reply
                if any(holder.token == had.token for holder in status.holders):
                    return had
            had = await real(self, caller, wanted, *how, keep_id=keep_id)
            known[wanted.key, wanted.owner] = had
            return had

        put(owner, name, attempt)

    plant(LockRoutes, "_try")
    plant(WaitingAcquires, "acquire")


def gives_up_for_the_caller() -> None:
    """A server whose caller has hung up gives up the caller's own id, under which it may hold elsewhere.

    Few pauses end while such a hold lasts, so short runs of the torture miss it.
    `test_a_paused_server_keeps_the_ids_of_its_callers` finds it each time.
    """
    from dibs.locks.acquire import AcquireAttempt

    real = AcquireAttempt.__init__

    def init(self: Any, *given: Any, keep_id: bool = False, **more: Any) -> None:
        real(self, *given, **more)

    put(AcquireAttempt, "__init__", init)


def last_come_first_served() -> None:
    """The later somebody comes, the further ahead they stand."""
    import time
    from dataclasses import replace

    from dibs.model import Acquire
    from dibs.server.leases import LeaseService

    real = LeaseService.ask_all
    began = time.monotonic()

    async def ask_all(self: Any, who: Any, commands: Any) -> Any:
        priority = int(100 * (time.monotonic() - began))
        changed = [replace(c, priority=priority) if isinstance(c, Acquire) else c for c in commands]
        return await real(self, who, changed)

    put(LeaseService, "ask_all", ask_all)


class Bug(NamedTuple):
    """What breaks a process, of which kind, and the promise that it breaks."""

    plant: Callable[[], None]
    where: Literal["client", "server"]
    rule: str


BUGS = {
    "goes-on-after-loss": Bug(goes_on_after_loss, "client", "overlap"),
    "release-not-done": Bug(release_not_done, "server", "starved"),
    "the-same-for-the-same-owner": Bug(the_same_for_the_same_owner, "server", "overlap"),
    "gives-up-for-the-caller": Bug(gives_up_for_the_caller, "server", "overlap"),
    "last-come-first-served": Bug(last_come_first_served, "server", "token"),
}


def plant(name: str) -> None:
    if name:
        BUGS[name].plant()


if __name__ == "__main__":
    from dibs.cli import main

    plant(sys.argv[1])
    sys.exit(main(sys.argv[2:]))
