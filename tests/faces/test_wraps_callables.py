"""The decorator on what is no plain function: the lock is held as long as the body runs, or it's refused."""

import asyncio
import functools
import uuid
from collections.abc import AsyncIterator, Awaitable, Iterator
from typing import Any

import pytest

import dibs
import dibs.sync
from dibs import current_lease
from dibs.primitives.template import NameTemplate


@pytest.fixture(params=[dibs, dibs.sync], ids=["async", "sync"])
def module(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def client(module: Any) -> Iterator[Any]:
    client = module.connect(f"memory://{uuid.uuid4()}")
    yield client
    client.hub.close()


async def work(day: str, pages: int = 1) -> tuple[str, int]:
    """Suspends, so that a lock that was released too early would be seen."""
    await asyncio.sleep(0)
    lease = current_lease()
    lease.ensure()  # raises once it was released
    return lease.key.decode(), pages


class AsyncCallable:
    async def __call__(self, day: str) -> tuple[str, int]:
        return await work(day, 3)


class PlainCallable:
    def __call__(self, day: str) -> str:
        return current_lease().key.decode()


async def test_what_ends_in_a_coroutine_function_holds_the_lock_while_it_runs(
    module: Any, client: Any
) -> None:
    wrap = module.Lock.wraps("report:{day}", client=client)
    partial: Any = functools.partial(functools.partial(work), pages=2)
    assert await wrap(partial)("mon") == ("lock:report:mon", 2)
    assert await wrap(AsyncCallable())("tue") == ("lock:report:tue", 3)
    assert await wrap(AsyncCallable().__call__)(day="wed") == ("lock:report:wed", 3)


def test_objects_and_partials_that_are_plain_are_plain(module: Any, client: Any) -> None:
    wrap = module.Lock.wraps("report:{day}", client=client)
    assert wrap(PlainCallable())("mon") == "lock:report:mon"
    assert wrap(functools.partial(PlainCallable(), day="tue"))() == "lock:report:tue"


def test_an_awaitable_result_is_refused_and_its_body_never_runs(module: Any, client: Any) -> None:
    ran: list[str] = []

    async def body() -> None:
        ran.append("the body")

    @module.Lock.wraps("a", client=client)
    def hides_a_coroutine() -> Awaitable[None]:
        return body()

    with pytest.raises(
        TypeError, match=r"hides_a_coroutine returned a coroutine.*`async def` itse"
    ):
        hides_a_coroutine()
    assert ran == []
    assert not dibs.sync.connect(client.url).lock("a").locked()


def test_a_future_that_is_returned_is_cancelled(module: Any, client: Any) -> None:
    loop = asyncio.new_event_loop()
    future = loop.create_future()
    with pytest.raises(TypeError, match=r"returned a Future"):
        module.Lock.wraps("a", client=client)(lambda: future)()
    assert future.cancelled()
    loop.close()


def test_a_generator_that_is_returned_is_refused(module: Any, client: Any) -> None:
    def numbers() -> Iterator[int]:
        yield 1

    async def later() -> AsyncIterator[int]:
        yield 1

    def later_hidden() -> AsyncIterator[int]:
        return later()

    made = numbers()
    for function, kind in ((lambda: made, "generator"), (later_hidden, "async_generator")):
        with pytest.raises(TypeError, match=rf"returned a {kind}, whose body would run with the l"):
            module.Lock.wraps("a", client=client)(function)()
    assert list(made) == [], "it was closed"


def test_generators_are_refused_at_decoration(module: Any) -> None:
    class Numbers:
        def __call__(self) -> Iterator[int]:
            yield 1

    def numbers() -> Iterator[int]:
        yield 1

    async def later() -> AsyncIterator[int]:
        yield 1

    for function in (numbers, later, Numbers(), functools.partial(numbers)):
        with pytest.raises(TypeError, match="is a generator"):
            module.Lock.wraps("a")(function)


def test_other_slips_are_told_at_decoration(module: Any) -> None:
    def function() -> None: ...

    with pytest.raises(TypeError, match=r"write `@Lock.wraps\(\"name\"\)`, not `@Lock.wraps`"):
        module.Lock.wraps(function)
    with pytest.raises(TypeError, match="the name is 42: give a text"):
        module.Lock.wraps(42)
    with pytest.raises(TypeError, match=r"write @staticmethod above @Lock.wraps"):
        module.Lock.wraps("a")(staticmethod(function))
    with pytest.raises(TypeError, match="wraps decorates a function, and 'b' is none"):
        module.Lock.wraps("a")("b")
    with pytest.raises(TypeError, match=r"wraps\(\) has no option tll"):
        module.Lock.wraps("a", tll="30s")
    with pytest.raises(dibs.InvalidName):
        module.Lock.wraps("")(function)
    with pytest.raises(ValueError, match="has no such parameter"):
        module.Lock.wraps("{day}")(functools.partial(function))


def name_of(value: Any) -> str | bytes:
    return NameTemplate("x:{value}", lambda value: None).name((value,), {})


def test_bytes_that_are_text_make_the_name_that_the_text_makes() -> None:
    assert name_of("größe".encode()) == name_of("größe") == "x:größe"
    assert name_of(b"\xff/\xfe") == b"x:\xff%2F\xfe"
    assert name_of(b"\xe9") != name_of("é")
    with pytest.raises(dibs.InvalidName, match="not valid Unicode"):
        name_of("\udcff")
