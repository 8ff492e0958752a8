"""One task of a simulated process: what all of its actions have in common."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dibs.errors import AcquireTimeout, BackendUnavailable, Deadlock, DibsError, LeaseLost
from dibs.model import MANY
from tests.torture.engine import Cancelled, Task

EXPECTED = (AcquireTimeout, BackendUnavailable, Deadlock, LeaseLost)
"""What may become of any action in bad weather."""

CIRCULAR = ("crossed", "rwlock")
"""Only there somebody may wait for somebody who waits for them."""

PATIENCES = (0.0, 0.5, 5.0, 120.0, None)

type Body = Callable[[Any], Awaitable[object]]


async def in_block(body: Awaitable[object], leave: Callable[[Any], Awaitable[object]]) -> None:
    """Do it as a `with` block does that ends with `leave`."""
    try:
        await body
    except BaseException as error:
        await leave(error)
        raise
    await leave(None)


class Hand:
    """One task of a process, which does one action after the other."""

    def __init__(self, life: Any, number: int) -> None:
        self.life = life
        self.world = life.world
        self.process = life.process
        self.engine = life.process.engine
        self.draw = life.process.engine.random
        self.runtime = life.runtime
        self.number = number
        self.keys: list[str] = []
        """Those that it is about at this moment."""
        self.action = ""
        self.tries = 0
        self.task: Task | None = None

    async def live(self) -> None:
        self.task = self.process.running
        while not self.world.closing:
            await self.sleep(self.draw.expovariate(1 / 0.1))
            if self.world.closing:
                break
            name, action = self.life.draw_action()
            self.action = name
            try:
                await action(self)
            except EXPECTED as error:
                if isinstance(error, Deadlock) and name not in CIRCULAR:
                    self.world.record("error", self.about, resource=f"{name}: {error!r}")
            except Cancelled as interrupt:
                if interrupt.by is not None:
                    self.world.record(
                        "error", self.about, resource="cancelled by a lease that is over"
                    )
            except Exception as error:
                self.world.record("error", self.about, resource=f"{name}: {error!r}")
            self.action = ""
            self.keys.clear()

    @property
    def about(self) -> str:
        return self.keys[-1] if self.keys else ""

    async def sleep(self, seconds: float) -> None:
        await self.runtime.signal().wait(seconds)

    # -- acquiring ------------------------------------------------------------------------------------

    @contextmanager
    def attempt(self, *primitives: Any) -> Iterator[tuple[str, float]]:
        """Yields a note for it, and when it began. Whoever gives up leaves nothing behind."""
        self.keys += [primitive.key.decode() for primitive in primitives]
        self.tries += 1
        note = f"{self.process.number}.{self.number}.{self.tries}"
        try:
            yield note, self.engine.now
        except BaseException:
            if self.process.alive:
                for primitive in primitives:
                    ttl = primitive.config.ttl
                    self.world.look_for(self.process, primitive.key, note, ttl)
            raise

    async def acquire(self, primitive: Any, units: int = 1, **more: Any) -> Any:
        """Acquire for some patience, and write down what comes of it."""
        wait = more["wait"] if "wait" in more else self.draw.choice(PATIENCES)
        with self.attempt(primitive) as (note, invoked):
            try:
                lease = await primitive._acquire(units, wait, None, note)
            except DibsError:
                self.record("gave_up", self.about, invoked=invoked)
                raise
        held = MANY if lease._options.units == MANY else units
        capacity = more.get("most", primitive._capacity)
        self.granted(lease, invoked, units=held, capacity=capacity)
        return lease

    def granted(self, lease: Any, invoked: float, units: int = 1, capacity: int = 1) -> None:
        self.life.leases += 1
        lease.called = f"{self.process.number}-{self.life.leases}"
        lease.teller = self
        self.world.called[lease._id] = lease.called
        self.tell("granted", lease, invoked=invoked, units=units, capacity=capacity)
        self.tell(
            "trusts", lease, until=self.allowed(lease), invoked=self.process.real(lease._deadline)
        )
        self.world.tally[self.action] += 1

    # -- holding --------------------------------------------------------------------------------------

    async def hold(self, lease: Any, body: Body | None = None) -> None:
        """Hold as a `with` block does, where whoever loses the lease is interrupted, or without one."""
        as_block = self.draw.random() < 0.5

        async def leave(error: BaseException | None) -> None:
            self.tell("releasing", lease)
            await (lease._leave(error) if as_block else lease._release())

        if as_block:
            try:
                lease._enter()
            except BaseException:  # lost before it began, and handed back
                self.tell("releasing", lease)
                raise
        await in_block((body or self.use)(lease), leave)

    async def use(self, lease: Any) -> None:
        """Most holds are short, some last several ttls, some are paused between check and write."""
        ttl, draw = lease.ttl, self.draw
        length = draw.choices((0.0, 0.02, 0.3 * ttl, 1.5 * ttl, 3 * ttl), (45, 45, 6, 2, 2))[0]
        for _ in range(draw.randint(1, 3)):
            await self.sleep(0.0 if self.world.closing else length / 3)
            if not await self.check(lease):
                return
            self.write(lease)

    async def check(self, lease: Any) -> bool:
        """Whether it may go on; sometimes it stands still right after it was told."""
        try:
            lease.ensure()
        except DibsError:
            return False
        self.believed(lease)
        if self.draw.random() < 0.01 and not self.world.closing:
            self.life.stop(self.draw.choice((0.5, 1, 3)) * min(lease.ttl, 10.0))
            await self.sleep(0)
        return True

    def write(self, lease: Any) -> None:
        """Late as it may be: only the fenced resource can tell."""
        key = lease.key.decode()
        self.tell("wrote", lease, resource=f"unfenced {key}")
        if self.world.resources.accepts(key, lease.token, lease.slots):
            self.tell("wrote", lease, resource=f"fenced {key}")

    # -- writing down ---------------------------------------------------------------------------------

    def believed(self, lease: Any) -> None:
        """It was told that it holds, and here is until when it may be told so at most."""
        self.tell("believed", lease, until=self.allowed(lease))

    def allowed(self, lease: Any) -> float:
        """Until when a lease may be relied on, as the messages tell that its process has got."""
        sent, until = self.runtime.word[lease._id]
        return float(self.process.real(min(until, sent + lease._options.rules.trust_for)))

    def tell(self, what: Any, lease: Any, **more: Any) -> None:
        more.setdefault("until", self.process.real(lease._deadline))
        more.setdefault("slots", lease.slots)
        more.setdefault("token", lease.token)
        self.record(what, lease.key.decode(), lease=lease.called, **more)

    def record(self, what: Any, key: str, **more: Any) -> None:
        if self.process.alive:
            self.world.record(what, key, process=self.process.number, **more)
