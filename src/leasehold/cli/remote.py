"""A running service, asked over HTTP by the command line."""

import json
from collections.abc import Mapping
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, cast

import click

from leasehold.backends.http.apikey import HOW
from leasehold.backends.http.reading import Answer
from leasehold.backends.http.trouble import (
    check_format,
    explain,
    is_ours,
    unreachable,
    unreadable,
)
from leasehold.backends.http.url import read_url
from leasehold.errors import BackendUnavailable, Forbidden, InvalidRequest, LeaseholdError

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
        answer = self._exchange(method, path, body)
        if not is_ours(answer):
            raise explain(answer, self._settings, self._settings.find_key())
        check_format(answer, self._settings)
        found = self._read(answer.body)
        if answer.status < 300:
            return found
        told = f"{self._settings.shown}: {found.get('detail') or found.get('title')}"
        match answer.status:
            case 404 if found.get("type") in _MISSING:
                return None
            case 400 | 413:
                raise click.UsageError(told)
            case 401 | 403:
                raise Forbidden(f"{told}; {self._needs} is needed: {HOW}")
            case 409 if found.get("type") != "/problems/conflict":
                raise InvalidRequest(told)
            case 409:
                raise LeaseholdError(told)
            case _:
                raise BackendUnavailable(told)

    def _exchange(self, method: str, path: str, body: Mapping[str, Any] | None) -> Answer:
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
                found = {name.lower(): value for name, value in answer.getheaders()}
                return Answer(answer.status, found, answer.read(MAX_ANSWER), lasts=False)
        except (OSError, HTTPException) as error:
            raise unreachable(error, settings) from error

    def _connection(self) -> HTTPConnection:
        settings = self._settings
        if settings.tls is None:
            return HTTPConnection(settings.host, settings.port, timeout=settings.timeout)
        return HTTPSConnection(
            settings.host, settings.port, timeout=settings.timeout, context=settings.tls()
        )

    def _read(self, said: bytes) -> dict[str, Any]:
        """An object of JSON. Raises `BackendUnavailable` for anything else."""
        try:
            found: Any = json.loads(said)
        except ValueError as error:
            raise unreadable(self._settings, error) from error
        if not isinstance(found, dict):
            raise unreadable(self._settings, ValueError("it is no object"))
        return cast("dict[str, Any]", found)
