"""What is needed of Temporal's SDK that it has no public name for, in one place."""

from typing import Any

from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import CancelledError


def cancel_here(context: Any) -> None:
    """Cancel a running activity from within its worker, as the server would: its thread is interrupted.

    Tasks are not: they are cancelled by whoever awaits them. A process only sees `is_cancelled()`.
    """
    context.cancelled_event.set()
    raiser = getattr(context.shield_thread_cancel_exception, "__self__", None)
    if raiser is not None:
        raiser.raise_in_thread(CancelledError)


def this_context() -> Any:
    """The running activity's, for `cancel_here`. Raises `RuntimeError` outside of one."""
    return activity._Context.current()


def client_behind(inbound: Any) -> Client | None:
    """The client of the worker that an interceptor is of; plain functions aren't told of it."""
    while inbound is not None:
        worker = getattr(inbound, "_worker", None)
        client = getattr(worker, "_client", None)
        if isinstance(client, Client):
            return client
        inbound = getattr(inbound, "next", None)
    return None
