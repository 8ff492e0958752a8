"""What a PostgreSQL URL names: libpq's own URLs, with two options of ours."""

import re
from typing import Any
from urllib.parse import unquote

from psycopg import ProgrammingError, pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from leasehold.errors import NotConfigured

CONNECT_TIMEOUT = 10
"""Seconds for one try to connect, unless the URL says otherwise."""

_DEFAULTS: dict[str, Any] = {
    "client_encoding": "UTF8",
    "connect_timeout": CONNECT_TIMEOUT,
    "fallback_application_name": "leasehold",
    # A peer that is gone without a word is noticed, also by a connection that only listens.
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}

_OURS = {"pooler": ("auto", "yes", "no"), "migrate": ("yes", "no")}


class Address:
    """A URL taken apart: `postgresql://user@host:port/database?option=value`.

    Every option is libpq's own, and libpq refuses what it doesn't know, but for these two:

    * `pooler=auto|yes|no`: whether a transaction pooler (PgBouncer and its like) is in between. Then
      nothing can be pushed, so waiters ask from time to time. `auto` finds out.
    * `migrate=yes|no`: whether the schema is made and updated on first use, if this role may.

    Raises `NotConfigured`, with what is wrong, for everything else.
    """

    __slots__ = ("conninfo", "may_migrate", "place", "pooler", "shown")

    def __init__(self, url: str) -> None:
        self.shown = shown(url)
        authority, _, path = url.partition("://")[2].partition("?")[0].partition("/")
        if authority.count("@") > 1 or "@" in path:
            raise NotConfigured(
                f"{self.shown!r}: write @ in a password or a name as %40, and / as %2F"
            )
        url, ours = _without_ours(url, self.shown)
        self.pooler = ours.get("pooler", "auto")
        self.may_migrate = ours.get("migrate", "yes") == "yes"
        given = _parsed(url, self.shown)
        settings = {**_DEFAULTS, **given}
        if "," in str(given.get("host", "")):
            settings.setdefault("target_session_attrs", "read-write")
        self.conninfo = make_conninfo("", **settings)
        self.place = _place(given)


def shown(url: str) -> str:
    """The URL without anything secret, whatever else is wrong with it."""
    url = re.sub(r"(://[^:@/?]*):.*@", r"\1:***@", url)
    return re.sub(r"([?&](?:ssl)?password=)[^&]*", r"\1***", url)


def _without_ours(url: str, name: str) -> tuple[str, dict[str, str]]:
    location, mark, query = url.partition("?")
    theirs, ours = [], {}
    for part in query.split("&") if mark else ():
        option, _, value = part.partition("=")
        if option not in _OURS:
            theirs.append(part)
        elif value in _OURS[option]:
            ours[option] = value
        else:
            known = ", ".join(_OURS[option])
            raise NotConfigured(f"{name!r}: {option}={unquote(value)} is none of {known}")
    return (f"{location}?{'&'.join(theirs)}" if theirs else location), ours


def _parsed(url: str, name: str) -> dict[str, Any]:
    try:
        return conninfo_to_dict(url)
    except ProgrammingError as error:
        said = str(error).strip()
        if "invalid URI query parameter" not in said:
            said = re.sub(r'"[^"]*"', '"…"', said)  # it may quote a piece of a password
        raise NotConfigured(f"{name!r} is no URL of a PostgreSQL database: {said}") from None


def _place(given: dict[str, Any]) -> str:
    """Host, port and database, for messages."""
    known = {
        option.keyword.decode(): (option.val or b"").decode("utf-8", "replace")
        for option in pq.Conninfo.get_defaults()
    }
    known |= {key: str(value) for key, value in given.items()}
    hosts = (known.get("host") or known.get("hostaddr") or "localhost").split(",")
    ports = (known.get("port") or "5432").split(",")
    if len(ports) < len(hosts):
        ports *= len(hosts)
    at = ",".join(f"{host}:{port}" for host, port in zip(hosts, ports, strict=False))
    return f"{at}/{known.get('dbname') or known.get('user') or ''}"
