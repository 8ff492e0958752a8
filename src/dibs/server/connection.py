"""The connection that a request came by: ASGI knows of none, so a server of ours lays it into the scope."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from starlette.types import Scope

    from dibs.server.accounts import Accounts

_WHERE = "dibs.connection"


class Connection(Protocol):
    """What may be asked of it."""

    key_id: str
    """Whose key it has brought last."""
    is_lost: bool
    """The client has hung up, or was hung up on."""
    refused: int
    """The status with which it was cut off before the answer to a request had begun."""

    def belongs_to(self, accounts: "Accounts", key_id: str) -> None:
        """Count it with a key's connections. Raises `Problem`, 429."""

    def answer(
        self, scope: "Scope", status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes
    ) -> bool:
        """Give a whole answer to that request; False where it has to be sent as ASGI has it."""


def connection_of(scope: "Scope") -> Connection | None:
    """The one that a request came by; None under another server than ours."""
    return cast("Connection | None", scope.get(_WHERE))


def lay_into(scope: "Scope", connection: Connection) -> None:
    """Have it found there."""
    scope[_WHERE] = connection
