"""Where asyncio and threads differ: `tools/unasync.py` puts the names for threads in place of the others."""

import inspect
import sys
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any

from dibs.client import NamedStore
from dibs.locks.base import check_promises
from dibs.locks.election import TermBase, until_lost
from dibs.process import Terminated, on_sigterm, raising_on_sigterm
from dibs.runtime.port import Runtime, TransactionConnection, step
from dibs.session import StoreSession

IN_WORKFLOWS = frozenset({"Lock", "Semaphore"})
"""Primitives that `dibs.temporal` has for workflow code."""


def refuse_in_loop(of: object) -> None:
    """Raise `RuntimeError` in a running loop: a blocking wait would stop all its tasks.

    The task that should release may be one of them. asyncio is not imported for this.
    """
    loops = sys.modules.get("asyncio")
    if loops is not None and loops._get_running_loop() is not None:
        refuse_in_workflow(of)
        raise RuntimeError(_help(of))


def refuse_in_workflow(of: object = None, name: str = "") -> None:
    """Raise `ApplicationError` in a Temporal workflow: a store is I/O, and workflow code is replayed.

    This error fails the workflow. With any other, Temporal would retry the workflow task for ever.
    """
    workflow = sys.modules.get("temporalio.workflow")
    if workflow is not None and workflow.in_workflow():
        error = sys.modules["temporalio.exceptions"].ApplicationError
        raise error(_in_workflow(name or _called(of)), type="NotInWorkflow", non_retryable=True)


def refuse_client_in_workflow() -> None:
    """Raise `ApplicationError` for a client in a Temporal workflow, on both sides."""
    refuse_in_workflow(name="Client")


def body_of_task[TermT: TermBase, R](
    func: Callable[[TermT], Awaitable[R]] | None,
) -> Callable[[TermT], Awaitable[R | None]]:
    """The body of a leader in a task."""
    return until_lost if func is None else func


def body_of_thread[TermT: TermBase, R](
    func: Callable[[TermT], R] | None,
) -> Callable[[TermT], Awaitable[R | None]]:
    """The body of a leader in a thread. Raises `TypeError` for a coroutine function."""
    if inspect.iscoroutinefunction(func):
        raise TypeError(f"{func!r} is a coroutine function: use LeaderElection of dibs")

    async def body(term: TermT) -> R | None:
        if func is not None:
            return func(term)
        await until_lost(term)
        return None

    return body


async def until_sigterm[R](leading: Coroutine[Any, Any, R]) -> R | None:
    """Await it in this task. SIGTERM cancels it; then return None."""
    import asyncio  # threads need not import it

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


def step_until_sigterm[R](leading: Coroutine[Any, Any, R]) -> R | None:
    """Step it in this thread. SIGTERM ends it; then return None."""
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


def checked_client(given: Any, require: Collection[str] = ()) -> Any:
    """The client that was given, or the store that a name stands for, which is looked up when it is used.

    Raises `TypeError` for anything else, and `MissingCapability` if its store is known to promise less than
    what is required.
    """
    if given is None or type(given) is NamedStore:
        return given
    if isinstance(given, str):
        return NamedStore(given)
    if not isinstance(getattr(given, "session", None), StoreSession):
        kind = type(given)
        raise TypeError(
            f"client= is of {kind.__module__}.{kind.__qualname__}: give what connect() returned, or the "
            "name of a store"
        )
    if require and given.capabilities.asked:  # else it is checked at the acquire
        check_promises(require, given.capabilities.names(), given.url)
    return given


def join_async(rt: Runtime, connection: Any) -> TransactionConnection:
    """The user's async connection, as one to the store."""
    return _join(
        rt,
        connection,
        blocking=False,
        else_say="this blocking connection would stop the event loop while it waits: give an async "
        "one, or acquire with dibs.sync in a thread",
    )


def join_blocking(rt: Runtime, connection: Any) -> TransactionConnection:
    """The user's blocking connection, as one to the store."""
    return _join(
        rt,
        connection,
        blocking=True,
        else_say="this async connection is its event loop's: give a blocking one, or acquire with "
        "dibs (without .sync) in that loop",
    )


def _join(rt: Runtime, connection: Any, *, blocking: bool, else_say: str) -> TransactionConnection:
    keeper: Any = rt.keeper
    joined = keeper.store.within(connection)
    if joined.blocking is not blocking:
        raise TypeError(f"within= is a {type(connection).__qualname__}: {else_say}")
    transaction: TransactionConnection = joined
    return transaction
