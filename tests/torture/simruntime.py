"""The runtime port in virtual time: the real primitives run over it as they do over asyncio."""

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from leasehold.errors import BackendUnavailable, LeaseholdError
from leasehold.model import Capabilities, Command, Release, Wakeup
from leasehold.runtime.mail import Mailroom
from leasehold.runtime.port import Answer, Watched
from tests.torture.engine import Process

if TYPE_CHECKING:
    from tests.torture.network import Network

CALL_TIMEOUT = 1.0


class SimSignal:
    """Set at most once; awaited by one task of its process."""

    __slots__ = ("_done", "_process", "value", "wake")

    def __init__(self, process: Process) -> None:
        self._process = process
        self._done = False
        self.value: Any = None
        self.wake: Callable[[Any], None] | None = None

    def set(self, value: object = None) -> None:
        if not self._done:
            self.value = value
            self._finish(told=True)

    def _finish(self, *, told: bool) -> None:
        self._done = True
        wake, self.wake = self.wake, None
        if wake is not None:
            self._process.soon(wake, told)

    def _time_out(self, _: object) -> None:
        if not self._done:
            self._finish(told=False)

    async def wait(self, timeout: float | None) -> bool:
        if self._done:
            return True
        if timeout is not None:
            self._process.at(self._process.now() + timeout, self._time_out)
        return await _Suspended(self)


class _Suspended:
    __slots__ = ("_signal",)

    def __init__(self, signal: SimSignal) -> None:
        self._signal = signal

    def __await__(self) -> Generator[SimSignal, bool, bool]:
        return (yield self._signal)


class SimGuard:
    """Nobody is interrupted: bodies ask."""

    def enter(self) -> None: ...

    def fire(self) -> None: ...

    def leave(self, exc: BaseException | None) -> bool:
        return exc is None


class SimKeeper:
    """Renews and abandons, each message on its own."""

    def __init__(self, runtime: "SimRuntime") -> None:
        self._runtime = runtime
        self._process = runtime.process

    def watch(self, lease: Watched, when: float, lead: float) -> None:
        early = self._process.engine.random.random() * lead / 16
        lease._bucket = ticket = object()
        self._process.at(when - early, self._look, (lease, ticket))

    def unwatch(self, lease: Watched) -> None:
        lease._bucket = None

    def held(self, key: bytes) -> frozenset[str]:
        return frozenset()

    def _look(self, watched: tuple[Watched, object]) -> None:
        lease, ticket = watched
        if lease._bucket is not ticket:
            return
        now = self._process.now()
        care = lease._check(now)
        if care.again_at is not None:
            self.watch(lease, care.again_at, max(care.again_at - now, 0.0))
        if care.renew:
            self._process.spawn(self._renew(lease))

    async def _renew(self, lease: Watched) -> None:
        try:
            answer = await self._runtime.call(lease._renewal())
        except LeaseholdError as error:
            lease._not_renewed(error)
        else:
            lease._renewed(answer)

    def abandon(self, key: bytes, lease_id: str, bury: float) -> None:
        self._process.spawn(self._give_up(Release(key, lease_id, bury=bury)))

    async def _give_up(self, release: Release) -> None:
        for attempt in range(8):
            try:
                await self._runtime.call(release)
            except BackendUnavailable:
                await self._runtime.signal().wait(0.1 * 2**attempt)
            else:
                return


class SimRuntime:
    """One process's way to the store."""

    def __init__(self, process: Process, network: "Network") -> None:
        self.process = process
        self.capabilities = Capabilities(scope="process")
        self.keeper = SimKeeper(self)
        self.mail = Mailroom(self._revoked)
        self.connect_timeout = 10.0
        self.call_timeout = CALL_TIMEOUT
        self.holding: dict[tuple[bytes, object], int] = {}
        self.now = process.now
        self.inbox = network.inbox
        self.is_ready = True
        self.is_over = False
        self._network = network

    async def call(self, command: Command, patience: float | None = None) -> Answer:
        sent, answer = self.now(), self.signal()
        self._network.send(self, command, answer)
        if isinstance(command, Release):
            self._network.forget(command.id)
        if not await answer.wait(CALL_TIMEOUT):
            raise BackendUnavailable("no answer")
        return Answer(answer.value, sent)

    async def ready(self) -> None: ...

    async def listen(self) -> None: ...

    def signal(self) -> SimSignal:
        return SimSignal(self.process)

    def guard(self) -> SimGuard:
        return SimGuard()

    def me(self) -> object:
        return self

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.process.soon(lambda _: callback())

    def _revoked(self, wakeup: Wakeup) -> None:
        """Bodies learn of it by their next renewal."""
