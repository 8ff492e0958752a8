"""`Tasks`: the scheduler as an application starts, stops and watches it."""

import asyncio
from collections.abc import Callable, Iterable
from datetime import tzinfo
from typing import Self

from dibs import Client, connect
from dibs.clock import Clock, SystemClock
from dibs.config import Duration, seconds
from dibs.model import Promise
from dibs.process import on_sigterm
from dibs.settings import store_name
from dibs.tasks.attempt import Claimant
from dibs.tasks.clock import TickClock
from dibs.tasks.definition import Definition, Led, Scheduled
from dibs.tasks.router import Registry
from dibs.tasks.schedule import zone_of
from dibs.tasks.session import TaskSession
from dibs.tasks.status import OnError, RunStats, TaskStatus


class Tasks(Registry):
    """Runs tasks in an event loop. One of the processes that declare a task runs each of its ticks.

    Enter it with `async with` in an application's lifespan, or await `run()`. It can be started again
    after its end, also in another loop.
    Contention: the first process to claim a tick runs it, unless a run of that task is still under way
    anywhere. Expiry: a task has `max_hold` seconds, after which others may start it; nothing is renewed.
    Cancellation: a stop waits `shutdown_timeout` seconds for what runs, then cancels it.
    """

    def __init__(
        self,
        *,
        client: Client | str | None = None,
        timezone: str | tzinfo = "UTC",
        shutdown_timeout: Duration = "30s",
        on_error: OnError | None = None,
        require: Promise | Iterable[Promise] = (),
        clock: Clock | None = None,
    ) -> None:
        """`client`: a client, or a store's name. Default: the default store at the start.

        `timezone` is the zone of cron expressions. `on_error` is called with a `TaskFailure` for each run
        that fails; it can be a coroutine function. `require` names what the store must promise, as for
        every lock. `clock` is for tests.
        """
        super().__init__()
        if client is not None and not isinstance(client, Client | str):
            raise TypeError(
                f"client is {client!r}: give what dibs.connect() returned, or a store's name"
            )
        if on_error is not None and not callable(on_error):
            raise TypeError(f"on_error is {on_error!r}: give a function of a TaskFailure")
        self._client = store_name(client) if isinstance(client, str) else client
        self._zone = zone_of(timezone)
        self._shutdown_timeout = seconds(shutdown_timeout, "shutdown_timeout")
        self._on_error = on_error
        self._require = frozenset({require} if isinstance(require, str) else require)
        self._clock = clock or SystemClock()
        self._stats: dict[str, RunStats] = {}
        self._session: TaskSession | None = None
        self._adding: set[asyncio.Task[None]] = set()

    # -- start and stop -----------------------------------------------------------------------------

    async def start(self) -> None:
        """Start trying ticks. Returns at once; a store that is away is waited for.

        Raises `RuntimeError` if it runs already, `NotConfigured` without a store, and `MissingCapability`
        for a store that does not promise what is required.
        """
        if self._session is not None:
            raise RuntimeError(
                "these tasks run already: start them once, and stop them before again"
            )
        claimant = Claimant(self._store(), self._require)
        session = TaskSession(claimant, TickClock(self._clock), self._shutdown_timeout)
        self._session = session
        try:
            for definition in list(self._definitions.values()):
                await session.begin(definition, self._stats[definition.name])
        except BaseException:
            await self.stop()
            raise

    def _store(self) -> Client:
        """The client to use. Raises `NotConfigured` without a store."""
        if isinstance(self._client, Client):
            return self._client
        return connect() if self._client is None else Client.named(self._client)

    async def stop(self) -> None:
        """Try no more ticks, and wait for what runs: `shutdown_timeout` seconds, then it is cancelled.

        Locks are released, or stay closed for their `min_hold`. Does nothing if nothing runs, and can be
        called again meanwhile. If it is cancelled itself, it cancels what runs at once.
        """
        session = self._session
        if session is not None:
            try:
                await session.stop()
            finally:
                if self._session is session:
                    self._session = None

    async def run(self, *, ready: Callable[[], object] | None = None) -> None:
        """Start, and go on until `stop()` is called, this is cancelled, or the process gets SIGTERM.

        Under `asyncio.run` Ctrl-C ends it too. `ready` is called after the start.
        """
        await self.start()
        session = self._session
        assert session is not None
        try:
            with on_sigterm(session.asked.set):
                if ready is not None:
                    ready()
                await session.asked.wait()
                await self.stop()
        finally:
            await self.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *about: object) -> None:
        await self.stop()

    # -- status -------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether it was started and is not being stopped."""
        return self._session is not None and not self._session.asked.is_set()

    def status(self) -> dict[str, TaskStatus]:
        """Status of each task in this process, by name."""
        return {
            name: self._status(definition) for name, definition in list(self._definitions.items())
        }

    def _status(self, definition: Definition) -> TaskStatus:
        stats = self._stats[definition.name]
        leads = isinstance(definition, Led) and definition.election.is_leader()
        return stats.status(
            str(definition.schedule),
            running=leads or stats.running,
            trouble=self._trouble(definition),
        )

    def _trouble(self, definition: Definition) -> str | None:
        """Why the task cannot be tried at this moment."""
        if not isinstance(definition, Led):
            return self._stats[definition.name].trouble
        return None if self._session is None else self._session.trouble(definition.election)

    def healthy(self) -> bool:
        """Whether it runs, no task has trouble with its store, and no lasting task has failed.

        A scheduled task whose function raises does not count: see `status()` for that.
        """
        session = self._session
        return (
            session is not None
            and session.well
            and all(self._is_well(definition) for definition in self._definitions.values())
        )

    def _is_well(self, definition: Definition) -> bool:
        lasts = not isinstance(definition, Scheduled)
        ended_badly = lasts and self._stats[definition.name].ended_badly
        return self._trouble(definition) is None and not ended_badly

    # -- tasks that come later ----------------------------------------------------------------------

    def _define(self, definition: Definition) -> None:
        if isinstance(definition, Scheduled):
            definition = definition.placed(self._zone)
        super()._define(definition)
        stats = self._stats[definition.name] = RunStats(definition.name, self._on_error)
        session = self._session
        if session is None or session.asked.is_set():
            return
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is not session.loop:
            del self._definitions[definition.name]
            raise RuntimeError("these tasks run already: add one in the event loop that runs them")
        adding = session.loop.create_task(session.begin(definition, stats))
        self._adding.add(adding)
        adding.add_done_callback(self._adding.discard)
