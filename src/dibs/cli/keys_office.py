"""Places where API keys are managed: in the service's records, or through a running server."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol
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


class Office(Protocol):
    """Makes, lists and revokes keys; all of them as `dibs.server.auth.api_key` has them."""

    @property
    def place(self) -> str:
        """The URL at which the keys are, without any secret."""

    def create(self, wanted: Shape) -> Shape:
        """A new key, with its text."""

    def list(self, *, ended: bool) -> list[Shape]:
        """The keys that there are, on demand also those that have ended."""

    def revoke(self, key_id: str) -> Shape | None:
        """End a key; None if there is none of that id."""


def office(
    *,
    server: str | None,
    records: str | None,
    leases: str | None,
    config: str | None,
    messages: Messages,
) -> Office:
    """The one that the options mean, else the settings.

    Raises `UsageError` where they contradict each other.
    """
    beside = bool(records or leases or config)
    if server is not None and beside:
        raise click.UsageError("give either --server, or --records, --leases and --config")
    name = options.store_asked()
    if name is not None and server is not None:
        raise click.UsageError("give either --server or --store, not both")
    if server is not None:
        return _remote(server)
    if name is not None and beside:
        raise click.UsageError(f"give either --store {name}, or --records, --leases and --config")
    service = None if beside else service_meant()
    if service is not None:
        return _remote(service.url, service.place)
    return _local(records, leases, config, messages)


def _remote(url: str, named_by: str = "") -> Office:
    return RemoteOffice(url, named_by)


def _local(
    records: str | None, leases: str | None, config: str | None, messages: Messages
) -> Office:
    with needing("server"):
        from dibs.cli.keys_local import local_office
    found, is_named = local_office(records, leases, config)
    if not is_named:
        messages.show(
            "warning",
            f"using the keys in {found.place}, the default of `dibs serve`: for others give "
            "--server https://… or --records URL",
        )
    return found


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
