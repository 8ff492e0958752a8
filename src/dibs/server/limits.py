"""The limits of a server: in total, and per API key. `GET /v1/limits` returns them."""

from msgspec import Struct

from dibs.core.names import MAX_NAME
from dibs.model import MAX_CAPACITY
from dibs.stores.port import MAX_BATCH

MAX_ID, MAX_OWNER, MAX_TEXT = 128, 256, 1024
"""Bytes of a lease id; of an owner (`client-id`); of a note or a reason."""


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits. Times are in seconds, sizes in bytes."""

    min_ttl: float = 1.0
    max_ttl: float = 86400.0
    max_wait: float = 60.0
    """The longest `wait=` of one request."""
    max_keep: float = 31 * 86400.0
    """The longest time that units of a released lease can stay taken."""
    max_name: int = MAX_NAME
    """Fixed: the length of a name, with its directories."""
    max_id: int = MAX_ID
    """Fixed: the length of a lease id."""
    max_owner: int = MAX_OWNER
    """Fixed: the length of an owner (`client-id`)."""
    max_text: int = MAX_TEXT
    """Fixed: the length of a note or a reason."""
    max_capacity: int = MAX_CAPACITY
    """The capacity of a semaphore, and so the units of a lease. More than a million is never possible."""
    max_body: int = 1 << 20
    max_batch: int = MAX_BATCH
    """Fixed: commands in a batch."""
    max_page: int = 1000
    connections: int = 10_000
    streams_per_key: int = 200
    event_streams_per_key: int = 20
    """Streams of `/v1/events`. Lower than `streams_per_key`: each of these streams gets every event."""
    waiters: int = 20_000
    waiters_per_key: int = 5_000
    """Waiting requests per key; the same limit applies to queue positions taken in batches."""
    leases_per_key: int = 100_000
    """Leases that one server has granted and not seen end, including units that stay taken."""
    tombstones_per_key: int = 10_000
    """Released lease ids that a store remembers for one server; further ones are released without."""
    sign_ins_per_key: int = 100
    """Sign-ins at the dashboard within a minute."""
    acquires_at_once: int = 512
    """Acquires under way to the store; beyond that, API keys take turns."""
    acquires_per_key: int = 2_048
    """Acquires under way or waiting for their turn."""
    renewals_at_once: int = 4_096
    """Renewals and releases under way, which wait for acquires and reads only in a mixed batch."""
    reads_at_once: int = 256
    """Reads under way: an inspect counts as one, a look of a watch as 16, a read for a page as 100."""
    reads_per_key: int = 10_000
    changes_per_key: int = 8
    """Changes of API keys and restrictions."""
    body_bytes_per_key: int = 8 << 20
    """Bytes of request bodies that are being read; bodies up to 64 KiB count separately."""
    request_time: float = 20.0
    """Seconds in which a body must arrive."""
    idle_time: float = 75.0
    """Seconds that a connection may wait for its next request."""
    stall_time: float = 15.0
    """Seconds after which a stream is closed if its client reads nothing."""
    stream_beat: float = 15.0
    """Seconds after which an idle stream gets a comment."""
    stream_backlog: int = 4_096
    """Notifications that a client may be behind before its stream is closed. `/v1/events` has `LOG_SIZE`."""


TIMES = ("request_time", "idle_time", "stall_time", "stream_beat")
"""Times that must be more than 0."""

FIXED = ("max_name", "max_id", "max_owner", "max_text", "max_batch")
"""Limits that cannot be changed."""
