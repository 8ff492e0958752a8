"""What a planted bug is: what it changes, and by which broken promises it must show."""

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import Any
from unittest.mock import patch

from dibs.model import Command, Reply
from tests.torture.network import Network, Weather

type Apply = Callable[[Command], Reply]
type Twist = Callable[[Command, Apply], Reply]


@dataclass
class Bug:
    """What to change, by which broken promises (any of them) it must show, and in which deeds."""

    shows: frozenset[str] = frozenset()
    kinds: tuple[str, ...] = ()
    """Those that it is looked for in; empty for all."""
    store: Callable[[Network], None] | None = None
    patches: tuple[tuple[str, Any], ...] = ()
    rates: float = 0.0
    weather: Weather = field(default_factory=Weather)
    cycles: int = 700
    """It is looked for in so many, in each of a few histories."""

    @contextmanager
    def planted(self) -> Generator[None]:
        """A class may inherit what it is to do otherwise, so the patch adds it. Raises for other names."""
        with ExitStack() as stack:
            for target, replacement in self.patches:
                resolve_name(target)  # or a bug in what was renamed would never be found
                stack.enter_context(patch(target, replacement, create=True))
            yield


def twisted(twist: Twist) -> Callable[[Network], None]:
    """A store in which `twist` stands between commands and ledger."""

    def plant(network: Network) -> None:
        honest = network.apply

        def apply(command: Command) -> Reply:
            return twist(command, honest)

        network.apply = apply  # type: ignore[method-assign]

    return plant


def made(make: Callable[[], Twist]) -> Callable[[Network], None]:
    """As `twisted`, with a memory of its own for each store."""

    def plant(network: Network) -> None:
        twisted(make())(network)

    return plant


def patched(target: str, replacement: Any) -> tuple[tuple[str, Any], ...]:
    """One thing of the primitives, replaced."""
    return ((f"dibs.locks.{target}", replacement),)
