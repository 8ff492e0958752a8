"""The decorator, on functions of both kinds, and names made from arguments."""

import asyncio
import datetime
import enum
import functools
import inspect
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import dibs
import dibs.sync
from dibs import AcquireTimeout, LockConfig, NotHeld, current_lease
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
    async def work() -> Any:
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


async def test_partials_and_callable_objects_are_wrapped_as_what_they_call(
    module: Any, client: Any
) -> None:
    wrap = module.Lock.wraps("report:{day}", client=client)
    partial: Any = functools.partial(functools.partial(work), pages=2)
    assert await wrap(partial)("mon") == ("lock:report:mon", 2)
    assert await wrap(AsyncCallable())("tue") == ("lock:report:tue", 3)
    assert await wrap(AsyncCallable().__call__)(day="wed") == ("lock:report:wed", 3)

    class Account:
        @module.Lock.wraps("account:{number}", client=client)
        async def add(self, number: int) -> str:
            return str(current_lease().key.decode())

    assert await Account().add(7) == "lock:account:7"
    plain = functools.partial(PlainCallable(), day="thu")
    assert await asyncio.to_thread(wrap(plain)) == "lock:report:thu"


def numbers() -> Iterator[int]:
    yield 1


async def later() -> AsyncIterator[int]:
    yield 1


def test_a_result_whose_body_has_not_run_is_refused(module: Any, client: Any) -> None:
    ran: list[str] = []

    async def body() -> None:
        ran.append("the body")

    made, loop = numbers(), asyncio.new_event_loop()
    future = loop.create_future()
    results: list[tuple[Callable[[], Any], str]] = [
        (lambda: body(), r"returned a coroutine.*`async def` itse"),  # noqa: PLW0108 -- hides it
        (lambda: made, "returned a generator, whose body would run with the l"),
        (lambda: future, "returned a Future"),
        (lambda: later(), "returned a async_generator, whose body"),  # noqa: PLW0108
    ]
    for function, told in results:
        with pytest.raises(TypeError, match=told):
            module.Lock.wraps("a", client=client)(function)()
    assert ran == []
    assert list(made) == [], "it was closed"
    assert future.cancelled()
    loop.close()
    assert not dibs.sync.connect(client.url).lock("a").locked()


def plain(day: datetime.date) -> None: ...


class Numbers:
    def __call__(self) -> Iterator[int]:
        yield 1


SLIPS: list[tuple[Callable[[Any], Any], type[Exception], str]] = [
    (lambda lock: lock.wraps("a")(numbers), TypeError, "is a generator"),
    (lambda lock: lock.wraps("a")(later), TypeError, "is a generator"),
    (lambda lock: lock.wraps("a")(Numbers()), TypeError, "is a generator"),
    (lambda lock: lock.wraps("a")(functools.partial(numbers)), TypeError, "is a generator"),
    (lambda lock: lock.wraps("{nobody}")(plain), ValueError, "parameter"),
    (lambda lock: lock.wraps("{day.year}")(plain), ValueError, "parameter"),
    (lambda lock: lock.wraps("{day!r}")(plain), ValueError, "parameter"),
    (lambda lock: lock.wraps("{day:%Y}")(plain), ValueError, "parameter"),
    (lambda lock: lock.wraps("{}")(plain), ValueError, "parameter"),
    (lambda lock: lock.wraps("{0}")(plain), ValueError, "parameter"),
    (lambda lock: lock.wraps("{x}")(functools.partial(plain)), ValueError, "no such parameter"),
    (lambda lock: lock.wraps(plain), TypeError, r"write `@Lock.wraps\(\"name\"\)`, not"),
    (lambda lock: lock.wraps(42), TypeError, "the name is 42: give a text"),
    (lambda lock: lock.wraps("a")(staticmethod(plain)), TypeError, "write @staticmethod above"),
    (lambda lock: lock.wraps("a")("b"), TypeError, "wraps decorates a function, and 'b' is none"),
    (lambda lock: lock.wraps("a", tll="30s"), TypeError, r"wraps\(\) has no option tll"),
    (lambda lock: lock.wraps("a", config=LockConfig()), TypeError, "has no option config"),
    (lambda lock: lock.wraps("a", on_busy="explode"), ValueError, "on_busy"),
    (lambda lock: lock.wraps("a", ttl=True)(plain), TypeError, "ttl"),
    (lambda lock: lock.wraps("")(plain), dibs.InvalidName, "name"),
]


@pytest.mark.parametrize(("slip", "kind", "told"), SLIPS)
def test_slips_are_refused_at_decoration(
    module: Any, slip: Callable[[Any], Any], kind: type[Exception], told: str
) -> None:
    with pytest.raises(kind, match=told):
        slip(module.Lock)


# -- names from values ------------------------------------------------------------------------------


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


def test_bytes_that_are_text_make_the_name_that_the_text_makes() -> None:
    name = "x:{value}"
    assert named(name, "größe".encode()) == named(name, "größe") == "x:größe"
    assert named(name, b"\xff/\xfe") == b"x:\xff%2F\xfe"
    assert named(name, b"\xe9") != named(name, "é")
    with pytest.raises(dibs.InvalidName, match="not valid Unicode"):
        named(name, "\udcff")


def test_a_template_without_a_function_is_filled_by_name() -> None:
    template = dibs.NameTemplate("tenant:{tenant}:order:{order}")
    assert template.fields == ("tenant", "order")
    assert template.filled({"tenant": "a:b", "order": 7, "more": None}) == "tenant:a%3Ab:order:7"
    template.check(["tenant", "order", "more"], "the route")
    with pytest.raises(ValueError, match=r"names 'tenant', .* the route has no .* \(it has: id\)"):
        template.check(["id"], "the route")
    assert dibs.NameTemplate("nightly").filled({}) == "nightly"
    with pytest.raises(ValueError, match="name"):
        dibs.NameTemplate("")
