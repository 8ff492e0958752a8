"""One process's connection to a Temporal server, shared by all who use the store."""

import asyncio
import atexit
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any

from leasehold.backends.temporal.settings import Settings, Target
from leasehold.backends.temporal.trouble import explain, unreachable
from leasehold.errors import Forbidden, LeaseholdError, NotConfigured
from leasehold.fork import FreshLock, generation, on_fork

if TYPE_CHECKING:
    from temporalio.client import Client
    from temporalio.runtime import Runtime
    from temporalio.service import RPCError

LETS_GO = 0.05
"""So long Temporal's threads take to forget a call that has ended, in seconds, and many times that."""

CONNECT_TIMEOUT = 5.0
"""How long connecting may take, in seconds."""


def prepare() -> None:
    """Import what connecting needs, before anybody waits for a server: that takes a while."""
    for module in ("client", "runtime", "envconfig"):
        import_module(f"temporalio.{module}")


class Connection:
    """Connects when it is first asked for a client. Any loop's tasks may use the one client."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._target: Target | None = None
        self._client: Client | None = None
        self.starts_apart = False
        """Its server takes no update together with a start: an old one, or one on which that is off."""
        on_fork(self)

    @property
    def target(self) -> Target:
        """Where it is."""
        found = self._target
        if found is None:
            found = self._target = self.settings.target()
        return found

    @property
    def is_made(self) -> bool:
        """There is a client."""
        return self._client is not None

    async def client(self) -> "Client":
        """The client. Raises `BackendUnavailable`, `Forbidden` and `NotConfigured`."""
        found = self._client
        if found is None:
            found = self._client = await self._connect()
        return found

    async def _connect(self) -> "Client":
        from temporalio.client import Client
        from temporalio.service import RetryConfig, RPCError

        target = self.target
        connecting = Client.connect(
            target.address,
            namespace=target.namespace,
            runtime=_runtime(),
            retry_config=RetryConfig(
                initial_interval_millis=50, max_elapsed_time_millis=2000, max_retries=2
            ),
            **target.options,
        )
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                return await connecting
        except LeaseholdError:
            raise
        except RPCError as error:
            raise explain(error, target) from error
        except TimeoutError as error:
            raise unreachable(TimeoutError("it did not answer in time"), target) from error
        except RuntimeError as error:
            raise _refused(error, target) from error
        except (ValueError, TypeError) as error:
            raise NotConfigured(f"{self.settings.shown}: {error}") from error

    def explain(self, error: "RPCError") -> LeaseholdError:
        """The error that callers see, in the stead of the server's own.

        One that is refused looks its API key up again, as it may have been exchanged meanwhile.
        """
        failure = explain(error, self.target)
        if isinstance(failure, Forbidden):
            self._target = self._client = None
        return failure

    def after_fork(self) -> None:
        """In the child: what was inherited can't be used there, nor even be thrown away."""
        if self._client is not None:
            keep_for_ever(self._client, _runtime_in_use)
        self._client = None


def _refused(error: RuntimeError, target: Target) -> LeaseholdError:
    """Connecting asks the server what it is, and fails if that is refused."""
    said = str(error)
    if "Unauthenticated" in said or "PermissionDenied" in said:
        from temporalio.service import RPCError, RPCStatusCode

        return explain(RPCError(said, RPCStatusCode.UNAUTHENTICATED, b""), target)
    return unreachable(error, target)


# ---- Temporal's threads ---------------------------------------------------------------------------

_runtime_in_use: "Runtime | None" = None
_made_in = 0
_making = FreshLock()


def _runtime() -> "Runtime":
    """The process's own; a child that was forked has one of its own, as no thread survives a fork."""
    global _runtime_in_use, _made_in
    from temporalio.runtime import Runtime, TelemetryConfig

    with _making.held:
        if _runtime_in_use is None or _made_in != generation.number:
            forked = generation.number > 0
            _runtime_in_use = Runtime(telemetry=TelemetryConfig()) if forked else Runtime.default()
            _made_in = generation.number
        return _runtime_in_use


@atexit.register
def let_go() -> None:
    """Wait a moment for Temporal's threads, which still hold what they have just told us of.

    One that comes for Python's lock while the interpreter ends would crash it.
    """
    if _runtime_in_use is not None:
        time.sleep(LETS_GO)


def keep_for_ever(*things: Any) -> None:
    """Have them outlive even the end of the interpreter: their end would wait for threads of the parent."""
    import ctypes

    for thing in things:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
