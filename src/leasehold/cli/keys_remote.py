"""Keys given out by a running service, to whoever brings an administrator's key."""

from urllib.parse import quote

from leasehold.cli.output import Shape
from leasehold.cli.remote import Remote


class RemoteOffice:
    """See `Office`."""

    def __init__(self, url: str) -> None:
        self._remote = Remote(url)

    def create(self, wanted: Shape) -> Shape:
        made: Shape = self._remote.ask("POST", "/v1/keys", wanted)
        return made

    def list(self, *, ended: bool) -> list[Shape]:
        found: list[Shape] = self._remote.ask("GET", f"/v1/keys{'?ended=true' if ended else ''}")[
            "keys"
        ]
        return found

    def revoke(self, key_id: str) -> Shape | None:
        gone: Shape | None = self._remote.ask("DELETE", f"/v1/keys/{quote(key_id, safe='')}")
        return gone
