"""One process's connection to a Temporal server, shared by all who use the store."""

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING, Any

from dibs.errors import DibsError, Forbidden, NotConfigured
from dibs.process import on_fork
from dibs.stores.loop_thread import keep_for_ever
from dibs.stores.temporal.client.settings import Settings, Target
from dibs.stores.temporal.client.threads import runtime
from dibs.stores.temporal.client.trouble import explain, explain_text, unreachable

if TYPE_CHECKING:
    from temporalio.client import Client
    from temporalio.service import RPCError

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
        from temporalio import service

        options: dict[str, Any] = {}
        if hasattr(service, "DnsLoadBalancingConfig"):  # it came later than what we need
            # looking names up over and over takes one more thread, which sleeps: see `threads`
            options["dns_load_balancing_config"] = None
        options["retry_config"] = service.RetryConfig(
            initial_interval_millis=50, max_elapsed_time_millis=2000, max_retries=2
        )
        return await connect(self.target, CONNECT_TIMEOUT, runtime=runtime(), **options)

    def explain(self, error: "RPCError") -> DibsError:
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
            keep_for_ever(self._client)
        self._client = None


async def connect(target: Target, within: float, **options: Any) -> "Client":
    """A client, for whomever. Raises `BackendUnavailable`, `Forbidden` and `NotConfigured`.

    Connecting asks the server what it is, and fails if that is refused.
    """
    from temporalio.client import Client
    from temporalio.service import RPCError

    connecting = Client.connect(
        target.address, namespace=target.namespace, **options, **target.options
    )
    try:
        async with asyncio.timeout(within):
            return await connecting
    except DibsError:
        raise
    except RPCError as error:
        raise explain(error, target) from error
    except TimeoutError as error:
        raise unreachable(TimeoutError("it did not answer in time"), target) from error
    except RuntimeError as error:
        raise (explain_text(error, target) or unreachable(error, target)) from error
    except (ValueError, TypeError) as error:
        raise NotConfigured(f"{target} can't be connected to: {error}") from error
