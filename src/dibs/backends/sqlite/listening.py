"""How a backend hears of what others do: by datagram, or else by looking."""

from dibs.backends.sqlite.connection import Connection
from dibs.backends.sqlite.poll import Watch
from dibs.backends.sqlite.post import Post


def begin_to_listen(connection: Connection) -> tuple[Post | None, Watch | None]:
    """A socket of our own, or, where there can be none, a watch over what we queue for."""
    if connection.site.datagrams:
        try:
            return Post(), None
        except OSError:
            return None, Watch(connection)
    return None, Watch(connection)


def sender(connection: Connection) -> Post | None:
    """A socket that only sends, for a connection that nobody waits at."""
    if not connection.site.datagrams:
        return None
    try:
        return Post(listening=False)
    except OSError:
        return None
