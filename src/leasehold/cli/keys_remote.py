"""Keys given out by a running service, to whoever brings an administrator's key."""

import json
from collections.abc import Mapping
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import quote

import click

from leasehold.backends.http.apikey import HOW
from leasehold.backends.http.url import read_url
from leasehold.cli.output import Shape
from leasehold.errors import BackendUnavailable, Forbidden

MAX_ANSWER = 64 << 20


class RemoteOffice:
    """See `Office`."""

    def __init__(self, url: str) -> None:
        self._settings = read_url(url)

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
        """The answer's JSON; None for 404. Raises what the service's problem means."""
        status, said = self._exchange(method, path, body)
        try:
            found = json.loads(said)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise BackendUnavailable(
                f"{self._settings.shown} answered {status}, and not as the lock service does: "
                "is it the right address?"
            )
        if status < 300:
            return found
        told = f"{self._settings.shown}: {found.get('detail') or found.get('title')}"
        match status:
            case 404 if method == "DELETE":
                return None
            case 400 | 413:
                raise click.UsageError(told)
            case 401 | 403:
                raise Forbidden(f"{told}; an administrator's key is needed: {HOW}")
            case _:
                raise BackendUnavailable(told)

    def _exchange(
        self, method: str, path: str, body: Mapping[str, Any] | None
    ) -> tuple[int, bytes]:
        settings = self._settings
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        key = settings.find_key()
        if key is not None:
            headers["Authorization"] = f"Bearer {key.secret}"
        data = None if body is None else json.dumps(body).encode()
        try:
            with closing(self._connection()) as connection:
                connection.request(method, f"{settings.base}/v1/keys{path}", data, headers)
                answer = connection.getresponse()
                return answer.status, answer.read(MAX_ANSWER)
        except (OSError, HTTPException) as error:
            if isinstance(error, BackendUnavailable | Forbidden):
                raise
            raise BackendUnavailable(
                f"{settings.shown} can't be reached: {str(error) or type(error).__name__}"
            ) from error

    def _connection(self) -> HTTPConnection:
        settings = self._settings
        if settings.tls is None:
            return HTTPConnection(settings.host, settings.port, timeout=settings.timeout)
        return HTTPSConnection(
            settings.host, settings.port, timeout=settings.timeout, context=settings.tls()
        )
