"""Which store the settings name: a URL, or the server of a database or cache that is there already."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from django.conf import settings  # type: ignore[import-untyped]
from django.core.exceptions import ImproperlyConfigured  # type: ignore[import-untyped]

from dibs.sync import Client, connect

_PLACES = ("URL", "DATABASE", "CACHE")
_OPTIONS = {"CONNECT_TIMEOUT": "connect_timeout", "CALL_TIMEOUT": "call_timeout"}
_NOT_LIBPQ = (
    "assume_role",
    "client_encoding",
    "cursor_factory",
    "isolation_level",
    "pool",
    "prepare_threshold",
    "server_side_binding",
)
_NOT_REDIS = ("parser_class", "pool_class", "serializer")


def connect_from_settings() -> Client | None:
    """A client of the store that `DIBS` names, as the default one; None if it names none.

    Raises `ImproperlyConfigured` for settings that can't be followed.
    """
    given = getattr(settings, "DIBS", None)
    if given is None:
        return None
    place, value, options = place_and_options(given)
    return connect(_url_of(place, value), **options, default=True)


def place_and_options(given: object) -> tuple[str, Any, dict[str, Any]]:
    """Read `DIBS`: the kind of place, the place, and the options of its connection."""
    named = {"URL": given} if isinstance(given, str) else given
    if not isinstance(named, Mapping):
        raise ImproperlyConfigured("DIBS is neither a URL nor a dict")
    if unknown := sorted(set(named) - {*_PLACES, *_OPTIONS}):
        known = ", ".join((*_PLACES, *_OPTIONS))
        raise ImproperlyConfigured(f"DIBS has {', '.join(unknown)}: it may have {known}")
    places = [place for place in _PLACES if place in named]
    if len(places) != 1:
        raise ImproperlyConfigured(f"DIBS must name one of {', '.join(_PLACES)}")
    options = {_OPTIONS[key]: named[key] for key in named if key in _OPTIONS}
    return places[0], named[places[0]], options


def connect_to_database(alias: str) -> Client:
    """A client of the store in, or for SQLite beside, an entry of `DATABASES`."""
    return connect(url_of_database(_entry("DATABASES", alias), alias))


def _url_of(kind: str, value: str) -> str:
    if kind == "URL":
        return value
    if kind == "DATABASE":
        return url_of_database(_entry("DATABASES", value), value)
    return url_of_cache(_entry("CACHES", value), value)


def _entry(setting: str, alias: str) -> Mapping[str, Any]:
    entries: Mapping[str, Mapping[str, Any]] = getattr(settings, setting)
    if alias not in entries:
        raise ImproperlyConfigured(f"DIBS names {alias!r}, which {setting} doesn't have")
    return entries[alias]


def url_of_database(entry: Mapping[str, Any], alias: str) -> str:
    """The store of an entry of `DATABASES`: itself if it is PostgreSQL, a file beside it if it is SQLite."""
    engine = str(entry.get("ENGINE", "")).rpartition(".")[2]
    file = str(entry.get("NAME") or ":memory:")
    if engine in ("postgresql", "postgis"):
        return _postgres_url(entry)
    if engine in ("sqlite3", "spatialite") and file != ":memory:" and not file.startswith("file:"):
        return f"sqlite:///{quote(file)}.leases"
    raise ImproperlyConfigured(
        f"DATABASES[{alias!r}] is a {engine or 'nameless'} database that can keep no leases: give "
        "one on PostgreSQL or a file of SQLite's, or set DIBS to the URL of another store"
    )


def _postgres_url(entry: Mapping[str, Any]) -> str:
    options = dict(entry.get("OPTIONS") or {})
    asked = {key: value for key, value in options.items() if key not in _NOT_LIBPQ}
    host, port = str(entry.get("HOST") or ""), str(entry.get("PORT") or "")
    if host.startswith("/") or "," in host:
        asked |= {"host": host} | ({"port": port} if port else {})
        host = port = ""
    user, password = (quote(str(entry.get(key) or ""), safe="") for key in ("USER", "PASSWORD"))
    login = f"{user}:{password}@" if password else f"{user}@" if user else ""
    where = f"[{host}]" if ":" in host else quote(host, safe="")
    name = quote(str(entry.get("NAME") or ""), safe="")
    query = f"?{urlencode(asked, quote_via=quote)}" if asked else ""
    return f"postgresql://{login}{where}{f':{port}' if port else ''}/{name}{query}"


def url_of_cache(entry: Mapping[str, Any], alias: str) -> str:
    """The Redis of an entry of `CACHES`: the server that it writes to. What its URL says comes first."""
    location = entry.get("LOCATION") or ""
    servers = location.replace(";", ",").split(",") if isinstance(location, str) else [*location]
    if not servers or "://" not in str(servers[0]):
        raise ImproperlyConfigured(
            f"CACHES[{alias!r}] is no Redis, so it can keep no leases: give one whose LOCATION is "
            "redis://…, or set DIBS to the URL of another store"
        )
    url = urlsplit(str(servers[0]))
    options = {
        key.lower(): str(value)
        for key, value in (entry.get("OPTIONS") or {}).items()
        if key not in _NOT_REDIS
    }
    user, password = (quote(options.pop(key, ""), safe="") for key in ("username", "password"))
    place = f"{user}:{password}@{url.netloc}" if password and "@" not in url.netloc else url.netloc
    if url.path.strip("/").isdigit():
        options.pop("db", None)
    query = urlencode(options | dict(parse_qsl(url.query)), quote_via=quote)
    return urlunsplit((url.scheme, place, url.path, query, ""))
