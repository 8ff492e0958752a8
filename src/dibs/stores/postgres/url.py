"""What a PostgreSQL URL names: libpq's own URLs, with two options of ours."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from psycopg import ProgrammingError, pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from dibs.errors import NotConfigured
from dibs.stores.redact import redacted
from dibs.stores.url_options import did_you_mean, one_of, read_options

CONNECT_TIMEOUT = 10
"""Seconds for one try to connect, unless the URL says otherwise."""

_DEFAULTS: dict[str, Any] = {
    "client_encoding": "UTF8",
    "connect_timeout": CONNECT_TIMEOUT,
    "fallback_application_name": "dibs",
    # A peer that is gone without a word is noticed, also by a connection that only listens.
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}

_ELSEWHERE = ("host", "hostaddr", "port", "dbname", "user", "options")
"""What a connection goes by, and libpq takes from its environment where a URL leaves it open."""

_OURS = {"pooler": one_of("auto", "yes", "no"), "migrate": one_of("yes", "no")}


class Target(NamedTuple):
    """Where a connection goes: by its URL, and by libpq's environment for what that leaves open."""

    hosts: tuple[str, ...]
    """An empty one is the socket that libpq was built for."""
    ports: tuple[str, ...]
    addresses: tuple[str, ...]
    """Where the hosts are, if that is said; their names are then only names."""
    database: str
    options: Mapping[str, str]
    """All else that the URL says, and what counts of the environment."""


class Address:
    """A URL taken apart: `postgresql://user@host:port/database?option=value`.

    Every option is libpq's own, and libpq refuses what it doesn't know, but for these two:

    * `pooler=auto|yes|no`: whether a transaction pooler (PgBouncer and its like) is in between. Then
      notifications do not arrive, so waiters poll. `auto` finds out.
    * `migrate=yes|no`: whether the schema is made and updated on first use, if this role may.

    Raises `NotConfigured`, with what is wrong, for everything else.
    """

    __slots__ = ("conninfo", "may_migrate", "place", "pooler", "shown", "target")

    def __init__(self, url: str) -> None:
        self.shown: str = redacted(url)
        authority, _, path = url.partition("://")[2].partition("?")[0].partition("/")
        if authority.count("@") > 1 or "@" in path:
            raise NotConfigured(
                f"{self.shown!r}: write @ in a password or a name as %40, and / as %2F"
            )
        url, ours = _without_ours(url, self.shown)
        self.pooler: str = ours.get("pooler", "auto")
        self.may_migrate: bool = ours.get("migrate", "yes") == "yes"
        given = _parsed(url, self.shown)
        settings = {**_DEFAULTS, **given}
        if "," in str(given.get("host", "")):
            settings.setdefault("target_session_attrs", "read-write")
        self.conninfo: str = make_conninfo("", **settings)
        self.target: Target = _target(given)
        self.place: str = _place(self.target)


def _without_ours(url: str, name: str) -> tuple[str, dict[str, str]]:
    location, _, query = url.partition("?")
    parts = query.split("&") if query else []
    ours = [part for part in parts if part.partition("=")[0] in _OURS]
    theirs = [part for part in parts if part not in ours]
    try:
        found = read_options("&".join(ours), _OURS)
    except ValueError as error:
        raise NotConfigured(f"{name!r}: {error}") from None
    return (f"{location}?{'&'.join(theirs)}" if theirs else location), found


def _parsed(url: str, name: str) -> dict[str, Any]:
    try:
        return conninfo_to_dict(url)
    except ProgrammingError as error:
        said = str(error).strip()
        unknown = re.search(r'invalid URI query parameter: "([^"]*)"', said)
        if unknown is not None:
            known = [each.keyword.decode() for each in pq.Conninfo.get_defaults()]
            said += did_you_mean(unknown[1], [*_OURS, *known])
        else:
            said = re.sub(r'"[^"]*"', '"…"', said)  # it may quote a piece of a password
        raise NotConfigured(f"{name!r} is no URL of a PostgreSQL database: {said}") from None


def _target(given: Mapping[str, Any]) -> Target:
    known = {
        name: option.val.decode("utf-8", "replace")
        for option in pq.Conninfo.get_defaults()
        if option.val and (name := option.keyword.decode()) in _ELSEWHERE
    }
    known |= {name: str(value) for name, value in given.items()}
    hosts, addresses, ports = (
        known.pop(name, "").split(",") for name in ("host", "hostaddr", "port")
    )
    count = max(len(hosts), len(addresses))
    user = known.pop("user", "")
    return Target(
        tuple(hosts if len(hosts) > 1 else hosts * count),
        tuple(port or "5432" for port in (ports if len(ports) > 1 else ports * count)),
        tuple(filter(None, addresses)),
        known.pop("dbname", "") or user,
        known,
    )


def _place(target: Target) -> str:
    """Host, port and database, for messages."""
    hosts = target.hosts if any(target.hosts) else target.addresses or ("localhost",)
    at = ",".join(f"{host}:{port}" for host, port in zip(hosts, target.ports, strict=False))
    return f"{at}/{target.database}"
