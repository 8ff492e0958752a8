"""Overrides: nested, of named stores, in tests that run at once, and left in another context."""

import asyncio
import contextvars
import threading
from typing import Any
from uuid import uuid4

import pytest

import dibs
import dibs.sync
from dibs import defaults, overrides
from dibs.stores import hub_named


def memory() -> Any:
    return dibs.sync.connect(f"memory://{uuid4()}")


def default_url() -> str:
    return defaults.default_hub().url


def test_a_named_store_is_overridden_alone() -> None:
    real, double, other = memory(), memory(), memory()
    dibs.set_default(real)
    with dibs.override(double, name="reports"):
        assert hub_named("reports").url == double.url
        assert default_url() == real.url
        with dibs.override(other), dibs.sync.Lock("a", client="reports"):
            assert double.lock("a").locked()
            assert default_url() == other.url
        with dibs.override(other, name="reports"):
            assert hub_named("reports").url == other.url
        assert hub_named("reports").url == double.url
    with pytest.raises(dibs.NotConfigured):
        hub_named("reports")


def test_an_override_comes_before_what_is_connected_meanwhile() -> None:
    """As where a test starts the application, whose lifespan connects."""
    double = memory()
    with dibs.override(double), dibs.override(double, name="reports"):
        real = dibs.sync.connect("memory://real", default=True)
        assert hub_named("reports").url == default_url() == double.url
    with real:
        assert default_url() == "memory://real"


async def test_two_tests_at_once_have_each_their_own() -> None:
    both_are_in, seen = asyncio.Barrier(2), []

    async def child() -> str:
        return default_url()

    async def test(client: Any) -> None:
        with dibs.override(client), dibs.override(client, name="reports"):
            await both_are_in.wait()
            urls = {default_url(), hub_named("reports").url, await asyncio.create_task(child())}
            urls.add(await asyncio.to_thread(default_url))
            seen.append(urls == {client.url})
            await both_are_in.wait()

    await asyncio.gather(test(memory()), test(memory()))
    assert seen == [True, True]


def test_two_threads_at_once_have_each_their_own() -> None:
    both_are_in, seen = threading.Barrier(2), []

    def test(client: Any) -> None:
        with dibs.override(client):
            both_are_in.wait()
            seen.append(default_url() == client.url)
            both_are_in.wait()

    threads = [threading.Thread(target=test, args=(memory(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [True, True]


def test_a_thread_that_a_test_starts_has_the_tests() -> None:
    client, seen = memory(), []
    with dibs.override(memory()), dibs.override(client):
        thread = threading.Thread(target=lambda: seen.append(default_url()))
        thread.start()
        thread.join()
    assert seen == [client.url]


def test_one_that_ends_in_another_context_has_ended_everywhere() -> None:
    """A fixture's two halves may run in contexts of their own."""
    dibs.set_default("memory://default")
    inside, other = contextvars.copy_context(), contextvars.copy_context()
    override = dibs.override(memory())
    inside.run(override.__enter__)
    copied = inside.copy()
    other.run(override.__exit__, None, None, None)
    for context in (inside, copied, other):
        assert context.run(default_url) == "memory://default"
    assert not overrides._latest


def test_they_may_end_in_any_order() -> None:
    one, two = memory(), memory()
    dibs.set_default("memory://default")
    first, second = dibs.override(one), dibs.override(two)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert default_url() == two.url
    second.__exit__(None, None, None)
    assert default_url() == "memory://default"
