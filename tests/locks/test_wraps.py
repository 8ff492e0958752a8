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
from dibs import AcquireTimeout, NotHeld, current_lease
from dibs.decorator import NameTemplate

DAY = datetime.date(2026, 3, 1)


class Colour(enum.Enum):
    RED = 1


class Site:
    """The decorators of one side, and a client that looks on. Both sides wrap both kinds of function."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.client = module.connect(f"memory://{uuid.uuid4()}")
        self.others = dibs.sync.connect(self.client.url)

    def wraps(self, name: Any, **options: Any) -> Any:
        return self.module.Lock.wraps(name, client=self.client, **options)


@pytest.fixture(params=[dibs, dibs.sync], ids=["async", "sync"])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    site = Site(request.param)
    yield site
    site.client.session.close()


def test_a_plain_function_holds_the_lock_while_it_runs(site: Site) -> None:
    inner = site.wraps("inner")(lambda: current_lease().key)
    looks = site.others.lock("report:2026-03-01")

    @site.wraps("report:{day}")
    def report(day: datetime.date, *, pages: int = 3) -> tuple[int, bytes]:
        """Make one."""
        assert inner() == b"lock:inner"
        lease = current_lease()
        assert looks.status().holders[0].token == lease.token
        return pages, lease.key

    assert report(DAY, pages=5) == (5, b"lock:report:2026-03-01")
    assert report(day=DAY) == (3, b"lock:report:2026-03-01")
    assert (report.__name__, report.__doc__) == ("report", "Make one.")
    assert str(inspect.signature(report)).startswith("(day: datetime.date, *, pages: int = 3)")
    assert not looks.locked()
    with pytest.raises(NotHeld, match="no function that was decorated"):
        current_lease()


def test_a_busy_lock_raises_or_is_skipped(site: Site) -> None:
    def work() -> str:
        return "done"

    raises = site.wraps("a", wait=0)(work)
    skips = site.wraps("a", on_busy="skip", default="skipped")(work)
    assert (raises(), skips()) == ("done", "done")
    with site.others.lock("a"):
        assert skips() == "skipped"
        with pytest.raises(AcquireTimeout, match="a is held by"):
            raises()

    @site.wraps("b", on_busy="skip")
    def busy_within() -> None:
        raise AcquireTimeout("of another lock, in the body")

    with pytest.raises(AcquireTimeout, match="of another lock"):
        busy_within()


class Again(Exception):
    """Of a job queue."""


def test_a_function_decides_about_a_busy_lock(site: Site) -> None:
    def again(busy: AcquireTimeout) -> str:
        if "stop" in busy.holders[0].note:
            raise Again from busy
        return "later"

    async def coroutine() -> str:
        return "done"

    plain, awaited = (site.wraps("a", on_busy=again)(work) for work in (lambda: "done", coroutine))
    for call in (plain, lambda: asyncio.run(awaited())):
        assert call() == "done"
        with site.others.lock("a"):
            assert call() == "later"
        with site.others.lock("a", note="stop"), pytest.raises(Again):
            call()


def test_a_semaphore_lets_its_capacity_run(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIBS_REENTRANT", "true")  # makes no semaphore of several reentrant
    options = {"client": site.client, "on_busy": "skip", "default": "skipped"}

    @site.module.Semaphore.wraps("gpu:{name}", 2, **options)
    def work(name: str) -> object:
        return current_lease().slot

    with site.others.semaphore("gpu:a", 2):
        assert work("a") == 1
        with site.others.semaphore("gpu:a", 2):
            assert (work("a"), work("b")) == ("skipped", 0)
    with pytest.raises(ValueError, match="capacity is 0"):
        site.module.Semaphore.wraps("gpu", 0)


async def test_coroutine_functions_however_they_are_written(site: Site) -> None:
    async def work(day: str, pages: int = 1) -> tuple[bytes, int]:
        await asyncio.sleep(0)  # a lock that was released too early would be seen
        lease = current_lease()
        lease.ensure()
        return lease.key, pages

    class Report:
        async def __call__(self, day: str) -> tuple[bytes, int]:
            return await work(day, 3)

    wrap = site.wraps("report:{day}")
    assert inspect.iscoroutinefunction(wrap(work))
    assert await wrap(work)("sun") == (b"lock:report:sun", 1)
    assert await wrap(functools.partial(work, pages=2))("mon") == (b"lock:report:mon", 2)
    assert await wrap(Report())("tue") == (b"lock:report:tue", 3)
    assert await wrap(Report().__call__)(day="wed") == (b"lock:report:wed", 3)

    class Account:
        @site.wraps("account:{number}")
        async def add(self, number: int) -> bytes:
            return bytes(current_lease().key)

    assert await Account().add(7) == b"lock:account:7"
    assert not await asyncio.to_thread(site.others.lock("account:7").locked)


def numbers() -> Iterator[int]:
    yield 1


async def later() -> AsyncIterator[int]:
    yield 1


def test_a_result_whose_body_has_not_run_is_refused(site: Site) -> None:
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
            site.wraps("a")(function)()
    assert ran == []
    assert list(made) == [], "it was closed"
    assert future.cancelled()
    loop.close()
    assert not site.others.lock("a").locked()


def plain(day: datetime.date) -> None: ...


SLIPS: list[tuple[Callable[[Any], Any], type[Exception], str]] = [
    (lambda lock: lock.wraps("a")(numbers), TypeError, "is a generator"),
    (lambda lock: lock.wraps("a")(functools.partial(later)), TypeError, "is a generator"),
    (lambda lock: lock.wraps("{nobody}")(plain), ValueError, "parameter"),
    (lambda lock: lock.wraps("{day.year}")(plain), ValueError, "parameter"),
    (lambda lock: lock.wraps("{day!r}")(plain), ValueError, "parameter"),
    (lambda lock: lock.wraps("{0}")(plain), ValueError, "parameter"),
    (lambda lock: lock.wraps(plain), TypeError, r"write `@Lock.wraps\(\"name\"\)`, not"),
    (lambda lock: lock.wraps(42), TypeError, "the name is 42: give a text"),
    (lambda lock: lock.wraps("a")(staticmethod(plain)), TypeError, "write @staticmethod above"),
    (lambda lock: lock.wraps("a")("b"), TypeError, "wraps decorates a function, and 'b' is none"),
    (lambda lock: lock.wraps("a", tll="30s"), TypeError, r"wraps\(\) has no option tll"),
    (lambda lock: lock.wraps("a", on_busy="explode"), ValueError, "on_busy"),
    (lambda lock: lock.wraps("a", ttl=True)(plain), TypeError, "ttl"),
    (lambda lock: lock.wraps("")(plain), dibs.InvalidName, "name"),
]


@pytest.mark.parametrize(("slip", "kind", "told"), SLIPS)
def test_slips_are_refused_at_decoration(
    slip: Callable[[Any], Any], kind: type[Exception], told: str
) -> None:
    with pytest.raises(kind, match=told):
        slip(dibs.Lock)


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


def test_no_two_values_make_one_name() -> None:
    values = ["a:b", "a%3Ab", "a/b", "a%2Fb", "%", "%25", ""]
    assert len({named("{value}", value) for value in values}) == len(values)


@pytest.mark.parametrize("value", [None, True, 1.5, [1], {"a": 1}, object(), Colour])
def test_values_without_a_text_that_is_the_same_everywhere_are_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="makes no name"):
        named("{value}", value)


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
