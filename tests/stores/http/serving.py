"""The service under test: a server in a thread, and the store that lies behind it for now.

So that a case can let the store's time pass, each may have a store with a clock of its own behind the one
address. Tests that kill a server start one as a process (`processes`).
"""

from pathlib import Path
from typing import Any
from urllib.parse import quote

from dibs.clock import Clock
from dibs.session import session_for
from tests.server.inside import Stores, alone, at_the_end, serve_from
from tests.server.world import World
from tests.servers.certificates import key_of


class Served:
    """A service, and URLs for `connect` that lead to it."""

    def __init__(self, *, certificate: Path | None = None) -> None:
        tls: dict[str, Any] = {}
        if certificate is not None:
            tls = {"tls_cert": str(certificate), "tls_key": str(key_of(certificate))}
        self.world = World.over(**tls)
        self._certificate = certificate

    @property
    def url(self) -> str:
        """With an administrator's key."""
        return self.url_with(self.world.admin_key)

    def url_with(self, key: str) -> str:
        """With that key."""
        scheme, _, place = self.world.url.partition("://")
        trust = f"?cafile={quote(str(self._certificate))}" if self._certificate else ""
        return f"{scheme}://{key}@{place}{trust}"

    def put(self, url: str, clock: Clock | None) -> Stores:
        """Keep leases elsewhere from now on."""

        async def put() -> Stores:
            session = session_for(url, clock=clock)
            at_the_end(self.world, session.close_loop)
            runtime = alone(session.loop_runtime())
            await runtime.ready()
            self.again(runtime)
            return runtime

        return self.world.do(put)  # type: ignore[no-any-return]

    def again(self, runtime: Stores) -> None:
        """Keep leases there again."""
        serve_from(self.world, runtime)

    def close(self) -> None:
        """End it, as a signal would."""
        self.world.close()
