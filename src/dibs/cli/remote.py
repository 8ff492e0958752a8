"""A running service, asked over HTTP by the command line."""

import json
from collections.abc import Mapping
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, cast

import click

from dibs.errors import DibsError, InvalidRequest
from dibs.stores.http.errors import (
    check_format,
    explain,
    is_ours,
    unreachable,
    unreadable,
)
from dibs.stores.http.url import ApiKey, HttpSettings, read_url
from dibs.stores.web.reading import Response

MAX_ANSWER = 64 << 20

_MISSING = ("/problems/no-such-key", "/problems/no-such-restriction", "/problems/not-held")


class Remote:
    """One service, by its URL, with the key that the settings name."""

    def __init__(self, url: str) -> None:
        self._settings = read_url(url)

    @property
    def shown(self) -> str:
        """The URL, without a key."""
        return self._settings.shown

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The answer's JSON; None for what is not there. Raises what the service's problem means."""
        key = self._settings.find_key()
        answer = self._exchange(method, path, body, key)
        if not is_ours(answer):
            raise explain(answer, self._settings, key)
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
            case 409 if found.get("type") != "/problems/conflict":
                raise InvalidRequest(told)
            case 409:
                raise DibsError(told)
            case _:
                raise explain(answer, self._settings, key)

    def _exchange(
        self, method: str, path: str, body: Mapping[str, Any] | None, key: ApiKey | None
    ) -> Response:
        settings = self._settings
        named = headers("application/json", key) | {"Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        try:
            with closing(connection(settings)) as link:
                link.request(method, f"{settings.base}{path}", data, named)
                answer = link.getresponse()
                return head_of(answer)._replace(body=answer.read(MAX_ANSWER))
        except (OSError, HTTPException) as error:
            raise unreachable(error, settings) from error

    def _read(self, said: bytes) -> dict[str, Any]:
        """An object of JSON. Raises `BackendUnavailable` for anything else."""
        try:
            found: Any = json.loads(said)
        except ValueError as error:
            raise unreadable(self._settings, error) from error
        if not isinstance(found, dict):
            raise unreadable(self._settings, ValueError("it is no object"))
        return cast("dict[str, Any]", found)


def connection(settings: HttpSettings) -> HTTPConnection:
    """A connection of its own, which is made with the first request."""
    host, port, timeout = settings.host, settings.port, settings.timeout
    if settings.tls is None:
        return HTTPConnection(host, port, timeout=timeout)
    return HTTPSConnection(host, port, timeout=timeout, context=settings.tls())


def headers(accept: str, key: ApiKey | None) -> dict[str, str]:
    """What is wanted, and who wants it."""
    named = {} if key is None else {"Authorization": f"Bearer {key.secret}"}
    return {"Accept": accept} | named


def head_of(response: HTTPResponse) -> Response:
    """An answer whose body was not read yet."""
    found = {name.lower(): value for name, value in response.getheaders()}
    return Response(response.status, found, b"", lasts=False)
