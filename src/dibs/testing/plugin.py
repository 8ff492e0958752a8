"""For pytest: a store in memory, a clock that the test moves, and no lease left behind.

| fixture | is |
|---|---|
| `dibs_clock` | a `ManualClock`; `advance(seconds)` also lets the keeper renew on the way |
| `dibs_client` | a client of a fresh store in memory with that clock, and the default store of both sides |
| `dibs_expire` | `expire(lock)`: its leases expire, and their holders learn of it |
| `dibs_steal` | `steal(lock)`: they expire, and another owner holds it; returns that owner's token |

A test that uses `dibs_client` and ends while something is held fails, unless it is marked
`dibs_may_leak`. Loading this imports nothing else of Dibs.
"""

from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import dibs
    from dibs.testing.clock import ManualClock
    from dibs.testing.faults import Keyed

MAY_LEAK = "dibs_may_leak"
CLIENT = "dibs_client"


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line("markers", f"{MAY_LEAK}: the test may end while leases are held")


@pytest.fixture
def dibs_clock() -> "ManualClock":
    """A clock that only moves when the test advances it."""
    from dibs.testing.clock import ManualClock

    return ManualClock()


@pytest.fixture
def dibs_client(dibs_clock: "ManualClock") -> Iterator["dibs.Client"]:
    """A client of a fresh memory store; bare `Lock("x")` for asyncio and threads uses it too."""
    import dibs

    client = dibs.connect("memory://", clock=dibs_clock)
    try:
        with dibs.override(client):
            yield client
    finally:
        client.session.close()


@pytest.fixture
def dibs_expire(dibs_client: "dibs.Client") -> "Callable[[Keyed], int]":
    """See `dibs.testing.expire`."""
    from dibs.testing.faults import expire

    return expire


@pytest.fixture
def dibs_steal(dibs_client: "dibs.Client") -> "Callable[[Keyed], int]":
    """See `dibs.testing.steal`."""
    from dibs.testing.faults import steal

    return steal


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Fail a test that passed but left leases held."""
    result = yield
    client = getattr(item, "funcargs", {}).get(CLIENT)
    if client is not None and item.get_closest_marker(MAY_LEAK) is None:
        _check_leaks(client)
    return result


def _check_leaks(client: Any) -> None:
    from dibs.core.names import shown, split_key
    from dibs.testing.faults import THIEF, held

    if not held(client):
        return
    client.session.keeper.flush(1.0)  # something may be about to be given up in the background
    leaks = [
        f"{kind} {shown(name)!r}, held by {', '.join(owners)}"
        for status in held(client)
        for kind, name in [split_key(status.key)]
        if (owners := [holder.owner for holder in status.holders if holder.owner != THIEF])
    ]
    if leaks:
        pytest.fail(
            "the test ended while leases were held (release them, use `with`, or mark the test "
            f"{MAY_LEAK}): {'; '.join(leaks)}",
            pytrace=False,
        )
