"""Places where API keys are managed: in the service's records, or through a running server."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from dibs.cli import options
from dibs.cli.exits import needing
from dibs.cli.options import service_meant
from dibs.cli.output import Messages, Shape
from dibs.cli.service import Remote
from dibs.config import seconds
from dibs.errors import BackendUnavailable, Forbidden
from dibs.server.auth.api_key import MAX_LIFE, check_name
from dibs.server.auth.policy import lacks_slash, read_prefix, read_scopes, reduced, write_prefix

if TYPE_CHECKING:
    from dibs.cli.keys_local import LocalKeys

    type KeyAccess = RemoteKeys | LocalKeys


def access(
    *,
    server: str | None,
    records: str | None,
    leases: str | None,
    config: str | None,
    messages: Messages,
) -> "KeyAccess":
    """Access by the options, or else by the settings.

    Raises `UsageError` for options that contradict each other.
    """
    beside = bool(records or leases or config)
    if server is not None and beside:
        raise click.UsageError("give either --server, or --records, --leases and --config")
    name = options.store_asked()
    if name is not None and server is not None:
        raise click.UsageError("give either --server or --store, not both")
    if server is not None:
        return RemoteKeys(server)
    if name is not None and beside:
        raise click.UsageError(f"give either --store {name}, or --records, --leases and --config")
    if not beside and (service := service_meant()) is not None:
        return RemoteKeys(service.url, service.place)
    with needing("server"):
        from dibs.cli.keys_local import local_keys
    found, is_named = local_keys(records, leases, config)
    if not is_named:
        messages.show(
            "warning",
            f"using the keys in {found.place}, the default of `dibs serve`: for others give "
            "--server https://… or --records URL",
        )
    return found


class RemoteKeys:
    """API keys of a running service. `named_by` is the setting that names it, if no option does.

    Keys are dicts with the fields of `dibs.server.auth.api_key`.
    """

    def __init__(self, url: str, named_by: str = "") -> None:
        self._remote = Remote(url)
        self._named_by = named_by

    @property
    def place(self) -> str:
        """The URL of the service, without a secret."""
        return self._remote.shown

    def create(self, wanted: Shape) -> Shape:
        """Create a key. The result has its text."""
        made: Shape = self._ask("POST", "", wanted)
        return made

    def list(self, *, ended: bool) -> list[Shape]:
        """The keys; with `ended` also those that expired or were revoked."""
        found: list[Shape] = self._ask("GET", "?ended=true" if ended else "")["keys"]
        return found

    def revoke(self, key_id: str) -> Shape | None:
        """End a key. None if there is none with this id."""
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


def wanted(
    name: str, scopes: Sequence[str], prefixes: Sequence[str], expires_in: str | None
) -> Shape:
    """The body of `POST /v1/keys`. Raises `UsageError`."""
    try:
        check_name(name)
        shape: Shape = {
            "name": name,
            "scopes": sorted(read_scopes(scopes)),
            "prefixes": [
                write_prefix(each) for each in reduced(map(read_prefix, prefixes)) if each
            ],
        }
        if expires_in is not None:
            shape["expires_in"] = _lifetime(expires_in)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    return shape


def slashes_added(prefixes: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Prefixes without a slash at their end, each with the directory that it stands for."""
    return ((each, write_prefix(read_prefix(each))) for each in prefixes if lacks_slash(each))


def _lifetime(text: str) -> float:
    found = seconds(text, "--expires-in")
    if not 1 <= found <= MAX_LIFE:
        raise ValueError(f"--expires-in is {text}: it must be 1 s to 100 years")
    return found
