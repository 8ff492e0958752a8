"""What `dibs doctor` reports about a database: asked of the database itself."""

import time

from dibs.model import Finding
from dibs.stores.postgres.connection import Session, Statement, Wire

FACTS = Statement(
    "dibs_facts",
    """
    SELECT extract(epoch FROM clock_timestamp())::float8, current_setting('server_version'),
        (SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit'),
        current_setting('fsync'),
        current_setting('full_page_writes'), current_setting('TimeZone'),
        (SELECT count(*) FROM pg_stat_activity)::int, current_setting('max_connections')::int,
        current_setting('synchronous_standby_names'),
        obj_description('dibs'::regnamespace),
        coalesce((SELECT n_dead_tup FROM pg_stat_user_tables
            WHERE schemaname = 'dibs' AND relname = 'keys'), 0)::bigint
    """,
)


async def examine[W: Wire](session: Session[W]) -> list[Finding]:
    """One round trip."""
    before = time.time()
    [row] = await session.ask(FACTS, [])
    after = time.time()
    clock, version, commit, fsync, pages, _, used, most, standbys, schema, dead = row
    return [
        Finding("server", "ok", f"PostgreSQL {version}; {schema}"),
        *_broken(fsync, pages),
        _clock(float(clock) - (before + after) / 2),
        _durability(commit, fsync, pages, standbys),
        _connections(int(used), int(most)),
        Finding("vacuum", "ok", f"{dead} dead rows among the keys, for autovacuum to clear"),
        _notifications(session),
    ]


def _clock(apart: float) -> Finding:
    told = f"the server's clock is {abs(apart):.3f} s {'ahead of' if apart > 0 else 'behind'} this host's"
    if abs(apart) > 60:
        advice = (
            "leases are safe, because only durations count; but times of grants will look wrong"
        )
        return Finding("clock", "note", told, advice)
    return Finding("clock", "ok", told)


def _broken(fsync: str, pages: str) -> list[Finding]:
    """Which of the store's promises this server's settings break."""
    if fsync == pages == "on":
        return []
    told = "as this server is set, it does not keep: durable, power-loss"
    return [Finding("promises", "problem", told, "see durability")]


def _durability(commit: str, fsync: str, pages: str, standbys: str) -> Finding:
    if fsync != "on" or pages != "on":
        return Finding(
            "durability",
            "problem",
            f"fsync is {fsync} and full_page_writes {pages}: a power cut may destroy the database",
            "turn both on, unless nothing in it matters",
        )
    if commit in ("off", "local"):
        told = f"synchronous_commit is {commit} by default: Dibs turns it on for what it writes"
        return Finding("durability", "note", told)
    follow = f"; standbys {standbys} confirm" if standbys else "; no standby confirms a commit"
    return Finding("durability", "ok", f"synchronous_commit is {commit}{follow}")


def _connections(used: int, most: int) -> Finding:
    told = f"{used} of {most} connections are taken; a process with Dibs takes two to four"
    if used > 0.8 * most:
        return Finding("connections", "warning", told, "raise max_connections, or use a pooler")
    return Finding("connections", "ok", told)


def _notifications[W: Wire](session: Session[W]) -> Finding:
    if session.site.is_pooled or not session.site.notifies:
        return Finding(
            "notifications",
            "warning",
            "the connection goes through a pooler that passes no notifications: waiters poll",
            "connect to the server directly, to serve waiters faster",
        )
    return Finding("notifications", "ok", "waiters are notified by LISTEN")
