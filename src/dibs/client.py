"""The store of a client or a primitive: by URL, by its name in the settings, or the default store."""

import os
import warnings
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypedDict

from dibs.clock import Clock
from dibs.config import Duration
from dibs.core.names import KINDS, PROBE, Kind, key_of
from dibs.core.timing import MIN_TTL
from dibs.errors import ImplicitStoreWarning, MissingCapability, NotConfigured
from dibs.locks.base import status_of
from dibs.locks.messages import format_duration
from dibs.model import Finding, Inspect, Status
from dibs.process import FreshLock
from dibs.runtime.port import Runtime
from dibs.session import StoreSession, implicit_url, session_for, session_of
from dibs.settings import (
    VARIABLE,
    configured_store,
    store_name,
    store_names,
    store_prefix,
    store_variables,
)


class AnyClient(Protocol):
    """A client, of asyncio or of threads."""

    @property
    def session(self) -> StoreSession: ...


def _session(client: object, wanted: str) -> StoreSession:
    session = getattr(client, "session", None)
    if not isinstance(session, StoreSession):
        raise TypeError(f"{client!r} names no store: give {wanted}")
    return session


# -- overrides ----------------------------------------------------------------------------------------


class _Override:
    """Active until its block ends. Copies of its context cannot know that by themselves."""

    __slots__ = ("active", "name", "session")

    def __init__(self, name: str | None, session: StoreSession) -> None:
        self.name = name
        self.session = session
        self.active = True


_overrides: list[_Override] = []
"""Those of all contexts, the latest last."""

_own: ContextVar[tuple[_Override, ...]] = ContextVar("dibs_overrides", default=())
"""Those that began in this context, or in the one that it was copied from."""


def override(client: AnyClient, *, name: str | None = None) -> AbstractContextManager[None]:
    """Use this client in place of the default store, or of the store with that name, in a block; for tests.

    It takes precedence over `connect` and `set_default`, and can be nested. It applies in all threads and
    event loops. If several tests run at once, in tasks or threads, each sees its own override, and so do
    the tasks that it starts. Code outside of any override sees the latest one.
    """
    session = _session(client, "a client, as connect() makes it")
    return _overriding(None if name is None else store_name(name), session)


@contextmanager
def _overriding(name: str | None, session: StoreSession) -> Generator[None]:
    override = _Override(name, session)
    _own.set((*(each for each in _own.get() if each.active), override))
    _overrides.append(override)
    try:
        yield
    finally:  # perhaps in another context, as with fixtures, so `_own` is not reset here
        override.active = False
        _overrides.remove(override)


def _overridden(name: str | None) -> StoreSession | None:
    """The session that replaces the store of that name (None: the default store)."""
    if not _overrides:
        return None
    for each in (*_overrides, *_own.get())[::-1]:
        if each.name == name and each.active:
            return each.session
    return None


# -- the default store, and stores by name ------------------------------------------------------------


_lock = FreshLock()

_defaults: "tuple[OpenStore, ...]" = ()
"""Stack of default stores that were set explicitly; the last one applies."""

_by_settings: dict[tuple[str | None, tuple[str | None, ...]], StoreSession] = {}
"""Open stores, by name (None: the default store) and by the variables that configured them."""


def set_default(store: str | AnyClient | None) -> None:
    """Set the store of primitives that are created without `client=`: a URL, or a client of either side.

    It applies until it is called again, or a client is connected with `default=True`. With None the
    settings apply again.
    """
    global _defaults
    if isinstance(store, str):
        session: StoreSession | None = session_for(store)
    else:
        session = None if store is None else _session(store, "a URL, a client, or None")
    with _lock.held:
        _defaults = () if session is None else (OpenStore(session),)


def default_session() -> StoreSession:
    """The default store: an override, or set explicitly, or by the settings, or the implicit store."""
    return _overridden(None) or _last_default() or _by_settings_named(None)


def default_is_named() -> bool:
    """Whether the default store is configured, and not the implicit one."""
    return bool(_overridden(None) or _defaults or configured_store())


def session_named(name: str) -> StoreSession:
    """The store of that name: an override, or by the settings. Raises `NotConfigured` if there is none."""
    return _overridden(name) or _by_settings_named(name)


def _last_default() -> StoreSession | None:
    defaults = _defaults  # another thread can replace it
    return defaults[-1].session if defaults else None


A_SHARED_STORE = "a shared store, such as redis://host or postgresql://host/db."
"""What to use if one host is not enough; for messages."""


def _by_settings_named(name: str | None) -> StoreSession:
    """The store that the settings name, opened on first use; it stays open."""
    key = name, store_variables(name)
    session = _by_settings.get(key)
    if session is None:
        with _lock.held:
            session = _by_settings.get(key)
            if session is None:
                session = _by_settings[key] = _open_by_settings(name)
    return session


def _open_by_settings(name: str | None) -> StoreSession:
    found = configured_store(name)
    if found is None:
        return _open_implicit() if name is None else _refuse_unknown(name)
    try:
        session = session_for(found.url, **found.options)
    except NotConfigured as error:
        raise NotConfigured(f"{found.place}: {error}") from error
    promises = session.capabilities
    if _requires_cluster() and promises.asked and "cluster" not in promises.names():
        raise MissingCapability(
            f"DIBS_REQUIRE=cluster, and the store of {found.place}, {session.url}, only excludes "
            f"processes of one {promises.scope}. Use {A_SHARED_STORE}"
        )
    return session


def _requires_cluster() -> bool:
    """Whether the settings refuse a store for one host. Raises `NotConfigured` for an unknown value."""
    required = os.environ.get("DIBS_REQUIRE")
    if required not in (None, "", "cluster"):
        raise NotConfigured(f"DIBS_REQUIRE is {required!r}: the only allowed value is cluster")
    return bool(required)


def _refuse_unknown(name: str) -> NoReturn:
    known = sorted(store_names())
    named = f"there are {', '.join(map(repr, known))}" if known else "no store has a name yet"
    raise NotConfigured(
        f"no store is named {name!r} here: {named}. Name one with {store_prefix(name)}URL, or with "
        f"[stores.{name}] url in the file that {VARIABLE} names"
    )


def _open_implicit() -> StoreSession:
    """A file that only excludes this user's processes. Warns, or raises `NotConfigured`."""
    url = implicit_url()
    how = f"Set DIBS_URL to {A_SHARED_STORE}"
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        raise NotConfigured(
            f"No store is set. A file only excludes processes in this pod. {how} Without any other server: "
            "kubernetes://, which needs the rights in deploy/kubernetes-rbac.yaml."
        )
    if _requires_cluster():
        raise NotConfigured(f"DIBS_REQUIRE=cluster, and no store is set. {how}")
    warnings.warn(
        f"DIBS_URL is not set. Using {url.removeprefix('sqlite:///')}, which only excludes your own "
        "processes on this host. For several hosts, set DIBS_URL to Redis or PostgreSQL.",
        ImplicitStoreWarning,
        skip_file_prefixes=(str(Path(__file__).parent),),
    )
    return session_for(url)


class NamedStore:
    """The client of a primitive with `client="reports"`: it looks up the store when it is used."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name: str = store_name(name)

    @property
    def session(self) -> StoreSession:
        """The store that has this name now. Raises `NotConfigured` if there is none."""
        return session_named(self.name)

    def __repr__(self) -> str:
        return f"<the store named {self.name!r}>"


# -- clients ------------------------------------------------------------------------------------------


class ConnectOptions(TypedDict, total=False):
    """Options of `connect`."""

    connect_timeout: Duration
    call_timeout: Duration
    clock: Clock | None
    client: Any


class OpenStore:
    """A client's store, and what ends when the client is closed.

    `shared`: others use the store too, so it stays open. `default`: it is the default store meanwhile.
    """

    __slots__ = ("_begun", "_default", "_shared", "session")

    def __init__(
        self, session: StoreSession, *, shared: bool = False, default: bool = False
    ) -> None:
        self.session: StoreSession = session
        self._shared = shared
        self._default = default
        self._begun = False

    def begin(self) -> None:
        """The client is in use, perhaps again after it was closed.

        A second call does nothing, so a later `set_default` stays.
        """
        global _defaults
        with _lock.held:
            if self._default and not self._begun:
                self._begun = True
                _defaults = (*_defaults, self)

    def end(self) -> bool:
        """The client is closed; the previous default applies. Returns whether to close the store."""
        global _defaults
        with _lock.held:
            self._begun = False
            _defaults = tuple(each for each in _defaults if each is not self)
        return not self._shared


def open_store(url: str | None, default: bool, options: ConnectOptions) -> OpenStore:
    """The store at a URL, or of your own client; without either the default store, without options."""
    if url is None and "client" not in options:
        if options:
            raise TypeError(
                f"connect() was given {', '.join(options)} and no URL: options belong to a URL, "
                "and the default store has its own"
            )
        return OpenStore(default_session(), shared=True)
    if url is not None and "client" in options:
        raise TypeError("connect() was given a URL and client=: give one of them")
    session = session_of(**options) if url is None else session_for(url, **options)
    store = OpenStore(session, default=default)
    store.begin()
    return store


def resource_key(resource: str | bytes | Status, kind: Kind | None) -> bytes:
    """The key of a resource, given by name and kind (None: a lock), or by a status of it."""
    if not isinstance(resource, Status):
        return key_of("lock" if kind is None else kind, resource)
    if kind is not None and kind != resource.kind:
        raise ValueError(f"kind is {kind!r}, and the status is that of a {resource.kind}")
    return resource.key


def kinds_asked(kind: Kind | None) -> Sequence[str]:
    """The kind, or all kinds. Raises `ValueError` for an unknown one."""
    if kind is None:
        return KINDS
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}: the kinds are {', '.join(KINDS)}")
    return (kind,)


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
    allowed = f"{', '.join(sorted(words))} (words for `require=`)"
    for finding in broken:
        return replace(finding, told=f"{allowed}; {finding.told}")
    return Finding("promises", "ok", allowed)


async def _round_trip(rt: Runtime) -> float:
    begun = rt.now()
    await rt.call(Inspect(PROBE))
    return rt.now() - begun


def _latency(usual: float, worst: float, least_ttl: float) -> Finding:
    """Finding about round trips: a renewal has a third of the ttl, which should be enough for several tries.

    `least_ttl`: the store refuses a shorter ttl.
    """
    measured = (
        f"a round trip takes {usual * 1e3:.2f} ms; the slowest of {PROBES} took {worst * 1e3:.1f} ms: "
        f"use a ttl of at least {format_duration(max(20 * worst, MIN_TTL, least_ttl))}"
    )
    if worst > 0.5:
        advice = "use a store with a shorter round trip: leases then survive short outages"
        return Finding("latency", "warning", measured, advice)
    return Finding("latency", "ok", measured)


def scan_prefix(kind: str, prefix: str | bytes) -> bytes:
    """The beginning of the keys of that kind whose names begin with `prefix`."""
    raw = prefix.encode() if isinstance(prefix, str) else prefix
    return kind.encode() + b":" + raw
