"""API keys managed in the service's records; this needs write access there, but no key."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from socket import gethostname
from typing import Any

import click
import msgspec

from dibs.cli.options import configured_store_url, service_meant, user_name
from dibs.cli.output import Messages, Shape
from dibs.errors import DibsError, NotConfigured
from dibs.server.audit import Audit
from dibs.server.auth.api_key import KeyMade, KeyShown, NewKey, key_shown
from dibs.server.auth.credentials import TOKEN_LEEWAY, TOKEN_LIFETIME
from dibs.server.auth.key_cache import marker_of
from dibs.server.auth.keys import KeyAdmin, KeyService, UnknownKey
from dibs.server.auth.policy import EVERYTHING, Principal, Scope
from dibs.server.config import read_config
from dibs.server.main import put_marker
from dibs.server.records import records_for
from dibs.stores.redact import redacted


class LocalKeys:
    """API keys in the records at a URL: the same methods as `RemoteKeys`."""

    def __init__(self, url: str, stores: Sequence[str] = ()) -> None:
        self._url = url
        self._stores = stores
        """Where servers that cannot read the records look for revoked keys."""
        self.place: str = redacted(url)
        self._who = Principal(
            "", f"{user_name() or 'somebody'} at {gethostname()}", frozenset(Scope), EVERYTHING
        )

    def create(self, wanted: Shape) -> Shape:
        async def created(admin: KeyAdmin, _: KeyService) -> KeyMade:
            return await admin.create(self._who, msgspec.convert(wanted, NewKey))

        made: Shape = self._do(created)
        return made

    def list(self, *, ended: bool) -> list[Shape]:
        async def listed(admin: KeyAdmin, ring: KeyService) -> list[KeyShown]:
            now = ring.now()
            keys = await admin.list(self._who)
            return [key_shown(key, now) for key in keys if ended or not key.ended(now)]

        found: list[Shape] = self._do(listed)
        return found

    def revoke(self, key_id: str) -> Shape | None:
        async def revoked(admin: KeyAdmin, ring: KeyService) -> KeyShown:
            key = await admin.revoke(self._who, key_id)
            await self._leave_marker(marker_of(key))
            return key_shown(key, ring.now())

        try:
            gone: Shape = self._do(revoked)
        except UnknownKey:
            return None
        return gone

    async def _leave_marker(self, name: str) -> None:
        """Leave a marker for servers that cannot read the records."""
        for url in self._stores:
            try:
                await put_marker(url, name)
            except DibsError as error:
                Messages(as_json=False).show(
                    "warning", f"servers that cannot read the records are not told: {error}"
                )

    def _do(self, action: Callable[[KeyAdmin, KeyService], Awaitable[object]]) -> Any:
        """Run the action, and return its result as plain dicts."""
        return msgspec.to_builtins(asyncio.run(self._done(action)))

    async def _done(self, action: Callable[[KeyAdmin, KeyService], Awaitable[object]]) -> object:
        records = records_for(self._url)
        ring = KeyService(records)
        try:
            await records.open()
            await ring.cache.load()
            return await action(KeyAdmin(ring, Audit(records)), ring)
        finally:
            await ring.cache.close()
            await records.close()


def local_keys(
    records: str | None, leases: str | None, config: str | None
) -> tuple[LocalKeys, bool]:
    """Keys where `dibs serve` would keep its records, and whether an option or a setting names that place.

    Raises `UsageError` for what keeps nothing.
    """
    given = {"records": records, "leases": leases}
    settings = read_config(config, given, default_store=configured_store_url())
    if settings.records_url.startswith("memory:"):
        raise click.UsageError("a memory:// store only lives as long as this command")
    named = settings.leases or settings.placement
    stores = [each.url for each in settings.stores] if named else []
    return LocalKeys(settings.records_url, stores), bool(settings.named_urls)


def rotate(records: str | None, config: str | None) -> str:
    """Replace the secret of the service with these settings; the file it is in.

    Raises `NotConfigured`, and `UsageError` where the settings only name a service elsewhere.
    """
    given = {"records": records}
    settings = read_config(config, given, default_store=configured_store_url())
    service = None if records or config or settings.secret_file else service_meant()
    if service is not None:
        hint = "run this on its machine, with --records URL or DIBS_SERVER_SECRET_FILE"
        raise click.UsageError(f"{service.place} names a service: {hint}")
    path = settings.secret_path
    if path is not None and not settings.secret and not path.exists():
        raise NotConfigured(f"no file {path}: `dibs serve` has never run with these records")
    settings.secrets().rotate(TOKEN_LIFETIME + TOKEN_LEEWAY)
    return str(settings.secret_path)
