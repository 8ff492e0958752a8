"""Connections of stores for tests that call them directly, and look inside."""

from collections.abc import Sequence
from typing import Any

from dibs.errors import DibsError
from dibs.model import Command, Reply
from dibs.stores.port import Store
from dibs.testing.connections import Mode, OfLoop, OfThread


class _LooseLoop(OfLoop):
    def __getattr__(self, name: str) -> Any:
        return getattr(self.connection, name)

    def now(self, commands: Sequence[Command]) -> Sequence[Reply] | DibsError | None:
        """What is answered in place; None if it is not, and then it is given up."""
        found: list[Sequence[Reply] | DibsError] = []
        give_up = self.connection.submit(commands, found.append)
        if not found:
            give_up()
            return None
        return found[0]


class _LooseThread(OfThread):
    def __getattr__(self, name: str) -> Any:
        return getattr(self.connection, name)


def connection_to(store: Store, mode: Mode) -> Any:
    """A connection that is not open yet. It also has what the store's own connection has."""
    if mode == "async":
        return _LooseLoop(store.async_connection())
    return _LooseThread(store.blocking_connection())
