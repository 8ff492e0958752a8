"""Plans for what is special about rows in PostgreSQL."""

from typing import Any

from dibs.model import Inspect, Renew
from tests.stores.ledger_reference import SWEPT, VECTORS
from tests.stores.told_plans import LINE, crowd, leave, wish

ROWS: list[list[Any]] = [
    SWEPT,
    [[wish("a")], [leave("a")], [wish("b", capacity=3)], [Inspect(LINE)]],
    [  # a waiter that becomes a hold in its row, beside the one inside the key's row
        [wish("a", capacity=2), wish("b", capacity=2), wish("c", capacity=2)],
        [leave("b")],
        [Renew(LINE, "c", 30.0)],
        [Renew(LINE, "c", 60.0), Inspect(LINE)],
        [leave("a")],
        [Renew(LINE, "c", 60.0), Inspect(LINE), leave("c")],
        [Inspect(LINE)],
    ],
    [  # a key that has had two holds is empty again, in one batch
        [
            *(wish("a", capacity=2), wish("b", capacity=2), leave("b"), leave("a")),
            *(wish("c", capacity=2), Inspect(LINE), wish("d", capacity=2), Inspect(LINE)),
        ],
    ],
    [[wish("a")], [leave("a", retain=4.0, tombstone=6.0)], 5.0, [Inspect(LINE)], 5.5, [wish("a")]],
    [
        crowd(80, waiter_ttl=5.0),
        12.0,
        [wish("new", queue=False)],
        [wish("new", queue=False)],
    ],
    [crowd(80), [wish("more", capacity=5000)], [Inspect(LINE)]],
    # holds beside the one inside the key's row, which end one by one
    [
        crowd(3, capacity=2, ttl=3.0, priority=1, lock_delay=2.0),
        *([Renew(LINE, "w0", 30.0, "there")] for _ in range(2)),
        *([leave(lease)] for lease in ("w0", "w2", "w1", "w3")),
        [Inspect(LINE)],
    ],
]

MORE_THAN_A_BATCH: list[Any] = [
    crowd(400, waiter_ttl=5.0),
    12.0,
    [Inspect(LINE)] * 9,
    [Inspect(LINE)],
]
"""More has expired than one batch may end, so it matters which commands are a batch."""

PLANS = [*VECTORS, *ROWS]
"""Together they find every planted error."""
