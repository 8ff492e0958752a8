"""Keys given out at the service's records: by whoever may write there, without any key."""

import asyncio
import getpass
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import click
import msgspec

from dibs.backends.redact import redacted
from dibs.cli.output import Shape
from dibs.server.audit import Audit
from dibs.server.config import read_config
from dibs.server.keys import KeyRing, UnknownKey
from dibs.server.keys_desk import Desk
from dibs.server.keys_shapes import KeyMade, KeyShown, NewKey, shown
from dibs.server.principal import Principal, Scope
from dibs.server.records import records_for
from dibs.server.scopes import EVERYTHING


class LocalOffice:
    """See `Office`."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.place = redacted(url)
        self._who = Principal("", _somebody(), frozenset(Scope), EVERYTHING)

    def create(self, wanted: Shape) -> Shape:
        async def created(desk: Desk, _: KeyRing) -> KeyMade:
            return await desk.create(self._who, msgspec.convert(wanted, NewKey))

        made: Shape = self._do(created)
        return made

    def list(self, *, ended: bool) -> list[Shape]:
        async def listed(desk: Desk, ring: KeyRing) -> list[KeyShown]:
            now = ring.now()
            keys = await desk.list(self._who)
            return [shown(key, now) for key in keys if ended or not key.ended(now)]

        found: list[Shape] = self._do(listed)
        return found

    def revoke(self, key_id: str) -> Shape | None:
        async def revoked(desk: Desk, ring: KeyRing) -> KeyShown:
            return shown(await desk.revoke(self._who, key_id), ring.now())

        try:
            gone: Shape = self._do(revoked)
        except UnknownKey:
            return None
        return gone

    def _do(self, action: Callable[[Desk, KeyRing], Awaitable[object]]) -> Any:
        """Do it, and tell what came of it as plain dicts."""
        return msgspec.to_builtins(asyncio.run(self._done(action)))

    async def _done(self, action: Callable[[Desk, KeyRing], Awaitable[object]]) -> object:
        records = records_for(self._url)
        ring = KeyRing(records)
        try:
            await records.open()
            await ring.load()
            return await action(Desk(ring, Audit(records)), ring)
        finally:
            await ring.close()
            await records.close()


def records_at(records: str | None, store: str | None, config: str | None) -> tuple[str, bool]:
    """Where `dibs serve` would have its records, and whether anybody named that place.

    Raises `UsageError` for what keeps nothing.
    """
    settings = read_config(config, {"records": records, "store": store})
    if settings.records_url.startswith("memory:"):
        raise click.UsageError("a memory:// place ends with this command, and every key with it")
    return settings.records_url, bool(settings.named_urls)


def _somebody() -> str:
    """Who sits here, as far as the system knows."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = "somebody"
    return f"{user} at {socket.gethostname()}"
