"""How a backend hears of what others do: by datagram, or else by looking."""

from leasehold.backends.sqlite.connection import Connection
from leasehold.backends.sqlite.poll import Watch
from leasehold.backends.sqlite.post import Post


def begin_to_listen(connection: Connection) -> tuple[Post | None, Watch | None]:
    """A socket of our own, or, where there can be none, a watch over what we queue for."""
    if connection.site.datagrams:
        try:
            post = Post()
        except OSError:
            return None, Watch(connection)
        post.secret = connection.secret
        return post, None
    return None, Watch(connection)


def sender(connection: Connection) -> Post | None:
    """A socket that only sends, for a connection that nobody waits at."""
    try:
        post = Post(listening=False) if connection.site.datagrams else None
    except OSError:
        return None
    if post is not None:
        post.secret = connection.secret
    return post
