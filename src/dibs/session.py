"""An open store: its keeper, and the runtimes of loops and threads; and what tests put in its place.

An override holds in the context that began it and in the tasks begun there, so that two tests that run
at once have each their own. A thread that such a test starts has the latest.
"""

import os
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dibs.clock import Clock, SystemClock
from dibs.config import Duration, seconds
from dibs.model import Capabilities
from dibs.process import on_fork
from dibs.runtime.keeper import StoreKeeper
from dibs.runtime.threads import ThreadRuntime
from dibs.stores.port import Store
from dibs.stores.registry import store_for, store_of

if TYPE_CHECKING:
    import asyncio

    from dibs.runtime.aio import AsyncRuntime


CALL_TIMEOUT = 10.0


class StoreSession:
    """What all clients of one `connect` share. Connects to nothing until it is used."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock | None = None,
        connect_timeout: Duration = 10.0,
        call_timeout: Duration = CALL_TIMEOUT,
    ) -> None:
        self.store = store
        self.settings: dict[str, Any] = {}
        """What clients of this store remember of the settings, by kind."""
        self._clock = clock or SystemClock()
        self._timing = {
            "connect_timeout": seconds(connect_timeout, "connect_timeout"),
            "call_timeout": seconds(call_timeout, "call_timeout"),
        }
        self._reset()
        on_fork(self)

    def _reset(self) -> None:
        self.keeper = StoreKeeper(self.store, self._clock, **self._timing)
        self._threads: ThreadRuntime | None = None
        self._loops: dict[asyncio.AbstractEventLoop, AsyncRuntime] = {}
        self._last: tuple[Any, AsyncRuntime | None] = (None, None)
        self._making = threading.Lock()

    @property
    def url(self) -> str:
        """The store's URL, as it may be shown."""
        return self.store.url

    @property
    def capabilities(self) -> Capabilities:
        """What the store promises."""
        return self.store.capabilities

    def loop_runtime(self) -> "AsyncRuntime":
        """The running event loop's. Raises `RuntimeError` outside of one."""
        loop = _running_loop()
        last, runtime = self._last
        if last is loop and runtime is not None:
            return runtime
        runtime = self._loops.get(loop) or self._new_loop_runtime(loop)
        self._last = (loop, runtime)
        return runtime

    def _new_loop_runtime(self, loop: "asyncio.AbstractEventLoop") -> "AsyncRuntime":
        """One for a loop that is new here; loops that were closed without a word are forgotten."""
        from dibs.runtime.aio import AsyncRuntime

        for closed in [each for each in list(self._loops) if each.is_closed()]:
            self._loops.pop(closed, None)
        runtime = self._loops[loop] = AsyncRuntime(
            self.store, self._clock, self.keeper, loop, **self._timing
        )
        return runtime

    def thread_runtime(self) -> ThreadRuntime:
        """All threads'."""
        runtime = self._threads
        if runtime is None:
            with self._making:
                runtime = self._threads
                if runtime is None:
                    runtime = ThreadRuntime(self.store, self._clock, self.keeper, **self._timing)
                    self._threads = runtime
        return runtime

    async def aclose(self) -> None:
        """Give up what is held, and disconnect the running loop, too."""
        loop = _running_loop()
        await loop.run_in_executor(None, self.close)
        await self.close_loop()
        await loop.run_in_executor(None, self.close)  # for what was granted meanwhile

    async def close_loop(self) -> None:
        runtime = self._loops.pop(_running_loop(), None)
        self._last = (None, None)
        if runtime is not None:
            await runtime.close()

    def close(self) -> None:
        """Give up what is held, then disconnect the keeper and the threads."""
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.refuse()
        self.keeper.close()
        if threads is not None:
            threads.close()

    def __reduce__(self) -> Any:
        """Never works: connections are a process's own. Raises `TypeError`."""
        raise TypeError(
            "a client can't be copied or sent to another process: connect(url) there, or send a primitive "
            "that names no client"
        )

    def after_fork(self) -> None:
        """The runtimes and the keeper have cleaned up after themselves; the child makes its own."""
        self._threads = None
        self._loops = {}
        self._last = (None, None)
        self._making = threading.Lock()


def _running_loop() -> "asyncio.AbstractEventLoop":
    """Raises `RuntimeError` outside of one. Who has a loop has imported asyncio; threads needn't."""
    if "asyncio" not in sys.modules:
        raise RuntimeError("no running event loop")
    return sys.modules["asyncio"].get_running_loop()  # type: ignore[no-any-return]


def session_for(url: str, *, clock: Clock | None = None, **options: Any) -> StoreSession:
    """A store by URL, in use. Raises `TypeError` for what is no URL."""
    if not isinstance(url, str):
        raise TypeError(
            f"connect() was given {type(url).__qualname__}: give the URL of a store, such as "
            "sqlite:///locks.db or redis://localhost/0"
        )
    unknown = sorted(options.keys() - {"connect_timeout", "call_timeout"})
    if unknown:
        raise TypeError(
            f"connect() has no option {', '.join(unknown)}: "
            "there are connect_timeout, call_timeout and clock"
        )
    return StoreSession(store_for(url, clock=clock), clock=clock, **options)


def session_of(client: object, *, clock: Clock | None = None, **options: Any) -> StoreSession:
    """The store that somebody's own client is connected to, in use."""
    return StoreSession(store_of(client, clock=clock), clock=clock, **options)


def implicit_url() -> str:
    """The store of whoever names none: a file in this user's state folder.

    The home is the password database's, not $HOME, so that a shell and cron agree.
    """
    home = _home()
    if sys.platform == "darwin":
        folder = home / "Library" / "Application Support" / "dibs"
    else:
        folder = home / ".local" / "state" / "dibs"
    return f"sqlite:///{folder / 'leases.db'}"


def _home() -> Path:
    try:
        import pwd
    except ImportError:
        return Path.home()
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return Path.home()


class _Override:
    """`here`: it has not ended, which a context that was copied meanwhile can't tell by itself."""

    __slots__ = ("here", "name", "session")

    def __init__(self, name: str | None, session: StoreSession) -> None:
        self.name = name
        self.session = session
        self.here = True


_latest: list[_Override] = []
_own: ContextVar[tuple[_Override, ...]] = ContextVar("dibs_overrides", default=())


def overridden(name: str | None) -> StoreSession | None:
    """What is used in the stead of the store of that name (None: of the default store)."""
    if not _latest:
        return None
    for each in (*_latest, *_own.get())[::-1]:
        if each.name == name and each.here:
            return each.session
    return None


@contextmanager
def overriding(name: str | None, session: StoreSession) -> Generator[None]:
    """Whatever names that store (None: no store) uses this one meanwhile."""
    override = _Override(name, session)
    _own.set((*(each for each in _own.get() if each.here), override))
    _latest.append(override)
    try:
        yield
    finally:  # maybe in another context, as with fixtures, so nothing is reset here
        override.here = False
        _latest.remove(override)
