"""What is said to SQLite on behalf of a book."""

from collections.abc import Callable

from dibs.core.book import Entry, Hold, Place, Tomb
from dibs.core.timing import POSITIONS
from dibs.stores.sqlite.values import (
    HOLD,
    PLACE,
    TOMB,
    Row,
    hold_of,
    hold_row,
    place_of,
    place_row,
    tomb_of,
    tomb_row,
)

_KEY = (
    "key, version, last, capacity, arrivals, used, waiting, holds, tombs, due, doubt, taken, "
    + HOLD
)

READ_KEY = f"SELECT {_KEY} FROM lease_keys WHERE key = ?"  # noqa: S608
READ_ANEW = f"""SELECT format, boot, lease_meta.floor, {_KEY}
    FROM lease_meta LEFT JOIN lease_keys ON key = ?"""  # noqa: S608
"""What must be read once others have written: `schema.META`, and the row of a key."""
WRITE_KEY = f"REPLACE INTO lease_keys ({_KEY}) VALUES ({', '.join('?' * 30)})"  # noqa: S608
SWAP_KEY = f"""UPDATE lease_keys SET {_KEY.replace("key, ", "", 1).replace(",", " = ?,")} = ?
    WHERE key = ? AND version = ?"""  # noqa: S608
"""Written only if nobody else has written this row."""


class Table:
    """The statements of one kind of entry."""

    __slots__ = ("delete", "ended", "get", "next_due", "of", "row", "write")

    def __init__(
        self, name: str, columns: str, of: Callable[[Row], Entry], row: Callable[..., Row]
    ) -> None:
        marks = ", ".join("?" * (columns.count(",") + 2))
        self.get = f"SELECT {columns} FROM {name} WHERE key = ? AND id = ?"  # noqa: S608
        self.ended = f"""SELECT {columns} FROM {name} WHERE key = ? AND expires <= ?
            ORDER BY expires, id LIMIT ?"""  # noqa: S608
        self.next_due = f"SELECT min(expires) FROM {name} WHERE key = ? AND expires > ?"  # noqa: S608
        self.write = f"REPLACE INTO {name} (key, {columns}) VALUES ({marks})"  # noqa: S608
        self.delete = f"DELETE FROM {name} WHERE key = ? AND id = ?"  # noqa: S608
        self.of = of
        self.row = row


TABLES: dict[type, Table] = {
    Hold: Table("lease_holds", HOLD, hold_of, hold_row),
    Place: Table("lease_places", PLACE, place_of, place_row),
    Tomb: Table("lease_tombs", TOMB, tomb_of, tomb_row),
}
ALL_HOLDS = f"SELECT {HOLD} FROM lease_holds WHERE key = ?"  # noqa: S608
FIRST_HOLDS = f"""SELECT {HOLD} FROM lease_holds WHERE key = ?
    ORDER BY expires, id LIMIT ?"""  # noqa: S608
FIRST_PLACES = f"""SELECT {PLACE} FROM lease_places WHERE key = ?
    ORDER BY urgency, arrival LIMIT ?"""  # noqa: S608
NEXT_PLACES = f"""SELECT {PLACE} FROM lease_places WHERE key = ? AND (urgency, arrival) > (?, ?)
    ORDER BY urgency, arrival LIMIT ?"""  # noqa: S608
COUNT_AHEAD = f"""SELECT count(*) FROM (SELECT 1 FROM lease_places
    WHERE key = ? AND (urgency, arrival) < (?, ?) LIMIT {POSITIONS})"""  # noqa: S608
ANY_BEHIND = """SELECT 1 FROM lease_places WHERE key = ? AND (urgency, arrival) > (?, ?) LIMIT 1"""
FIRST_RANKS = f"""SELECT urgency, arrival FROM lease_places WHERE key = ?
    ORDER BY urgency, arrival LIMIT {POSITIONS}"""  # noqa: S608
