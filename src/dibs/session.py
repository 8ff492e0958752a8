"""A store in use: its keeper, and the runtimes of event loops and threads."""

import os
import sys
import threading
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


class StoreSession:
    """A store in use. Clients of the same store by name share one. It connects on first use."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock | None = None,
        connect_timeout: Duration = 10.0,
        call_timeout: Duration = 10.0,
    ) -> None:
        self.store: Store = store
        self.settings: dict[str, Any] = {}
        """Settings of primitives that clients of this store have looked up, by kind."""
        self._clock = clock or SystemClock()
        self._timing = {
            "connect_timeout": seconds(connect_timeout, "connect_timeout"),
            "call_timeout": seconds(call_timeout, "call_timeout"),
        }
        self.keeper: StoreKeeper = StoreKeeper(store, self._clock, **self._timing)
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """Start without runtimes: those of the parent, and the keeper, clean up after themselves."""
        self._threads: ThreadRuntime | None = None
        self._loops: dict[asyncio.AbstractEventLoop, AsyncRuntime] = {}
        self._making = threading.Lock()

    @property
    def url(self) -> str:
        """The store's URL, as it may be shown."""
        return self.store.url

    @property
    def capabilities(self) -> Capabilities:
        """The promises of the store."""
        return self.store.capabilities

    def loop_runtime(self) -> "AsyncRuntime":
        """The runtime of the running event loop. Raises `RuntimeError` outside of one."""
        loop = _running_loop()
        runtime = self._loops.get(loop)
        return self._new_loop_runtime(loop) if runtime is None else runtime

    def _new_loop_runtime(self, loop: "asyncio.AbstractEventLoop") -> "AsyncRuntime":
        """Make a runtime for a loop, and forget those of loops that are closed."""
        from dibs.runtime.aio import AsyncRuntime

        for closed in [each for each in list(self._loops) if each.is_closed()]:
            self._loops.pop(closed, None)
        runtime = self._loops[loop] = AsyncRuntime(
            self.store, self._clock, self.keeper, loop, **self._timing
        )
        return runtime

    def thread_runtime(self) -> ThreadRuntime:
        """The runtime of all threads."""
        runtime = self._threads
        if runtime is None:
            with self._making:
                runtime = self._threads
                if runtime is None:
                    runtime = ThreadRuntime(self.store, self._clock, self.keeper, **self._timing)
                    self._threads = runtime
        return runtime

    async def aclose(self) -> None:
        """Release all leases, and disconnect the keeper, the threads and the running loop."""
        loop = _running_loop()
        await loop.run_in_executor(None, self.close)
        await self.close_loop()
        await loop.run_in_executor(None, self.close)  # again, for leases granted meanwhile

    async def close_loop(self) -> None:
        """Disconnect the running loop."""
        runtime = self._loops.pop(_running_loop(), None)
        if runtime is not None:
            await runtime.close()

    def close(self) -> None:
        """Release all leases, then disconnect the keeper and the threads."""
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.refuse()
        self.keeper.close()
        if threads is not None:
            threads.close()

    def __reduce__(self) -> Any:
        """Never works, because connections belong to one process. Raises `TypeError`."""
        raise TypeError(
            "a client can't be copied or sent to another process: connect(url) there, or send a primitive "
            "that names no client"
        )


def _running_loop() -> "asyncio.AbstractEventLoop":
    """Raises `RuntimeError` outside of a loop. Programs with threads only do not import asyncio."""
    if "asyncio" not in sys.modules:
        raise RuntimeError("no running event loop")
    return sys.modules["asyncio"].get_running_loop()  # type: ignore[no-any-return]


def session_for(url: str, *, clock: Clock | None = None, **options: Any) -> StoreSession:
    """A session of the store at a URL. Raises `TypeError` for anything else, and for unknown options."""
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
    """A session of the store that your own client is connected to."""
    return StoreSession(store_of(client, clock=clock), clock=clock, **options)


def implicit_url() -> str:
    """The store that applies if none is configured: a file in this user's state folder.

    The home comes from the password database, not from $HOME, so that a shell and cron agree.
    """
    home = _home()
    if sys.platform == "darwin":
        folder = home / "Library" / "Application Support" / "dibs"
    else:
        folder = home / ".local" / "state" / "dibs"
    return f"sqlite:///{folder / 'leases.db'}"


def _home() -> Path:
    import pwd

    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return Path.home()
