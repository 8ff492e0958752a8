"""A running service, asked over HTTP by the command line."""

import json
from collections.abc import Mapping
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, cast

import click

from leasehold.backends.http.apikey import HOW
from leasehold.backends.http.url import read_url
from leasehold.errors import BackendUnavailable, Forbidden, LeaseholdError

MAX_ANSWER = 64 << 20

_MISSING = ("/problems/no-such-key", "/problems/no-such-restriction", "/problems/not-held")


class Remote:
    """One service, by its URL, with the key that the settings name."""

    def __init__(self, url: str, needs: str = "an administrator's key") -> None:
        self._settings = read_url(url)
        self._needs = needs
        """What to say is missing where it lets nobody in."""

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The answer's JSON; None for what is not there. Raises what the service's problem means."""
        status, said = self._exchange(method, path, body)
        found = _read(said)
        if found is None:
            raise BackendUnavailable(
                f"{self._settings.shown} answered {status}, and not as the lock service does: "
                "is it the right address?"
            )
        if status < 300:
            return found
        told = f"{self._settings.shown}: {found.get('detail') or found.get('title')}"
        match status:
            case 404 if found.get("type") in _MISSING:
                return None
            case 400 | 413:
                raise click.UsageError(told)
            case 401 | 403:
                raise Forbidden(f"{told}; {self._needs} is needed: {HOW}")
            case 409:
                raise LeaseholdError(told)
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
                connection.request(method, f"{settings.base}{path}", data, headers)
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


def _read(said: bytes) -> dict[str, Any] | None:
    """An object of JSON; None for anything else."""
    try:
        found: Any = json.loads(said)
    except ValueError:
        return None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else None
