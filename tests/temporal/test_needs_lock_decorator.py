"""What `@needs_lock` and the plugin accept and refuse, where they are written."""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import pytest
from temporalio import activity, workflow
from temporalio.exceptions import ApplicationError

from dibs.errors import NotConfigured, NotHeld, UnsafeTiming
from dibs.temporal import DibsPlugin, LockInterceptor, current_lock, needs_lock
from dibs.temporal.activity import decorator as needs_lock_decorator
from dibs.temporal.activity.decorator import LockNeed, need_of, refuse_locked_workflows


async def plain(day: str = "monday") -> str:
    return day


def need(function: Any) -> LockNeed:
    found = need_of(function)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("options", "name", "capacity"),
    [
        ({"name": "api"}, "api", 1),
        ({"name": "api", "capacity": 3}, "api", 3),
        ({"name": "api", "max_locks": 3}, "api", 3),
        ({"max_locks": 2, "lock_name": "db"}, "db", 2),
        ({"lock_name": "db"}, "db", 5),
        ({}, "plain", 5),
    ],
)
def test_names_and_capacities(options: dict[str, Any], name: str, capacity: int) -> None:
    found = need(needs_lock(**options)(plain))
    assert (found.name.of(()), found.capacity) == (name, capacity)


@dataclass
class Order:
    tenant: str
    number: int


class Activities:
    @activity.defn
    @needs_lock("report:{day}")
    async def report(self, day: str) -> None: ...


def test_fields_of_arguments_make_the_name() -> None:
    @needs_lock("order/{order.tenant}/{region}")
    def ship(order: Order, region: str = "eu") -> None: ...

    name = need(ship).name
    assert name.of((Order("a/b", 7),)) == "order/a%2Fb/eu"
    assert name.of(({"tenant": "x"}, "us")) == "order/x/us"
    with pytest.raises(TypeError, match="has no tenant"):
        name.of((7,))
    this = Activities()
    assert need(this.report).name.of((this, "monday")) == "report:monday"


async def test_the_bare_function_is_there_for_tests() -> None:
    wrapped: Any = needs_lock("x")(plain)
    assert await wrapped.__wrapped__("tuesday") == "tuesday"


@pytest.mark.parametrize(
    "decorated",
    [lambda it: needs_lock("x")(activity.defn(it)), lambda it: activity.defn(needs_lock("x")(it))],
    ids=["above", "below"],
)
async def test_it_stays_the_activity_that_it_was_and_does_not_run_unlocked(
    decorated: Callable[[Any], Any],
) -> None:
    async def work(day: str) -> int:
        raise AssertionError("it ran")

    made = decorated(work)
    found = activity._Definition.must_from_callable(made)
    assert (found.name, found.arg_types, found.ret_type) == ("work", [str], int)
    assert found.fn is made
    with pytest.raises(ApplicationError, match="install DibsPlugin") as caught:
        await made("monday")
    assert caught.value.non_retryable


def test_current_lock_is_of_an_activity_only() -> None:
    with pytest.raises(NotHeld, match="needs_lock"):
        current_lock()


@workflow.defn
class Child:
    @workflow.run
    async def run(self) -> None: ...

    @workflow.signal
    def stop(self) -> None: ...


class Early:
    """What `@workflow.defn` above `@needs_lock` gets, and `@workflow.run` likewise."""

    @workflow.run
    @needs_lock("x")
    async def run(self) -> None: ...


async def test_workflows_are_refused_with_a_hint_to_semaphore(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for wrong in (Child, Child.run, Child.stop):
        with pytest.raises(TypeError, match=r"is a .*workflow.*dibs\.temporal\.Semaphore"):
            needs_lock("x")(wrong)
    with pytest.raises(TypeError, match=r"Early is a workflow.*dibs\.temporal\.Semaphore"):
        refuse_locked_workflows([Child, workflow.defn(Early)])
    monkeypatch.setattr(workflow, "in_workflow", lambda: True)
    with pytest.raises(ApplicationError, match=r"is for activities.*runs in a workflow"):
        await Early().run()


def test_a_lock_without_a_named_store_is_refused_before_the_worker_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A file on this host would exclude no other one."""
    monkeypatch.setattr(needs_lock_decorator, "default_is_named", lambda: False)
    bare, named = needs_lock("x")(plain), needs_lock("x", backend="memory://named")(plain)
    LockInterceptor().check([named, plain])
    LockInterceptor(backend="memory://all").check([bare])
    with pytest.raises(NotConfigured, match=r"plain is kept.*set DIBS_URL"):
        LockInterceptor().check([named, bare])
    monkeypatch.setattr(needs_lock_decorator, "default_is_named", lambda: True)
    LockInterceptor().check([bare])


def numbers() -> Generator[int]:
    yield 1


@pytest.mark.parametrize(
    ("what", "error", "words"),
    [
        (lambda: needs_lock(plain), TypeError, "not `@needs_lock`"),  # type: ignore[arg-type]
        (lambda: needs_lock(5), TypeError, "write capacity="),  # type: ignore[arg-type]
        (lambda: needs_lock(""), ValueError, "empty"),
        (lambda: needs_lock("x", lock_name="y"), TypeError, "one of them"),
        (lambda: needs_lock("x", capacity=1, max_locks=2), TypeError, "one of them"),
        (lambda: needs_lock("x", capacity=0), ValueError, "at least 1"),
        (lambda: needs_lock("x", capacity=True), ValueError, "at least 1"),
        (lambda: needs_lock("x", ttl="soon")(plain), ValueError, "ttl is 'soon'"),
        (lambda: needs_lock("x", ttl=0.01)(plain), UnsafeTiming, "ttl"),
        (lambda: needs_lock("x", wait=-1)(plain), ValueError, "wait"),
        (lambda: needs_lock("x", wait_in_slot=-1)(plain), ValueError, "wait_in_slot"),
        (lambda: needs_lock("x", backend=7)(plain), TypeError, "backend is 7"),  # type: ignore[arg-type]
        (lambda: needs_lock("x", backend="")(plain), NotConfigured, "backend is empty"),
        (lambda: needs_lock("x", backend="reddis://host")(plain), NotConfigured, "is not the URL"),
        (lambda: needs_lock("x", auto_renew=1)(plain), TypeError, "auto_renew is 1"),  # type: ignore[arg-type]
        (lambda: needs_lock("x")(numbers), TypeError, "generator"),
        (lambda: needs_lock("x")(staticmethod(plain)), TypeError, "above"),
        (lambda: needs_lock("x/{")(plain), ValueError, "'x/{' is no name with fields"),
        (lambda: needs_lock("x:{week}")(plain), ValueError, r"names 'week'.*it has: day"),
        (lambda: needs_lock("x")(Order), TypeError, "is a class: decorate its `__call__`"),
        (lambda: needs_lock("x")(7), TypeError, "decorates a function"),  # type: ignore[type-var]
        (lambda: needs_lock("x" * 600)(plain), ValueError, "512"),
        (lambda: DibsPlugin(application=7), TypeError, "application is 7"),  # type: ignore[arg-type]
        (lambda: DibsPlugin(backend=7), TypeError, "backend is 7"),  # type: ignore[arg-type]
        (lambda: DibsPlugin(serve="yes"), TypeError, "serve is 'yes'"),  # type: ignore[arg-type]
    ],
)
def test_wrong_uses(what: Callable[[], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        what()
