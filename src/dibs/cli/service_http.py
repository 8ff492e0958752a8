"""How the command line speaks HTTP with a service: the connection, a request's headers, an answer."""

from http.client import HTTPConnection, HTTPResponse, HTTPSConnection

from dibs.backends.http.reading import Answer
from dibs.backends.http.settings import Key, Settings


def connection(settings: Settings) -> HTTPConnection:
    """A connection of its own, which is made with the first request."""
    host, port, timeout = settings.host, settings.port, settings.timeout
    if settings.tls is None:
        return HTTPConnection(host, port, timeout=timeout)
    return HTTPSConnection(host, port, timeout=timeout, context=settings.tls())


def headers(accept: str, key: Key | None) -> dict[str, str]:
    """What is wanted, and who wants it."""
    named = {} if key is None else {"Authorization": f"Bearer {key.secret}"}
    return {"Accept": accept} | named


def head_of(response: HTTPResponse) -> Answer:
    """An answer whose body was not read yet."""
    found = {name.lower(): value for name, value in response.getheaders()}
    return Answer(response.status, found, b"", lasts=False)
