"""Where the server is to listen: what a host's name leads to."""

import socket
from typing import Any, NamedTuple

from dibs.errors import DibsError, NotConfigured


class CannotListen(DibsError):
    """The address can't be had now: it is taken, or not there yet. It may be later."""


class Found(NamedTuple):
    """What a socket takes."""

    family: int
    kind: int
    protocol: int
    address: Any


def look_up(listen: str, host: str, port: int) -> Found:
    """What `listen`, read as host and port, leads to. Raises `CannotListen`; `NotConfigured` for no name."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise CannotListen(f"{listen} is no address here: {error.strerror}") from error
    except UnicodeError as error:
        raise NotConfigured(f"{listen} is no address: {error}") from error
    family, kind, protocol, _, address = found[0]
    return Found(family, kind, protocol, address)
