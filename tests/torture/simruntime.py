"""The runtime port in virtual time: the real primitives run over it as they do over asyncio."""

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any
from weakref import ref

from dibs.core.timing import trusted
from dibs.errors import BackendUnavailable, DibsError
from dibs.model import (
    Acquire,
    Capabilities,
    Command,
    Granted,
    Notification,
    Release,
    Renew,
    Renewed,
)
from dibs.runtime.holding import HeldByOwner
from dibs.runtime.notifications import NotificationRouter
from dibs.runtime.port import CallResult, TimedReply, Watched
from tests.torture.engine import Dead, Process, SimGuard, SimSignal, Task

if TYPE_CHECKING:
    from tests.torture.network import Network

CALL_TIMEOUT = 1.0


class SimKeeper:
    """Renews and abandons, each message on its own. It holds leases weakly, as the real one."""

    def __init__(self, runtime: "SimRuntime") -> None:
        self._runtime = runtime
        self._process = runtime.process

    def prepare(self) -> None:
        pass

    def watch(self, lease: Watched, when: float, lead: float) -> None:
        early = self._process.engine.random.random() * lead / 16
        lease._bucket = ticket = object()
        self._process.at(when - early, self._look, (ref(lease), ticket))

    def unwatch(self, lease: Watched) -> None:
        lease._bucket = None

    def held(self, key: bytes) -> frozenset[str]:
        return frozenset()

    def _look(self, watched: tuple[Callable[[], Watched | None], object]) -> None:
        reference, ticket = watched
        lease = reference()
        if lease is None or lease._bucket is not ticket:
            return
        now = self._process.now()
        care = lease._check(now)
        if care.again_at is not None:
            self.watch(lease, care.again_at, max(care.again_at - now, 0.0))
        if care.renew:
            self._process.spawn(self._renew(reference, lease._renewal()))

    async def _renew(self, reference: Callable[[], Watched | None], command: Command) -> None:
        answer: TimedReply | DibsError
        try:
            answer = await self._runtime.call(command)
        except DibsError as error:
            answer = error
        lease = reference()
        if lease is None:
            return
        if isinstance(answer, DibsError):
            lease._not_renewed(answer)
        else:
            lease._renewed(answer)

    def abandon(
        self, key: bytes, lease_id: str, tombstone: float, retain_until: float | None = None
    ) -> None:
        self._process.spawn(self._give_up(key, lease_id, tombstone, retain_until))

    async def _give_up(
        self, key: bytes, lease_id: str, tombstone: float, retain_until: float | None
    ) -> None:
        for attempt in range(8):
            keep = 0.0 if retain_until is None else max(retain_until - self._process.now(), 0.0)
            try:
                await self._runtime.call(Release(key, lease_id, keep, tombstone))
            except BackendUnavailable:
                await self._runtime.signal().wait(0.1 * 2**attempt)
            else:
                return


class SimRuntime:
    def __init__(self, process: Process, network: "Network") -> None:
        self.process = process
        self.capabilities = Capabilities(scope="process")
        self.keeper = SimKeeper(self)
        self.notifications = NotificationRouter(self._revoked)
        self.connect_timeout = 10.0
        self.call_timeout = CALL_TIMEOUT
        self.holding = HeldByOwner()
        self.now = process.now
        self.inbox = network.inbox
        self.is_ready = True
        self.is_over = False
        self.word: dict[str, tuple[float, float]] = {}
        """By id: when its last confirmation was sent, and until when the store's word can be relied on."""
        self._network = network

    async def call(self, command: Command, wait: float | None = None) -> TimedReply:
        (answer,) = await self.call_all([command])
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def call_all(
        self, commands: Sequence[Command], wait: float | None = None
    ) -> Sequence[CallResult]:
        """They leave at the same time, and each has a fate of its own."""
        if not self.process.alive:
            raise Dead
        sent, told = self.now(), list[CallResult]()
        answers = [self.signal() for _ in commands]
        for command, answer in zip(commands, answers, strict=True):
            self._network.send(self, command, answer)
        for command, answer in zip(commands, answers, strict=True):
            try:
                told.append(await self._answer(command, sent, answer))
            except BackendUnavailable as error:
                told.append(error)
        return told

    async def _answer(self, command: Command, sent: float, answer: SimSignal) -> TimedReply:
        if isinstance(command, Release):
            self._network.forget(command.id)
        if not await answer.wait(max(sent + CALL_TIMEOUT - self.now(), 0.0)):
            raise BackendUnavailable("no answer")
        reply = answer.value
        if isinstance(reply, Granted | Renewed) and isinstance(command, Acquire | Renew):
            self._believe(command.id, sent, sent + trusted(reply.ttl))
        return TimedReply(reply, sent)

    def _believe(self, lease_id: str, sent: float, until: float) -> None:
        before = self.word.get(lease_id, (sent, until))
        self.word[lease_id] = max(sent, before[0]), max(until, before[1])

    def deliver(self, push: tuple[str, float, Notification]) -> None:
        """A push has come, for that id, about what happened at that (true) time."""
        lease_id, at, notification = push
        if notification.event == "granted":
            granted = self.process.offset + self.process.rate * at
            self._believe(lease_id, granted, granted + trusted(notification.claim_timeout))
        self.notifications.deliver(notification)

    async def ready(self, timeout: float | None = None) -> None: ...

    async def listen(self) -> None: ...

    def signal(self) -> SimSignal:
        return SimSignal(self.process)

    def guard(self) -> SimGuard:
        return SimGuard(self.process)

    def spawn(self, body: Coroutine[Any, Any, None], name: str) -> Task:
        task = self.process.spawn(body)
        if task is None:
            raise Dead
        return task

    def me(self) -> object:
        return self.process.running

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.process.soon(lambda _: callback())

    def _revoked(self, notification: Notification) -> None:
        """Bodies learn of it by their next renewal."""
