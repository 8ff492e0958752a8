"""The decorator, on functions of both kinds, and names made from arguments."""

import asyncio
import datetime
import enum
import functools
import inspect
import threading
import uuid
from collections.abc import AsyncIterator, Awaitable, Iterator
from typing import Any

import pytest

import dibs
import dibs.sync
from dibs import AcquireTimeout, LeaseLost, NotHeld, current_lease
from dibs.decorator import NameTemplate

DAY = datetime.date(2026, 3, 1)


class Colour(enum.Enum):
    RED = 1


@pytest.fixture(params=[dibs, dibs.sync], ids=["async", "sync"])
def module(request: pytest.FixtureRequest) -> Any:
    """Both worlds' decorators do the same for both kinds of function."""
    return request.param


@pytest.fixture
def client(module: Any) -> Iterator[Any]:
    client = module.connect(f"memory://{uuid.uuid4()}")
    yield client
    client.session.close()


@pytest.fixture
def looks(client: Any) -> dibs.sync.Client:
    return dibs.sync.connect(client.url)


def test_a_plain_function_holds_the_lock_while_it_runs(
    module: Any, client: Any, looks: dibs.sync.Client
) -> None:
    @module.Lock.wraps("report:{day}", client=client)
    def report(day: datetime.date, *, pages: int = 3) -> tuple[int, str]:
        """Make one."""
        lease = current_lease()
        assert looks.lock("report:2026-03-01").status().holders[0].token == lease.token
        return pages, lease.key.decode()

    assert report(DAY, pages=5) == (5, "lock:report:2026-03-01")
    assert report(day=DAY) == (3, "lock:report:2026-03-01")
    assert (report.__name__, report.__doc__) == ("report", "Make one.")
    assert str(inspect.signature(report)).startswith("(day: datetime.date, *, pages: int = 3)")
    assert not looks.lock("report:2026-03-01").locked()


async def test_a_coroutine_function_too(module: Any, client: Any, looks: dibs.sync.Client) -> None:
    @module.Lock.wraps("report:{day}", client=client)
    async def report(day: datetime.date) -> str:
        assert await asyncio.to_thread(looks.lock("report:2026-03-01").locked)
        return str(current_lease().key.decode())

    assert inspect.iscoroutinefunction(report)
    assert await report(DAY) == "lock:report:2026-03-01"
    assert not await asyncio.to_thread(looks.lock("report:2026-03-01").locked)


async def test_a_loss_reaches_the_coroutine(client: Any, looks: dibs.sync.Client) -> None:
    @dibs.Lock.wraps("a", client=client)
    async def work() -> None:
        await asyncio.to_thread(looks.lock("a").revoke, reason="a test")
        await asyncio.sleep(60)

    with pytest.raises(LeaseLost):
        await work()


def test_a_busy_lock_raises_or_is_skipped(
    module: Any, client: Any, looks: dibs.sync.Client
) -> None:
    def work() -> str:
        return "done"

    raises = module.Lock.wraps("a", client=client, wait=0)(work)
    skips = module.Lock.wraps("a", client=client, on_busy="skip", default="skipped")(work)
    assert (raises(), skips()) == ("done", "done")
    with looks.lock("a"):
        assert skips() == "skipped"
        with pytest.raises(AcquireTimeout, match="a is held by"):
            raises()


def test_a_semaphore_lets_its_capacity_run(
    module: Any, client: Any, looks: dibs.sync.Client
) -> None:
    @module.Semaphore.wraps("gpu:{name}", 2, client=client, on_busy="skip", default="skipped")
    def work(name: str) -> object:
        return current_lease().slot

    with looks.semaphore("gpu:a", 2):
        assert work("a") == 1
        with looks.semaphore("gpu:a", 2):
            assert (work("a"), work("b")) == ("skipped", 0)


async def test_a_semaphore_holds_a_coroutine_function_too(module: Any, client: Any) -> None:
    @module.Semaphore.wraps("gpu", 2, client=client)
    async def work() -> int:
        return (await client_status()).used

    async def client_status() -> Any:
        return await dibs.Semaphore("gpu", 2, client=dibs.connect(client.url)).status()

    assert await work() == 1


@pytest.mark.parametrize(
    ("capacity", "options", "error"),
    [(0, {}, ValueError), ("two", {}, TypeError), (2, {"reentrant": True}, TypeError)],
)
def test_a_wrong_semaphore_is_refused_at_decoration(
    module: Any, capacity: Any, options: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        module.Semaphore.wraps("gpu", capacity, **options)


def test_the_environment_makes_no_semaphore_reentrant(
    module: Any, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIBS_REENTRANT", "true")
    work = module.Semaphore.wraps("gpu", 2, client=client)(lambda: current_lease().slot)
    assert work() == 0


def test_an_acquire_timeout_of_the_body_is_not_taken_for_a_busy_lock(
    module: Any, client: Any
) -> None:
    @module.Lock.wraps("a", client=client, on_busy="skip")
    def work() -> None:
        raise AcquireTimeout("of another lock, in the body")

    with pytest.raises(AcquireTimeout, match="of another lock"):
        work()


def test_nested_functions_each_see_their_own_lease(module: Any, client: Any) -> None:
    @module.Lock.wraps("inner", client=client)
    def inner() -> str:
        return str(current_lease().key.decode())

    @module.Lock.wraps("outer", client=client)
    def outer() -> list[str]:
        return [current_lease().key.decode(), inner(), current_lease().key.decode()]

    with pytest.raises(NotHeld, match="no function that was decorated"):
        current_lease()
    assert outer() == ["lock:outer", "lock:inner", "lock:outer"]
    with pytest.raises(NotHeld):
        current_lease()


def test_methods_and_threads(module: Any, client: Any) -> None:
    class Account:
        def __init__(self) -> None:
            self.balance = 0

        @module.Lock.wraps("account:{number}", client=client)
        def add(self, number: int) -> None:
            before = self.balance
            threading.Event().wait(0.001)
            self.balance = before + 1

    account = Account()
    threads = [threading.Thread(target=account.add, args=(7,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert account.balance == 8


@pytest.mark.parametrize("template", ["{nobody}", "{day.year}", "{day!r}", "{day:%Y}", "{}", "{0}"])
def test_fields_that_are_no_parameters_are_refused_at_decoration(
    module: Any, template: str
) -> None:
    def report(day: datetime.date) -> None: ...

    with pytest.raises(ValueError, match="parameter"):
        module.Lock.wraps(template)(report)


def test_senseless_options_are_refused_at_decoration(module: Any) -> None:
    with pytest.raises(ValueError, match="on_busy"):
        module.Lock.wraps("a", on_busy="explode")
    with pytest.raises((TypeError, ValueError)):
        module.Lock.wraps("a", ttl=True)(lambda: None)


def named(template: str, value: Any) -> str | bytes:
    def function(value: Any) -> None: ...

    return NameTemplate(template, function).name((value,), {})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a", "a"),
        ("a/b:c%d", "a%2Fb%3Ac%25d"),
        (b"a/b", "a%2Fb"),
        (42, "42"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (DAY, "2026-03-01"),
        (datetime.datetime(2026, 3, 1, 4, tzinfo=datetime.UTC), "2026-03-01T04%3A00%3A00+00%3A00"),
        (Colour.RED, "RED"),
    ],
)
def test_values_become_text_that_can_make_no_other_name(value: Any, text: str) -> None:
    assert named("x:{value}/y", value) == f"x:{text}/y"


@pytest.mark.parametrize("value", [None, True, 1.5, [1], {"a": 1}, object(), Colour])
def test_values_without_a_text_that_is_the_same_everywhere_are_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="makes no name"):
        named("{value}", value)


def test_no_two_values_make_one_name() -> None:
    values = ["a:b", "a%3Ab", "a/b", "a%2Fb", "%", "%25", ""]
    assert len({named("{value}", value) for value in values}) == len(values)


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
    with pytest.raises(TypeError, match=r"wraps\(\) has no option config"):
        module.Lock.wraps("a", config=dibs.LockConfig())
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
