"""A subscription to one inbox, as both sides read it: that it stands, signs of life, notifications."""

import secrets
from typing import Any
from urllib.parse import quote

from dibs.model import Notification
from dibs.stores.redis.connection import ReplyError, pack
from dibs.stores.redis.errors import explain
from dibs.stores.redis.ledger import read_published
from dibs.stores.redis.url import Endpoint, Settings

PING_EVERY = 15.0
"""A subscription that is silent for so long is asked whether it is still there, in seconds."""

PING = pack((b"PING",))


def new_inbox(settings: Settings) -> str:
    """A new channel among those of the Redis user, so that an ACL can keep users apart."""
    user = quote(settings.login[0] or "default", safe="")
    return f"dibs:inbox:{user}:{secrets.token_urlsafe(16)}"


class Channel:
    """Reads replies of either protocol: an ordinary array of RESP2, a push of RESP3."""

    def __init__(self, inbox: str, endpoint: Endpoint) -> None:
        self.stands = False
        """The server has confirmed the subscription."""
        self._inbox = inbox
        self._channel = inbox.encode()
        self._endpoint = endpoint

    @property
    def request(self) -> bytes:
        """What asks for the subscription."""
        return pack((b"SUBSCRIBE", self._channel))

    def hear(self, reply: Any) -> list[Notification]:
        """The notifications in it, if there are any. Raises what the server's error means."""
        if isinstance(reply, ReplyError):
            raise explain(reply, self._endpoint)
        if isinstance(reply, list) and len(reply) == 3:
            kind, channel, payload = reply
            if channel == self._channel and kind == b"message":
                return read_published(payload, self._inbox)
            if channel == self._channel and kind == b"subscribe":
                self.stands = True
        return []
