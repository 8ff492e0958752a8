"""The connection at which an event loop hears what is pushed to it."""

from collections.abc import Callable, Sequence

from dibs.backends.postgres import script
from dibs.backends.postgres.connecting import connect_loop
from dibs.backends.postgres.hearing import listen
from dibs.backends.postgres.loop_wire import LoopWire
from dibs.backends.postgres.session import Session
from dibs.backends.postgres.site import Site
from dibs.model import Wakeup


class Ears:
    """One inbox, listened to again after every break."""

    def __init__(
        self,
        site: Site,
        inbox: str,
        take: Callable[[Sequence[Wakeup]], None],
        broken: Callable[[], None],
    ) -> None:
        self.inbox = inbox
        self.can_hear = True
        """Nothing in between keeps pushes from us."""
        self._take = take
        self._broken = broken
        self._session = Session(site, connect_loop, after=self._listen)

    @property
    def are_deaf(self) -> bool:
        """The connection broke, and nobody has made another."""
        wire = self._session.wire
        return wire is None or wire.is_cut

    @property
    def wire(self) -> LoopWire | None:
        """The connection, for what may be done on it besides."""
        return self._session.wire

    async def open(self) -> None:
        """Listen. Raises what the session raises."""
        await self._session.connected()

    def close(self) -> None:
        """Listen no more."""
        wire = self._session.wire
        if wire is not None:
            wire.on_break = wire.on_pushes = None
        self._session.cut()

    def after_fork(self) -> None:
        """In the child: the parent listens."""
        self._session.after_fork()

    async def _listen(self, wire: LoopWire) -> None:
        self.can_hear = await listen(wire, self.inbox, self._session.site, connect_loop)
        wire.on_pushes = self._hear
        wire.on_break = self._broken

    def _hear(self, payloads: list[str]) -> None:
        pushes = (script.read_push(payload, self.inbox) for payload in payloads)
        self._take([push for push in pushes if push is not None])
