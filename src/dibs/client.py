"""Which store a client or a bare primitive uses."""

import os
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypedDict

from dibs.clock import Clock
from dibs.config import Duration
from dibs.core.names import KINDS, PROBE, Kind, key_of
from dibs.core.timing import MIN_TTL
from dibs.errors import ImplicitStoreWarning, NotConfigured
from dibs.locks.base import status_of
from dibs.locks.messages import format_duration
from dibs.model import Finding, Inspect, Status
from dibs.named_stores import configured_store, session_by_settings, session_named
from dibs.process import FreshLock
from dibs.runtime.port import Runtime
from dibs.session import StoreSession, implicit_url, overridden, overriding, session_for, session_of
from dibs.settings import store_name
from dibs.sides import refuse_in_workflow

_lock = FreshLock()
_said: "tuple[DefaultStore, ...]" = ()
"""Stack of default stores that were set explicitly; the last one is in use."""


class DefaultStore:
    """A default store that was set explicitly, from `begin` to `end` or `set_default`.

    Then the previous default applies again, whichever of several ends first.
    """

    __slots__ = ("_begun", "session")

    def __init__(self, session: StoreSession) -> None:
        self.session = session
        self._begun = False

    def begin(self) -> None:
        """Make it the default. A second call changes nothing, also after `set_default`."""
        global _said
        with _lock.held:
            if not self._begun:
                self._begun = True
                _said = (*_said, self)

    def end(self) -> None:
        """It is the default no longer."""
        global _said
        with _lock.held:
            self._begun = False
            _said = tuple(each for each in _said if each is not self)


def default_session() -> StoreSession:
    """An override, else what was said last, $DIBS_URL, the settings file, the implicit store."""
    return overridden(None) or _last_said() or session_by_settings(None, _implicit)


def default_is_named() -> bool:
    """Whether the default store is one that somebody named, and not the implicit one."""
    return bool(overridden(None) or _last_said() or configured_store())


def _last_said() -> StoreSession | None:
    said = _said  # which another thread may replace
    return said[-1].session if said else None


def _implicit() -> StoreSession:
    url = implicit_url()
    how = "Set DIBS_URL to a shared store, such as redis://host or postgresql://host/db."
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        raise NotConfigured(f"No store is set. A file only excludes processes in this pod. {how}")
    required = os.environ.get("DIBS_REQUIRE")
    if required not in (None, "", "cluster"):
        raise NotConfigured(f"DIBS_REQUIRE is {required!r}: the only allowed value is cluster")
    if required:
        raise NotConfigured(f"DIBS_REQUIRE=cluster, and no store is set. {how}")
    warnings.warn(
        f"DIBS_URL is not set. Using {url.removeprefix('sqlite:///')}, which only excludes your own "
        "processes on this host. For several hosts, set DIBS_URL to Redis or PostgreSQL.",
        ImplicitStoreWarning,
        skip_file_prefixes=(str(Path(__file__).parent),),
    )
    return session_for(url)


def set_default_session(session: StoreSession | None) -> None:
    """What bare primitives use from now on; None for what they would use by themselves."""
    global _said
    with _lock.held:
        _said = () if session is None else (DefaultStore(session),)


class ConnectOptions(TypedDict, total=False):
    """How a store is spoken to."""

    connect_timeout: Duration
    call_timeout: Duration
    clock: Clock | None
    client: Any


class Opened(NamedTuple):
    """The store of a client, and what ends with it."""

    session: StoreSession
    shared: bool = False
    """Others use the store too, so closing the client leaves it open."""
    default: DefaultStore | None = None

    def begin(self) -> None:
        """The client is in use, maybe again after it was closed."""
        if self.default is not None:
            self.default.begin()

    def end(self) -> bool:
        """The client is closed: whether that closes its store."""
        if self.default is not None:
            self.default.end()
        return not self.shared


def opened(url: str | None, default: bool, options: ConnectOptions) -> Opened:
    """The store of a URL or of a client; without either the default store, which takes no options."""
    refuse_in_workflow(name="Client")
    if url is None and "client" not in options:
        if options:
            raise TypeError(
                f"connect() was given {', '.join(options)} and no URL: options belong to a URL, "
                "and the default store has its own"
            )
        return Opened(default_session(), shared=True)
    if url is not None and "client" in options:
        raise TypeError("connect() was given a URL and client=: give one of them")
    session = session_of(**options) if url is None else session_for(url, **options)
    found = Opened(session, default=DefaultStore(session) if default else None)
    found.begin()
    return found


def named(name: str) -> Opened:
    """The store that settings name so. Raises `NotConfigured` if there is none."""
    refuse_in_workflow(name="Client")
    return Opened(session_named(store_name(name)), shared=True)


def resource_key(resource: str | bytes | Status, kind: Kind | None) -> bytes:
    """The key of a resource that is told by its name and kind (None: a lock), or by a status of it."""
    if not isinstance(resource, Status):
        return key_of("lock" if kind is None else kind, resource)
    if kind is not None and kind != resource.kind:
        raise ValueError(f"kind is {kind!r}, and the status is that of a {resource.kind}")
    return resource.key


def kinds_asked(kind: Kind | None) -> Sequence[str]:
    """That kind, or all. Raises `ValueError` for an unknown one."""
    if kind is None:
        return KINDS
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}: the kinds are {', '.join(KINDS)}")
    return (kind,)


class AnyClient(Protocol):
    """A client, of asyncio or of threads."""

    session: StoreSession


def set_default(store: str | AnyClient | None) -> None:
    """Set what primitives without `client=` use from now on: a URL, a client, or None for no default."""
    if isinstance(store, str):
        set_default_session(session_for(store))
    else:
        set_default_session(
            None if store is None else _session_of(store, "a URL, a client, or None")
        )


def override(client: AnyClient, *, name: str | None = None) -> AbstractContextManager[None]:
    """Use this client's store instead of the default one, or of the one with that name; for tests.

    Overrides are per context: concurrent tasks each see their own, and pass it to tasks they start. Code
    outside any override sees the most recent one.
    """
    session = _session_of(client, "a client, as connect() makes it")
    return overriding(None if name is None else store_name(name), session)


def _session_of(client: object, wanted: str) -> StoreSession:
    session = getattr(client, "session", None)
    if not isinstance(session, StoreSession):
        raise TypeError(f"{client!r} names no store: give {wanted}")
    return session


PROBES = 20
"""Round trips that are measured when a store is examined."""


async def examine(rt: Runtime) -> list[Finding]:
    """Measure the store's latency, and ask what it promises and what it finds about itself."""
    if not rt.is_ready:
        await rt.ready()
    await status_of(rt, PROBE)  # connects, if that was not done
    times = sorted([await _round_trip(rt) for _ in range(PROBES)])
    found = await rt.examine()
    broken = [finding for finding in found if finding.about == "promises"]
    theirs = [finding for finding in found if finding.about == "latency"]  # it knows better
    least_ttl = max((finding.least_ttl for finding in found), default=0.0)
    return [
        *(theirs or [_latency(times[PROBES // 2], times[-1], least_ttl)]),
        _promises(rt.capabilities.names(), broken),
        *(finding for finding in found if finding not in (*broken, *theirs)),
    ]


def _promises(words: frozenset[str], broken: list[Finding]) -> Finding:
    """The store's promises, and the finding about those that its settings break."""
    told = f"{', '.join(sorted(words))} (allowed in `require=`)"
    for finding in broken:
        return replace(finding, told=f"{told}; {finding.told}")
    return Finding("promises", "ok", told)


async def _round_trip(rt: Runtime) -> float:
    begun = rt.now()
    await rt.call(Inspect(PROBE))
    return rt.now() - begun


def _latency(usual: float, worst: float, least_ttl: float) -> Finding:
    """A renewal has a third of the ttl, and should have time for several tries in it.

    `least_ttl`: below that the store grants none.
    """
    told = (
        f"a round trip takes {usual * 1e3:.2f} ms, {worst * 1e3:.1f} ms at worst of {PROBES}: "
        f"use no ttl below {format_duration(max(20 * worst, MIN_TTL, least_ttl))}"
    )
    if worst > 0.5:
        return Finding(
            "latency", "warning", told, "a store nearer by would keep leases through hiccups"
        )
    return Finding("latency", "ok", told)


def scan_prefix(kind: str, prefix: str | bytes) -> bytes:
    """The beginning of the keys of that kind whose names begin with `prefix`."""
    raw = prefix.encode() if isinstance(prefix, str) else prefix
    return kind.encode() + b":" + raw
