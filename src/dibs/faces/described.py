"""What the faces of both worlds check when a primitive is described."""

from collections.abc import Callable, Iterable
from typing import Any, get_args

from dibs.config import LockConfig
from dibs.model import Capabilities
from dibs.primitives.description import check_promises
from dibs.primitives.lease import LeaseBase
from dibs.primitives.primitive import PrimitiveBase
from dibs.stores import NamedStore

_FLAGS = ("clock", "durable", "fenced", "push")
_SCOPES = get_args(Capabilities.__annotations__["scope"])
_FAILURES = ("crash", "reboot", "power-loss")

PROMISES = frozenset((*_FLAGS, *_SCOPES, *_FAILURES))
"""Every word that any store may promise, and `require=` may name."""


class Described[LeaseT: LeaseBase](PrimitiveBase[LeaseT]):
    """A primitive that asks a store for nothing that no store knows of."""

    def _describe(
        self,
        name: str | bytes,
        config: LockConfig,
        on_lost: Callable[[Any], object] | None,
        require: Iterable[str],
        client: Any,
    ) -> None:
        if require:
            require = _known({require} if isinstance(require, str) else require)
        client = client_of(client)
        super()._describe(name, config, on_lost, require, client)
        if not self._require or isinstance(client, NamedStore | None):
            return
        if client.capabilities.asked:  # else it is checked when something is acquired
            check_promises(self._require, client.capabilities.names(), client.url)


def client_of(given: Any) -> Any:
    """The client that was given, or the store that a name stands for; which one that is, is seen later.

    Raises `TypeError` for what is neither.
    """
    if isinstance(given, str):
        return NamedStore(given)
    if isinstance(given, NamedStore | None) or hasattr(given, "hub"):
        return given
    kind = type(given)
    raise TypeError(
        f"client= is of {kind.__module__}.{kind.__qualname__}: give what connect() returned, or the "
        "name of a store"
    )


def _known(words: Iterable[str]) -> frozenset[str]:
    required = frozenset(words)
    unknown = sorted(repr(word) for word in required - PROMISES)
    if unknown:
        raise ValueError(
            f"require names {', '.join(unknown)}, which no store promises: "
            f"the words are {', '.join(sorted(PROMISES))}"
        )
    return required
