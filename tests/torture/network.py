"""The way to the store and back: messages are lost, late and doubled, the store is away."""

from dataclasses import dataclass

from leasehold.backends import store_for
from leasehold.backends.port import Backend
from leasehold.core.names import fingerprint
from leasehold.model import Acquire, Command, Reply, Wakeup
from leasehold.runtime.step import step
from tests.torture.engine import Engine
from tests.torture.simruntime import SimRuntime, SimSignal

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


class Network:
    """Delivers commands to the real memory store, and its replies and pushes to the clients."""

    def __init__(self, engine: Engine, weather: Weather) -> None:
        self.engine = engine
        self.weather = weather
        self.backend: Backend = store_for("memory://", clock=engine.clock).backend(blocking=True)
        step(self.backend.open())
        self.inbox = self.backend.inbox
        self.away_until = 0.0
        self._addresses: dict[str, SimRuntime] = {}

    def send(self, runtime: SimRuntime, command: Command, answer: SimSignal) -> None:
        """Send a command on its way; the answer is set when a reply arrives, if one does."""
        if isinstance(command, Acquire):
            self._addresses[fingerprint(command.id)] = runtime
        draw, weather = self.engine.random.random, self.weather
        copies = 2 if draw() < weather.double else 1
        for _ in range(copies):
            if draw() >= weather.lose:
                when = self.engine.now + self._delay()
                self.engine.at(when, self._arrive, (runtime, command, answer))

    def _delay(self) -> float:
        fate = self.engine.random.random()
        if fate < self.weather.late:
            return self.engine.random.uniform(0, LATEST)
        if fate < self.weather.late + self.weather.slow:
            return self.engine.random.uniform(0, 1)
        return self.engine.random.expovariate(1 / self.weather.latency)

    def _arrive(self, message: tuple[SimRuntime, Command, SimSignal]) -> None:
        runtime, command, answer = message
        if self.engine.now < self.away_until:
            return
        reply = self.apply(command)
        for wakeup in step(self.backend.wakeups(0.0)):
            self._push(wakeup)
        if self.engine.random.random() >= self.weather.lose:
            when = self.engine.now + self._delay()
            self.engine.at(when, answer.set, reply, runtime.process)

    def apply(self, command: Command) -> Reply:
        """What the store makes of a command."""
        replies = self.backend.apply_now([command])
        assert replies is not None
        return replies[0]

    def _push(self, wakeup: Wakeup) -> None:
        runtime = self._addresses.get(wakeup.lease)
        if runtime is None or self.engine.random.random() < self.weather.lose_push:
            return
        copies = 2 if self.engine.random.random() < self.weather.double else 1
        for _ in range(copies):
            when = self.engine.now + self._delay()
            self.engine.at(when, runtime.mail.deliver, wakeup, runtime.process)

    def forget(self, lease_id: str) -> None:
        """Nothing more is pushed for that id."""
        self._addresses.pop(fingerprint(lease_id), None)
