"""Where asyncio and threads differ: `tools/unasync.py` puts the names for threads in place of the others."""

import inspect
import sys
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, get_args

from dibs.config import LockConfig
from dibs.locks.description import check_promises
from dibs.locks.election import until_lost
from dibs.locks.lease import LeaseBase
from dibs.locks.primitive import PrimitiveBase
from dibs.locks.transaction import Way
from dibs.model import Capabilities
from dibs.named_stores import NamedStore
from dibs.process import Terminated, on_sigterm, raising_on_sigterm
from dibs.runtime.port import Runtime, step
from dibs.session import StoreSession

IN_WORKFLOWS = frozenset({"Lock", "Semaphore"})
"""What `dibs.temporal` has for workflow code."""


def refuse_in_loop(of: object) -> None:
    """Waiting here would stop every task of the loop, the one that should release included.

    Who has a loop has imported asyncio; threads needn't.
    """
    loops = sys.modules.get("asyncio")
    if loops is not None and loops._get_running_loop() is not None:
        refuse_in_workflow(of)
        raise RuntimeError(_help(of))


def refuse_in_workflow(of: object = None, name: str = "") -> None:
    """A store is I/O, and workflow code is replayed: what it is to do it has to ask Temporal for.

    Who runs a workflow has imported it. The error is Temporal's own, so that it fails the workflow, and
    doesn't try its task again for ever.
    """
    workflow = sys.modules.get("temporalio.workflow")
    if workflow is not None and workflow.in_workflow():
        error = sys.modules["temporalio.exceptions"].ApplicationError
        raise error(_in_workflow(name or _called(of)), type="NotInWorkflow", non_retryable=True)


def enter_as_primitive_of_tasks(name: str) -> str:
    """What to say to whoever writes `with` where `async with` belongs."""
    return f"{name} of dibs is for asyncio: write `async with`, or import {name} from dibs.sync for `with`"


def enter_as_primitive_of_threads(name: str) -> str:
    """What to say to whoever writes `async with` where `with` belongs."""
    return f"{name} of dibs.sync blocks: write `with`, or import {name} from dibs for `async with`"


def enter_as_held_by_task(these_are: str) -> str:
    """Likewise, for leases."""
    return f"{these_are} held by a task: write `async with`, not `with`"


def enter_as_held_by_thread(these_are: str) -> str:
    """Likewise, for leases."""
    return f"{these_are} held by a thread: write `with`, not `async with`"


def body_of_task(func: Callable[..., Any] | None) -> Callable[..., Any]:
    """What a leader does in a task."""
    return until_lost if func is None else func


def body_of_thread(func: Callable[..., Any] | None) -> Callable[..., Any]:
    """What a leader does in a thread. Raises `TypeError` for a coroutine function."""
    if inspect.iscoroutinefunction(func):
        raise TypeError(f"{func!r} is a coroutine function: use LeaderElection of dibs")

    async def body(term: Any) -> Any:
        return await until_lost(term) if func is None else func(term)

    return body


async def until_sigterm(leading: Coroutine[Any, Any, Any]) -> Any:
    """Await it in this task. SIGTERM cancels it, and None is returned then."""
    import asyncio  # only who has a loop pays for it

    task, terminated = asyncio.current_task(), False
    assert task is not None

    def end() -> None:
        nonlocal terminated
        terminated = task.cancel()

    try:
        with on_sigterm(end):
            return await leading
    except asyncio.CancelledError:
        if not terminated or task.uncancel():
            raise
        return None


def step_until_sigterm(leading: Coroutine[Any, Any, Any]) -> Any:
    """Step it in this thread. SIGTERM ends it, and None is returned then."""
    try:
        with raising_on_sigterm():
            return step(leading)
    except Terminated:
        return None


def _help(of: object) -> str:
    name = _called(of)
    if name == "Client":
        write = "`from dibs import connect`, and await the client's methods"
    else:
        write = f"`from dibs import {name}` and write `async with {name}(...)`"
    return f"a blocking {name} inside a running event loop would stop the loop: {write}"


def _called(of: object) -> str:
    name = type(of).__name__
    return "RWLock" if name in {"Reading", "Writing"} else name


def _in_workflow(name: str) -> str:
    if name in IN_WORKFLOWS:
        write = f"`from dibs.temporal import {name}` here, or use this one in an activity"
    else:
        write = "use it in an activity; `dibs.temporal` has Lock and Semaphore for workflows"
    return f"dibs's {name} talks to a store, which workflow code can't: {write}"


_FLAGS = ("clock", "durable", "fenced", "push")
_SCOPES = get_args(Capabilities.__annotations__["scope"])
_FAILURES = ("crash", "reboot", "power-loss")

PROMISES = frozenset((*_FLAGS, *_SCOPES, *_FAILURES))
"""Every word that any store may promise, and `require=` may name."""


class Described[LeaseT: LeaseBase](PrimitiveBase[LeaseT]):
    """A primitive that asks a store for nothing that no store knows of."""

    def _describe(
        self,
        name: str | bytes,
        config: LockConfig,
        on_lost: Callable[[Any], object] | None,
        require: Iterable[str],
        client: Any,
    ) -> None:
        if require:
            require = _known({require} if isinstance(require, str) else require)
        client = client_of(client)
        super()._describe(name, config, on_lost, require, client)
        if not self._require or isinstance(client, NamedStore | None):
            return
        if client.capabilities.asked:  # else it is checked when something is acquired
            check_promises(self._require, client.capabilities.names(), client.url)


def client_of(given: Any) -> Any:
    """The client that was given, or the store that a name stands for; which one that is, is seen later.

    Raises `TypeError` for what is neither.
    """
    if isinstance(given, str):
        return NamedStore(given)
    if isinstance(given, NamedStore | None) or isinstance(
        getattr(given, "session", None), StoreSession
    ):
        return given
    kind = type(given)
    raise TypeError(
        f"client= is of {kind.__module__}.{kind.__qualname__}: give what connect() returned, or the "
        "name of a store"
    )


def _known(words: Iterable[str]) -> frozenset[str]:
    required = frozenset(words)
    unknown = sorted(repr(word) for word in required - PROMISES)
    if unknown:
        raise ValueError(
            f"require names {', '.join(unknown)}, which no store promises: "
            f"the words are {', '.join(sorted(PROMISES))}"
        )
    return required


def by_task(rt: Runtime, connection: Any) -> Way:
    """By an async connection, for the event loop's tasks."""
    return _way(
        rt,
        connection,
        blocking=False,
        else_say="this blocking connection would stop the event loop while it waits: give an async "
        "one, or acquire with dibs.sync in a thread",
    )


def by_thread(rt: Runtime, connection: Any) -> Way:
    """By a blocking connection, for threads."""
    return _way(
        rt,
        connection,
        blocking=True,
        else_say="this async connection is its event loop's: give a blocking one, or acquire with "
        "dibs (without .sync) in that loop",
    )


def _way(rt: Runtime, connection: Any, *, blocking: bool, else_say: str) -> Way:
    keeper: Any = rt.keeper
    store = keeper.store
    way = store.within(connection)
    if way.blocking is not blocking:
        raise TypeError(f"within= is a {type(connection).__qualname__}: {else_say}")
    joined: Way = way
    return joined
