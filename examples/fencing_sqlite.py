"""A holder that was paused for too long writes to a database: with the guard that is refused.

`python examples/fencing_sqlite.py`

Prints: without a guard: shipped, then overwritten by the late one: packed
Prints: with the guard: token … of lock order:42 is stale: the resource has already seen token …
Prints: so it is still shipped
"""

import sqlite3
import tempfile
import time
from pathlib import Path

from dibs.fencing import SqlFence, StaleToken
from dibs.sync import Lease, connect

fence = SqlFence()


def state(database: sqlite3.Connection) -> str:
    found: str = database.execute("SELECT state FROM orders WHERE id = 42").fetchone()[0]
    return found


def write(database: sqlite3.Connection, new: str) -> None:
    with database:
        database.execute("UPDATE orders SET state = ? WHERE id = 42", (new,))


def write_guarded(database: sqlite3.Connection, lease: Lease, new: str) -> None:
    """The same, in one transaction with the check of the token."""
    with database:  # commits, or rolls back if anything is raised
        fence.check(lease, database)
        database.execute("UPDATE orders SET state = ? WHERE id = 42", (new,))


def main(folder: Path) -> None:
    database = sqlite3.connect(folder / "shop.db")
    database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, state TEXT)")
    database.execute("INSERT INTO orders VALUES (42, 'new')")
    database.commit()
    fence.create(database)

    with connect(f"sqlite:///{folder / 'leases.db'}") as client:
        lock = client.lock("order:42", ttl=0.5, auto_renew=False)
        paused = lock.acquire()
        time.sleep(0.6)  # in the place of a SIGSTOP, a suspended machine, a long garbage collection
        with lock as lease:  # somebody else's turn
            write(database, "shipped")
            write(database, "packed")  # by the one that was paused, who did not ask
            print("without a guard: shipped, then overwritten by the late one:", state(database))

            write_guarded(database, lease, "shipped")
            try:
                write_guarded(database, paused, "packed")
            except StaleToken as stale:
                print("with the guard:", stale)
            print("so it is still", state(database))
    database.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
