"""From a grant to a lease: an interrupt in between leaves the grant to nobody, and nobody to a late copy."""

from collections.abc import Callable
from typing import Any

import pytest

from dibs import BackendUnavailable
from dibs.model import Acquire, Gone, Inspect
from dibs.primitives.kept import KeptLease
from tests.primitives.circles import ask
from tests.primitives.waits import pause
from tests.primitives.worlds import World, in_both_worlds
from tests.runtime.stores import TappedStore


class Interrupt(BaseException):
    """As a Ctrl-C, which asyncio would not leave to a test."""


def one(w: World, client: Any) -> Any:
    return client.lock("a", wait=60)


def several(w: World, client: Any) -> Any:
    return w.module.AllOf(client.lock("a"), wait=60)


@pytest.mark.parametrize(("maker", "lost"), [(one, 0), (one, 1), (several, 0), (several, 2)])
@in_both_worlds
async def test_a_grant_whose_lease_could_not_be_made_is_given_up(
    w: World, monkeypatch: pytest.MonkeyPatch, maker: Callable[..., Any], lost: int
) -> None:
    """With `lost` answers to its Acquire: then a copy may still come, and finds the id buried."""
    store, sent = TappedStore(store=w.store), list[Acquire]()

    def lose(commands: Any) -> None:
        acquires = [command for command in commands if isinstance(command, Acquire)]
        sent.extend(acquires)
        if acquires and len(sent) <= lost:
            w.clock.advance(0.5)
            raise BackendUnavailable("planted")

    store.after = lose
    client = w.another(store)

    def interrupted(self: KeptLease, *about: Any) -> None:
        self._end = "unborn"
        raise Interrupt

    with monkeypatch.context() as patch:
        patch.setattr(KeptLease, "__init__", interrupted)
        wanted = maker(w, client)
        with pytest.raises(Interrupt):
            await w.get(wanted.acquire())
    while (await ask(w.client, Inspect(b"lock:a"))).holders:
        await pause(w)
    late = await ask(w.client, sent[-1])
    if lost:
        assert isinstance(late, Gone)
    lease = await w.get(w.client.lock("b").try_acquire())
    await w.get(lease.release())
