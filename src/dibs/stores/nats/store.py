"""The store, its URL, and what it promises."""

import re
import ssl
from collections.abc import Callable
from random import shuffle
from typing import Any
from urllib.parse import unquote

from nats.aio.client import Client

from dibs.clock import Clock
from dibs.errors import NotConfigured
from dibs.model import Capabilities
from dibs.stores.cas.cells import Cells
from dibs.stores.cas.clock import SKEW, StoreClock
from dibs.stores.cas.store import CasStore
from dibs.stores.nats.cells import NatsCells
from dibs.stores.redact import redacted
from dibs.stores.url_options import duration, number, one_of, read_options, text

TIMEOUT = 5
"""Seconds that connecting may take."""

TIMEOUT_OF_EACH = 2
"""Seconds that connecting may take, if another server can be asked."""

PING_EVERY = 5
"""Seconds between two pings; after two without an answer the connection has failed."""

_FORM = re.compile(
    r"nats://(?:(?P<login>[^/?#]*)@)?(?P<hosts>[^/?#@,]+(?:,[^/?#@,]+)*)/?(?:\?(?P<options>[^#]*))?"
)
_OPTIONS = {
    "bucket": text,
    "replicas": number,
    "tls": one_of("on"),
    "cafile": text,
    "certfile": text,
    "keyfile": text,
    "skew": duration,
}


class NatsStore(CasStore):
    """Leases in a JetStream bucket of a NATS server or cluster (2.10 or later).

    | URL | |
    |---|---|
    | `nats://127.0.0.1:4222` | one server |
    | `nats://a,b,c?replicas=3` | a cluster: if one server is gone, another is asked |
    | `nats://locks:secret@nats.example` | with a user; a token is written `nats://token@nats.example` |
    | `nats://nats.example?tls=on` | with TLS, and not without |

    Options: `bucket` (default `dibs`; it is made if it is missing), `replicas` (of a new bucket, default 1),
    `tls`, `cafile` (the certificates to trust), `certfile` and `keyfile` (a client certificate), `skew`
    (seconds by which the servers' clocks may differ, default 10).

    NATS forces its file to disk every two minutes only, unless its `sync_interval` is `always`, so a power
    loss can take the last grants back.
    """

    capabilities: Capabilities = Capabilities(
        scope="cluster", clock=False, durable=True, survives=frozenset({"crash", "reboot"})
    )

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        shown, form = redacted(url), _FORM.fullmatch(url)
        if form is None:
            raise NotConfigured(
                f"{shown}: the URL of a NATS looks like nats://user:password@host:4222, or "
                "nats://host1,host2,host3 for a cluster"
            )
        try:
            options = read_options(form["options"] or "", _OPTIONS)
            self._bucket = options.get("bucket", "dibs")
            if not re.fullmatch(r"[\w-]+", self._bucket, re.ASCII):
                raise ValueError(f"bucket={self._bucket}: letters, digits, - and _ only")
            self._replicas = options.get("replicas")
            self.skew: float = options.get("skew", SKEW)
            if "keyfile" in options and "certfile" not in options:
                raise ValueError("keyfile= needs certfile=")
        except ValueError as error:
            raise NotConfigured(f"{shown}: {error}") from None
        self._servers = [f"nats://{host}" for host in form["hosts"].split(",")]
        shuffle(self._servers)
        self._login, self._options = form["login"] or "", options
        super().__init__(shown, clock=clock)

    def make_cells(self, clock: StoreClock, now: Callable[[], float]) -> Cells:
        return NatsCells(self.url, self._bucket, self._replicas, self._connect, clock, now)

    async def _connect(self, client: Client, **callbacks: Any) -> None:
        """Connect a new client. Raises what it raises, or `NotConfigured`."""
        tls = self._tls()
        user, colon, password = map(unquote, self._login.partition(":"))

        def secret() -> str:
            if tls is not None and not tls.used:  # the client itself would go on in the clear
                raise NotConfigured(f"{self.url}: the server offers no TLS, and tls=on asks for it")
            return password if colon else user

        login = {"user": user, "password": secret} if colon else {"token": user and secret}
        try:
            await client.connect(
                self._servers,
                dont_randomize=True,
                name="dibs",
                tls=tls,
                allow_reconnect=False,  # who subscribes must learn that notifications may be missing
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=TIMEOUT if len(self._servers) == 1 else TIMEOUT_OF_EACH,
                ping_interval=PING_EVERY,
                pending_size=0,  # nothing is sent later than its caller waits
                **login,
                **callbacks,
            )
        except BaseException:  # also if cancelled: the next try begins with another server
            self._servers = [*self._servers[1:], self._servers[0]]
            raise
        secret()

    def _tls(self) -> "_TrackedContext | None":
        options = self._options
        if not options.keys() & {"tls", "cafile", "certfile"}:
            return None  # a server that insists on TLS gets it, with the system's certificates
        context = _TrackedContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            if "cafile" in options:
                context.load_verify_locations(options["cafile"])
            else:
                context.load_default_certs()
            if "certfile" in options:
                context.load_cert_chain(options["certfile"], options.get("keyfile"))
        except (OSError, ValueError) as error:
            raise NotConfigured(f"{self.url}: a certificate file can't be used: {error}") from error
        return context


class _TrackedContext(ssl.SSLContext):
    """Knows whether a connection was encrypted with it."""

    used = False

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        self.used = True
        return super().wrap_bio(*args, **kwargs)
