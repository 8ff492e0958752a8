"""What is still to be learnt of a lease that was acquired or given up in a transaction of the user's own.

Nobody tells us whether a transaction has committed. The store does, when it answers a renewal: while the
transaction is open the lease's key is busy, and afterwards it is known there, or it isn't.
"""

from typing import Literal, NamedTuple


class Pending(NamedTuple):
    """It was done in a transaction, which may not have ended, and may roll back."""

    what: Literal["acquired", "released"]
    since: float
    """Only to a command that was sent later does the store answer after the transaction's end."""


NEVER_WAS = "the transaction that it was acquired in did not commit"
"""A lease that the store knows nothing of, at its first renewal."""
