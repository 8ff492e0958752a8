"""A subscription to one inbox, as both sides begin and read it."""

import secrets
from typing import Any
from urllib.parse import quote

from dibs.model import Notification
from dibs.stores.redis.connection import HiredisError, Link, ReplyError, pack
from dibs.stores.redis.errors import broken, explain
from dibs.stores.redis.ledger import read_published
from dibs.stores.redis.url import Endpoint, Settings

PING_EVERY = 15.0
"""Seconds of silence after which a subscription is asked whether it still stands."""

PING = pack((b"PING",))


def new_inbox(settings: Settings) -> str:
    """A new channel among those of the Redis user, so that an ACL can keep users apart."""
    user = quote(settings.login[0] or "default", safe="")
    return f"dibs:inbox:{user}:{secrets.token_urlsafe(16)}"


async def subscribe(link: Link, inbox: str, timeout: float) -> list[Notification]:
    """Have an inbox's notifications sent over a link; return those that are there already.

    Raises the errors of `stores.port`, and closes the link then.
    """
    try:
        answers = await link.ask(pack((b"SUBSCRIBE", inbox)), 1, timeout)
        if not link.usable:
            raise ConnectionResetError("the server closed the connection")
        return [each for answer in answers for each in received(answer, inbox, link.endpoint)]
    except BaseException as error:
        link.close()
        if isinstance(error, OSError | HiredisError):
            raise broken(error, link.endpoint) from error
        raise


def received(reply: Any, inbox: str, endpoint: Endpoint) -> list[Notification]:
    """The notifications in a reply, if there are any. Raises what the server's error means."""
    if isinstance(reply, ReplyError):
        raise explain(reply, endpoint)
    if isinstance(reply, list) and len(reply) == 3 and reply[:2] == [b"message", inbox.encode()]:
        return read_published(reply[2], inbox)
    return []
