"""Which module serves which URL scheme."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from dibs.clock import Clock
from dibs.errors import NotConfigured
from dibs.lazy import imported
from dibs.stores.port import Store
from dibs.stores.redact import redacted

GROUP = "dibs.stores"
"""Third parties add a store with an entry point `scheme = "module:Class"` in this group."""

BUILTIN = {
    "memory": "dibs.stores.memory:MemoryStore",
    "sqlite": "dibs.stores.sqlite:SqliteStore",
    "redis": "dibs.stores.redis:RedisStore",
    "rediss": "dibs.stores.redis:RedisStore",
    "valkey": "dibs.stores.redis:RedisStore",
    "valkeys": "dibs.stores.redis:RedisStore",
    "postgresql": "dibs.stores.postgres:PostgresStore",
    "etcd": "dibs.stores.etcd:EtcdStore",
    "etcds": "dibs.stores.etcd:EtcdStore",
    "kubernetes": "dibs.stores.kubernetes:KubernetesStore",
    "nats": "dibs.stores.nats:NatsStore",
    "s3": "dibs.stores.s3:S3Store",
    "temporal": "dibs.stores.temporal.store:TemporalStore",
    "https": "dibs.stores.http.store:HttpStore",
    "http": "dibs.stores.http.store:HttpStore",
}

SPELLINGS = {"postgres": "postgresql", "postgresql+psycopg": "postgresql"}
"""Schemes that mean the same as another."""

HINTS = {
    "unix": "; for a socket of Redis write redis:///run/redis/redis.sock?db=0",
}
"""What to say of schemes that others use."""

PACKAGES = frozenset(
    {
        "hiredis",
        "psycopg",
        "temporalio",
        "httptools",
        "msgspec",
        "yaml",
        "nats",
        "boto3",
        "botocore",
    }
)
"""What stores are built on, and our extras bring."""

EXTRAS = {
    "redis": "redis",
    "rediss": "redis",
    "valkey": "redis",
    "valkeys": "redis",
    "postgresql": "postgres",
    "etcd": "etcd",
    "etcds": "etcd",
    "temporal": "temporal",
    "temporalio": "temporal",
    "kubernetes": "kubernetes",
    "nats": "nats",
    "s3": "s3",
    "http": "http",
    "https": "http",
}
"""Which of our extras brings the packages for a scheme."""


def store_for(url: str, *, clock: Clock | None = None) -> Store:
    """The store that a URL names. Raises `NotConfigured` for a scheme that nobody serves."""
    scheme, rest, target = _serving(url)
    module, _, name = target.partition(":")
    store: Store = getattr(_load(scheme, module), name)(f"{scheme}:{rest}", clock=clock)
    return store


def check_scheme(url: str) -> None:
    """Raises `NotConfigured` for a URL that is not one of a store; opens nothing."""
    _serving(url)


def _serving(url: str) -> tuple[str, str, str]:
    """A URL's scheme, its rest, and the class that serves it."""
    scheme, colon, rest = url.partition(":")
    scheme = scheme.lower()
    scheme = SPELLINGS.get(scheme, scheme)
    target = BUILTIN.get(scheme) or _plugged_in(scheme)
    if not colon or target is None:
        known = ", ".join(f"{name}://" for name in sorted({*BUILTIN, "postgres"}))
        plain = scheme.partition("+")[0]
        hint = f"; write {plain}://" if plain != scheme and plain in BUILTIN else ""
        hint = HINTS.get(scheme, hint) if colon else f"; for a file write sqlite:///{url}"
        raise NotConfigured(
            f"{redacted(url)!r} is not the URL of a store. Store URLs begin with one of {known}{hint}"
        )
    return scheme, rest, target


def store_of(client: object, *, clock: Clock | None = None) -> Store:
    """The store that somebody's own client is connected to. Raises `NotConfigured` for a strange one."""
    package = type(client).__module__.partition(".")[0]
    if package != "temporalio":
        raise NotConfigured(
            f"client= is a {type(client).__module__}.{type(client).__qualname__}: a store is made "
            "from a URL, or from a client of temporalio"
        )
    module, _, name = BUILTIN["temporal"].partition(":")
    store: Store = getattr(_load(package, module), name).from_client(client, clock=clock)
    return store


def _load(scheme: str, module: str) -> ModuleType:
    with needing_extras(scheme):
        found: ModuleType = imported(module)
        return found


@contextmanager
def needing_extras(scheme: str) -> Iterator[None]:
    """A package that is missing is told with the extra that brings it."""
    try:
        yield
    except ModuleNotFoundError as error:
        package, extra = (error.name or "").partition(".")[0], EXTRAS.get(scheme)
        if extra is None or package not in PACKAGES:
            raise
        raise NotConfigured(
            f"{scheme}:// needs the package {error.name}: pip install 'dibs[{extra}]'"
        ) from error


def _plugged_in(scheme: str) -> str | None:
    from importlib.metadata import entry_points

    for point in entry_points(group=GROUP, name=scheme):
        return point.value
    return None
