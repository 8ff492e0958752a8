"""What to know about a file before one relies on it."""

import shutil
import sqlite3

from dibs.model import Finding
from dibs.stores.sqlite.connection import Connection
from dibs.stores.sqlite.file import open_to_others
from dibs.stores.sqlite.patience import always, persist
from dibs.stores.sqlite.schema import FORMAT

LITTLE = 64 << 20
"""So little room on the disk is worth a warning, in bytes."""


def examine(connection: Connection, *, pushes: bool) -> list[Finding]:
    """Looks at the file; blocks."""
    site = connection.site
    [(keys,)] = persist(connection, lambda: connection.read(_COUNT), always)
    free = shutil.disk_usage(site.path).free
    room = Finding("disk", "ok", f"{free >> 20} MB are free where {site.path} lies")
    if free < LITTLE:
        advice = "free some space: with a full disk nothing can be granted or released"
        room = Finding("disk", "warning", room.told, advice)
    return [
        Finding("file", "ok", f"SQLite {sqlite3.sqlite_version}, format {FORMAT}, {keys} keys"),
        room,
        Finding("log", "ok", f"the write-ahead log has {site.log_size() >> 10} kB"),
        _permissions(site.path),
        _pushes(pushes),
    ]


_COUNT = "SELECT count(*) FROM lease_keys"


def _permissions(path: str) -> Finding:
    told = open_to_others(path)
    if told:
        what, _, advice = told.rpartition("; ")
        return Finding("permissions", "warning", what, advice)
    return Finding("permissions", "ok", "other users of this machine cannot use the file")


def _pushes(pushes: bool) -> Finding:
    if pushes:
        return Finding("pushes", "ok", "datagrams arrive: waiters are notified")
    return Finding(
        "pushes",
        "warning",
        "datagram sockets are not available here: waiters poll",
        "hand-offs are faster outside of this sandbox or container",
    )
