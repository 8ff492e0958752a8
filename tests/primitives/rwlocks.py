"""Readers and writers at a store that can be made to fail."""

from collections.abc import Callable, Sequence
from typing import Any

from dibs import (
    BackendUnavailable,
)
from dibs.model import Command, Resize
from tests.primitives.worlds import World
from tests.runtime.stores import TappedStore


def site(w: World, **options: Any) -> tuple[TappedStore, Any]:
    """A store that can be made to fail, and a client of it."""
    store = TappedStore(store=w.store)
    return store, w.another(store, **options)


def failing(when: Callable[[Command], bool]) -> Callable[[Sequence[Command]], None]:
    def fail(commands: Sequence[Command]) -> None:
        if any(when(command) for command in commands):
            raise BackendUnavailable("planted")

    return fail


def resizes(command: Command) -> bool:
    return isinstance(command, Resize)


def heal(store: TappedStore) -> None:
    store.before = store.after = lambda _: None


async def units(w: World) -> list[int]:
    """What the store has: how many units each holder."""
    status = await w.get(w.client.status("a", "rwlock"))
    return [holder.units for holder in status.holders]
