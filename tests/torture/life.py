"""What a simulated client does: acquire, hold, write, release; pause and die at bad moments."""

from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

from leasehold.core.names import Kind
from leasehold.errors import AcquireTimeout, BackendUnavailable, LeaseholdError
from leasehold.model import MANY
from leasehold.primitives.lease import LeaseBase
from leasehold.primitives.primitive import PrimitiveBase
from leasehold.testing import Event
from tests.torture.engine import Process
from tests.torture.network import Network
from tests.torture.simruntime import SimRuntime

TTLS = (0.6, 2.0, 10.0)
KEYS = {"a": 1, "b": 1, "c": 1, "pool": 3, "table": MANY}
"""Names and capacities."""


class SimLease(LeaseBase):
    """Records the deadlines that follow from confirmed renewals."""

    note: Callable[..., None]

    def _extend(self, sent: float, ttl: float) -> None:
        super()._extend(sent, ttl)
        if self._end is None:
            self.note("renewed", self)


class SimPrimitive(PrimitiveBase[SimLease]):
    """Any of the primitives, by its capacity."""

    kind: ClassVar[Kind] = "lock"
    _lease_type = SimLease

    def __init__(self, name: str, capacity: int, ttl: float, runtime: SimRuntime) -> None:
        self.capacity = capacity
        self.runtime = runtime
        super().__init__(name, ttl=ttl, env_load=False)

    @property
    def _capacity(self) -> int:
        return self.capacity

    def _runtime(self) -> SimRuntime:  # type: ignore[override]
        return self.runtime


class Resources:
    """What the leases protect: one that compares tokens, and one that does not."""

    def __init__(self) -> None:
        self.newest: dict[tuple[str, int | None], int] = {}

    def accepts(self, key: str, token: int, slots: tuple[int, ...]) -> bool:
        """Whether the fenced one takes a write under that token."""
        places = [(key, slot) for slot in slots or (None,)]
        if any(token < self.newest.get(place, 0) for place in places):
            return False
        for place in places:
            self.newest[place] = token
        return True


class Life:
    """One client process from its start to its death."""

    def __init__(
        self,
        process: Process,
        network: Network,
        resources: Resources,
        history: list[Event],
        tally: Counter[str],
    ) -> None:
        self.process = process
        self.engine = process.engine
        self.draw = process.engine.random
        self.runtime = SimRuntime(process, network)
        self.resources = resources
        self.history = history
        self.tally = tally
        self.key = ""
        self._primitives: dict[tuple[str, float], SimPrimitive] = {}
        self._lease: SimLease | None = None
        self._numbers = 0
        process.spawn(self.live())

    async def live(self) -> None:
        while True:
            await self.sleep(self.draw.expovariate(1 / 0.1))
            await self.cycle()

    async def sleep(self, seconds: float) -> None:
        await self.runtime.signal().wait(seconds)

    async def cycle(self) -> None:
        """One turn on one key."""
        name = self.draw.choice(tuple(KEYS))
        primitive = self.primitive(name, self.draw.choice(TTLS))
        units = self.units(primitive.capacity)
        self.key = primitive.key.decode()
        invoked = self.engine.now
        try:
            lease = await primitive._acquire(units, self.draw.choice((0, 0.5, 5, 120)))
        except (AcquireTimeout, BackendUnavailable) as error:
            if isinstance(error, AcquireTimeout):
                self.record("gave_up", invoked=invoked)
            return
        self._lease = lease
        self._numbers += 1
        lease.note = self.tell
        self.tell("granted", lease, invoked=invoked, units=units, capacity=primitive.capacity)
        self.tally["cycles"] += 1
        await self.hold(lease, primitive)
        self.tell("releasing", lease)
        await lease._release()
        self._lease = None

    def primitive(self, name: str, ttl: float) -> SimPrimitive:
        found = self._primitives.get((name, ttl))
        if found is None:
            found = self._primitives[name, ttl] = SimPrimitive(name, KEYS[name], ttl, self.runtime)
        return found

    def units(self, capacity: int) -> int:
        if capacity == MANY:
            return MANY if self.draw.random() < 0.3 else 1
        return self.draw.randint(1, min(capacity, 2))

    async def hold(self, lease: SimLease, primitive: SimPrimitive) -> None:
        """Most holds are short, some last several ttls, some are paused between check and write."""
        ttl, draw = primitive._ttl, self.draw
        length = draw.choices((0.0, 0.02, 0.3 * ttl, 1.5 * ttl, 3 * ttl), (45, 45, 6, 2, 2))[0]
        for _ in range(draw.randint(1, 3)):
            await self.sleep(length / 3)
            try:
                lease.ensure()
            except LeaseholdError:
                return
            self.tell("believed", lease)
            if draw.random() < 0.02:
                self.stop(draw.choice((0.5, 1, 3)) * ttl)
                await self.sleep(0)
            self.write(lease)

    def write(self, lease: SimLease) -> None:
        """Late as it may be: only the fenced resource can tell."""
        if lease.slots != () or self.key.endswith(("a", "b", "c")):
            self.tell("wrote", lease, resource=f"unfenced {self.key}", slots=lease.slots)
            if self.resources.accepts(self.key, lease.token, lease.slots):
                self.tell("wrote", lease, resource=f"fenced {self.key}", slots=lease.slots)

    def stop(self, seconds: float) -> None:
        """As SIGSTOP does; SIGCONT comes later."""
        self.record("disturbed")
        self.process.pause(seconds)
        self.engine.at(self.process.paused_until, lambda _: self.record("disturbed"))

    def die(self) -> None:
        """As kill -9 does."""
        self.record("disturbed")
        self.process.alive = False
        if self._lease is not None:
            self._lease._finish("dead")

    def tell(self, what: Any, lease: SimLease, **more: Any) -> None:
        """Record an event of a lease, in true time."""
        until = self.process.real(lease._deadline)
        name = f"{self.process.number}-{self._numbers}"
        event = Event(self.engine.now, what, self.key, lease=name, token=lease.token, until=until)
        more.setdefault("slots", lease.slots)
        self.history.append(event._replace(process=self.process.number, **more))

    def record(self, what: Any, **more: Any) -> None:
        event = Event(self.engine.now, what, self.key, process=self.process.number)
        self.history.append(event._replace(**more))
