"""API keys managed through a running service, with an administrator's key."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from dibs.cli.output import Shape
from dibs.cli.remote import Remote
from dibs.errors import BackendUnavailable, Forbidden


class RemoteOffice:
    """See `Office`. `named_by` is the setting that names the service, where no option does."""

    def __init__(self, url: str, named_by: str = "") -> None:
        self._remote = Remote(url)
        self._named_by = named_by

    @property
    def place(self) -> str:
        return self._remote.shown

    def create(self, wanted: Shape) -> Shape:
        made: Shape = self._ask("POST", "", wanted)
        return made

    def list(self, *, ended: bool) -> list[Shape]:
        found: list[Shape] = self._ask("GET", "?ended=true" if ended else "")["keys"]
        return found

    def revoke(self, key_id: str) -> Shape | None:
        gone: Shape | None = self._ask("DELETE", f"/{quote(key_id, safe='')}")
        return gone

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        try:
            return self._remote.ask(method, f"/v1/keys{path}", body)
        except (BackendUnavailable, Forbidden) as error:
            if self._named_by:  # on the service's machine, the user may have meant its records
                hint = "with access to its records, --records URL needs no service and no key"
                error.args = (f"{error}\n{self._named_by} names this service; {hint}",)
            raise
