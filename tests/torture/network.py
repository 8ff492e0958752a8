"""The way to the store and back: messages are lost, late and doubled, the store is away."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dibs.core.names import fingerprint
from dibs.model import Acquire, Command, Inspect, Notification, Reply, Status
from dibs.stores.registry import store_for
from tests.torture.engine import Engine, SimSignal
from tests.torture.simruntime import SimRuntime

LATEST = 20.0
"""No copy of a message is later than this, which is well within a burial."""


@dataclass
class Weather:
    """How bad it is; probabilities per message."""

    lose: float = 0.02
    double: float = 0.02
    slow: float = 0.02
    """Up to a second: the sender may be waiting still."""
    late: float = 0.01
    """Up to `LATEST`: the sender has given up."""
    lose_push: float = 0.05
    latency: float = 0.004


CALM = Weather(lose=0, double=0, slow=0, late=0, lose_push=0)


class Message(NamedTuple):
    """A command on its way, when it was sent, and where its answer is waited for."""

    runtime: SimRuntime
    command: Command
    answer: SimSignal
    sent: float


class Network:
    """Delivers commands to the real memory store, and its replies and pushes to the clients.

    `seen` is called with each message and reply.
    """

    def __init__(self, engine: Engine, seen: Callable[[Message, Reply], None]) -> None:
        self.engine = engine
        self.weather = Weather()
        self.seen = seen
        store = store_for("memory://", clock=engine.clock)
        self.connection = store.blocking_connection()
        self.connection.subscribe(0.0)
        self.inbox = self.connection.inbox
        self.away_until = 0.0
        self.doubled: set[str] = set()
        """The notes of those whose Acquire was doubled on its way: a late copy may have been granted."""
        self._addresses: dict[str, tuple[SimRuntime, str]] = {}

    def send(self, runtime: SimRuntime, command: Command, answer: SimSignal) -> None:
        draw, weather = self.engine.random.random, self.weather
        copies = 2 if draw() < weather.double else 1
        if isinstance(command, Acquire):
            self._addresses[fingerprint(command.id)] = runtime, command.id
            if copies == 2:
                self.doubled.add(command.note)
        message = Message(runtime, command, answer, self.engine.now)
        for _ in range(copies):
            if draw() >= weather.lose:
                self.engine.at(self.engine.now + self._delay(), self._arrive, message)

    def _delay(self) -> float:
        fate = self.engine.random.random()
        if fate < self.weather.late:
            return self.engine.random.uniform(0, LATEST)
        if fate < self.weather.late + self.weather.slow:
            return self.engine.random.uniform(0, 1)
        return self.engine.random.expovariate(1 / self.weather.latency)

    def _arrive(self, message: Message) -> None:
        if self.engine.now < self.away_until:
            return
        reply = self.apply(message.command)
        self.seen(message, reply)
        self._push_all()
        if self.engine.random.random() >= self.weather.lose:
            when = self.engine.now + self._delay()
            self.engine.at(when, message.answer.set, reply, message.runtime.process)

    def apply(self, command: Command) -> Reply:
        """What the store makes of a command."""
        return self.connection.apply([command], 0.0)[0]

    def peek(self, key: bytes) -> Status:
        """What the store has of a key; no message is needed for that."""
        replies = self.connection.apply([Inspect(key)], 0.0)
        assert isinstance(replies[0], Status)
        self._push_all()
        return replies[0]

    def held(self) -> Sequence[Status]:
        """All that somebody holds or waits for, once the store has removed what is dead.

        Each look removes only so much.
        """
        for _ in range(100):
            self.connection.scan(b"", None, 1000)
        return self.connection.scan(b"", None, 1000).items

    def _push_all(self) -> None:
        for notification in self.connection.notifications(0.0):
            self._push(notification)

    def _push(self, notification: Notification) -> None:
        address = self._addresses.get(notification.lease)
        if address is None or self.engine.random.random() < self.weather.lose_push:
            return
        runtime, lease_id = address
        copies = 2 if self.engine.random.random() < self.weather.double else 1
        for _ in range(copies):
            when = self.engine.now + self._delay()
            push = lease_id, self.engine.now, notification
            self.engine.at(when, runtime.deliver, push, runtime.process)

    def forget(self, lease_id: str) -> None:
        """Nothing more is pushed for that id."""
        self._addresses.pop(fingerprint(lease_id), None)
