"""Everybody who may ask a server, and what is held there."""

import ssl
from dataclasses import dataclass

import httpx2

from dibs.server.auth.policy import Scope
from tests.server.world import World

INSIDE, NAME, UNUSED = b"matrix/in/", b"matrix/in/x", b"matrix/in/never-used"
"""A directory, what is held in it, and what isn't."""

DIRECTORIES: tuple[tuple[bytes, ...], ...] = (
    (),
    (b"matrix/",),
    (INSIDE,),
    (b"matrix/in/deeper/",),
    (b"matrix/other/",),
    (b"matrix/i/", b"MATRIX/IN/", b"/matrix/in/", b"matrix//in/"),
)
"""What keys are good for: everything, what is around, the directory itself, and others that look alike."""

OWNER, NOTE = "the-holder-of-it", "what-it-is-for"


TRUST = ssl.create_default_context()  # each client would read the certificates anew


@dataclass
class Someone:
    """A key, as one case of the matrix."""

    scope: Scope
    directories: tuple[bytes, ...]
    client: httpx2.Client

    def may(self, scope: Scope, name: bytes) -> bool:
        """What it may, told in other words than the server's own."""
        implied = {
            Scope.READ: {"read"},
            Scope.ACQUIRE: {"read", "acquire"},
            Scope.FORCE: {"read", "force"},
            Scope.ADMIN: {"read", "acquire", "force", "admin"},
        }[self.scope]
        inside = not self.directories or any(name.startswith(each) for each in self.directories)
        return scope.value in implied and inside

    def __str__(self) -> str:
        return f"{self.scope} for {self.directories or 'everything'}"


@dataclass
class Matrix:
    """A server with something held, and everybody who may ask it."""

    world: World
    lease_id: str
    everybody: list[Someone]
    nobody: dict[str, str | None]
    """Headers that let nobody in, by what is wrong with them."""


def client_of(world: World, key: str | None = None) -> httpx2.Client:
    """Somebody with a key, or without."""
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    return httpx2.Client(base_url=world.url, headers=headers, timeout=30, verify=TRUST)
