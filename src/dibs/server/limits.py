"""How much there may be of anything: in all, and for each key. `GET /v1/limits` tells it."""

from msgspec import Struct

from dibs.core.names import MAX_NAME
from dibs.model import MAX_CAPACITY
from dibs.stores.port import MAX_BATCH

MAX_ID, MAX_OWNER, MAX_TEXT = 128, 256, 1024
"""Bytes of a lease id; of an owner (`client-id`); of a note or a reason."""


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds. Times are in seconds, sizes in bytes."""

    min_ttl: float = 1.0
    max_ttl: float = 86400.0
    max_wait: float = 60.0
    """The longest `wait=` of one request."""
    max_keep: float = 31 * 86400.0
    """How long a released lease's units may stay taken."""
    max_name: int = MAX_NAME
    """Fixed: the length of a name, with its directories."""
    max_id: int = MAX_ID
    """Fixed: the length of a lease id."""
    max_owner: int = MAX_OWNER
    """Fixed: the length of an owner (`client-id`)."""
    max_text: int = MAX_TEXT
    """Fixed: the length of a note or a reason."""
    max_capacity: int = MAX_CAPACITY
    """Of a semaphore, and so the most units that a lease on it has. More than a million is never possible."""
    max_body: int = 1 << 20
    max_batch: int = MAX_BATCH
    """Fixed: commands in a batch."""
    max_page: int = 1000
    connections: int = 10_000
    streams_per_key: int = 200
    event_streams_per_key: int = 20
    """Of `/v1/events`. Fewer than others, of which each process that waits has one: those are told what is
    theirs, and each of these all that happens to any lock, in the loop that renewals share.
    """
    waiters: int = 20_000
    waiters_per_key: int = 5_000
    """So many requests may wait; and so many places in line may come of commands in batches."""
    leases_per_key: int = 100_000
    """Which one server has granted and not seen to end, with `lock_delay` and `keep`."""
    tombstones_per_key: int = 10_000
    """Released lease ids that a store remembers for one server; further ones are released without."""
    sign_ins_per_key: int = 100
    """At the dashboard, within a minute."""
    acquires_at_once: int = 512
    """Acquires that are on their way to the store; API keys take turns for more."""
    acquires_per_key: int = 2_048
    """Acquires that are on their way or wait for their turn."""
    renewals_at_once: int = 4_096
    """Likewise for renewals and releases, which never wait behind acquires and reads."""
    reads_at_once: int = 256
    """Likewise for reads: an inspect counts as one, a look of a watch as 16, a read for a page as 100."""
    reads_per_key: int = 10_000
    changes_per_key: int = 8
    """Changes of API keys and restrictions."""
    body_bytes_per_key: int = 8 << 20
    """Bytes of request bodies that are being read; separately of those up to 64 KiB."""
    request_time: float = 20.0
    """Within which a body must have arrived."""
    idle_time: float = 75.0
    """So long a connection may wait for its next request."""
    stall_time: float = 15.0
    """A stream whose client reads nothing for so long is ended."""
    stream_beat: float = 15.0
    """So often something comes in a stream, if only a comment."""
    stream_backlog: int = 4_096
    """A stream of pushes whose client is behind by more is cut off. How many events there may be, for those
    of `/v1/events`, the log says (`lock_events.py`).
    """


TIMES = ("request_time", "idle_time", "stall_time", "stream_beat")
"""Those without which nobody could be served."""

FIXED = ("max_name", "max_id", "max_owner", "max_text", "max_batch")
"""Those that are what the service is made for."""
