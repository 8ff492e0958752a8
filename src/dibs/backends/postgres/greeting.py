"""The first words on a new connection: who answers, and how it should behave."""

from dibs.backends.postgres.site import Site
from dibs.backends.postgres.statements import Statement
from dibs.backends.postgres.trouble import standby
from dibs.backends.postgres.wire import Wire

_DIRECT, _POOLED = 0, -1
"""In the stead of a process number: believe it in any case, or in none."""

GREETING = Statement(
    "dibs_greeting",
    """
    SELECT direct, current_setting('transaction_read_only')::bool,
        (SELECT count(set_config(name, value, false))
            FROM (VALUES
                ('default_transaction_isolation', 'read committed', NULL),
                ('enable_bitmapscan', 'off', NULL),
                ('enable_seqscan', 'off', NULL),
                ('extra_float_digits', '1', NULL),
                ('jit', 'off', NULL),
                ('lock_timeout', '5s', '0'),
                ('plan_cache_mode', 'force_generic_plan', NULL),
                ('search_path', 'pg_catalog, pg_temp', NULL),
                ('statement_timeout', '20s', '0'),
                ('synchronous_commit', 'on', 'off'),
                ('synchronous_commit', 'on', 'local')) AS wanted (name, value, instead_of)
            WHERE direct AND coalesce(current_setting(name) = instead_of, true))
    FROM (SELECT %s::int IN (0, pg_backend_pid()) AS direct) AS found
    """,
)
"""A statement that hangs is ended by the server too, should nobody wait for it any more. A lease that was
granted by a commit in memory only could be granted again after a power cut. And a plan that was made while
the tables were small must do when they are large."""


async def greet(wire: Wire, site: Site, patience: float) -> None:
    """Learn whether the server itself answers, and make its session fit.

    A pooler invents the process number that it tells a client, so the server's own is another one.
    What is set for a session would then be set for strangers, so nothing is.
    Raises `BackendUnavailable` for a server that only reads.
    """
    pid = {"no": _DIRECT, "yes": _POOLED}.get(site.address.pooler, wire.pgconn.backend_pid)
    [(is_direct, is_read_only, *_)] = await wire.ask(GREETING, [str(pid)], patience)
    if is_read_only:
        raise standby(site.place)
    if not is_direct:
        site.is_pooled = True
