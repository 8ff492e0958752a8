"""What `@needs_lock` takes and refuses, where it is written."""

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


def need(**options: Any) -> LockNeed:
    found = need_of(needs_lock(**options)(plain))
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
    found = need(**options)
    assert found.name.of(()) == name
    assert found.capacity == capacity


@dataclass
class Order:
    tenant: str
    number: int


def test_fields_of_arguments_make_the_name() -> None:
    @needs_lock("order/{order.tenant}/{region}")
    def ship(order: Order, region: str = "eu") -> None: ...

    found = need_of(ship)
    assert found is not None
    assert found.name.of((Order("a/b", 7),)) == "order/a%2Fb/eu"
    assert found.name.of(({"tenant": "x"}, "us")) == "order/x/us"
    with pytest.raises(TypeError, match="has no tenant"):
        found.name.of((7,))


def test_a_field_that_is_no_parameter_fails_at_decoration() -> None:
    with pytest.raises(ValueError, match=r"names 'week'.*it has: day"):
        needs_lock("report:{week}")(plain)


async def test_the_bare_function_is_there_for_tests() -> None:
    wrapped: Any = needs_lock("x")(plain)
    assert await wrapped.__wrapped__("tuesday") == "tuesday"


def test_a_method_is_named_by_its_arguments() -> None:
    class Activities:
        @activity.defn
        @needs_lock("report:{day}")
        async def report(self, day: str) -> None: ...

    this = Activities()
    found = need_of(this.report)
    assert found is not None
    assert found.name.of((this, "monday")) == "report:monday"


def above(function: Callable[..., Any]) -> Any:
    return needs_lock("x")(activity.defn(function))


def below(function: Callable[..., Any]) -> Any:
    return activity.defn(needs_lock("x")(function))


@pytest.mark.parametrize("order", [above, below])
async def test_it_stays_the_activity_that_it_was(order: Callable[..., Any]) -> None:
    async def work(day: str) -> int:
        return len(day)

    made = order(work)
    found = activity._Definition.must_from_callable(made)
    assert (found.name, found.arg_types, found.ret_type) == ("work", [str], int)
    assert found.fn is made
    assert found.is_async


@pytest.mark.parametrize("order", [above, below])
async def test_without_the_interceptor_it_does_not_run(order: Callable[..., Any]) -> None:
    async def work() -> None:
        raise AssertionError("it ran")

    with pytest.raises(ApplicationError, match="install DibsPlugin") as caught:
        await order(work)()
    assert caught.value.non_retryable


def test_a_plain_function_does_not_run_either() -> None:
    with pytest.raises(ApplicationError, match="LockInterceptor"):
        above(lambda: None)()


def test_current_lock_is_of_an_activity_only() -> None:
    with pytest.raises(NotHeld, match="needs_lock"):
        current_lock()


@workflow.defn
class Child:
    @workflow.run
    async def run(self) -> None: ...

    @workflow.signal
    def stop(self) -> None: ...


def test_a_workflow_is_refused_and_told_of_semaphore() -> None:
    for wrong in (Child, Child.run, Child.stop):
        with pytest.raises(TypeError, match=r"is a .*workflow.*dibs\.temporal\.Semaphore"):
            needs_lock("x")(wrong)


class Early:
    """What `@workflow.defn` above `@needs_lock` hands over, and `@workflow.run` likewise."""

    @workflow.run
    @needs_lock("x")
    async def run(self) -> None: ...


def test_a_workflow_decorated_too_early_is_refused_by_its_worker() -> None:
    early = workflow.defn(Early)
    with pytest.raises(TypeError, match=r"Early is a workflow.*dibs\.temporal\.Semaphore"):
        refuse_locked_workflows([Child, early])


async def test_in_a_workflow_it_says_that_it_is_for_activities(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workflow, "in_workflow", lambda: True)
    with pytest.raises(ApplicationError, match=r"is for activities.*runs in a workflow"):
        await Early().run()


def test_a_lock_that_is_kept_nowhere_is_refused_before_the_worker_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A file on this host would exclude no other one."""
    monkeypatch.setattr(needs_lock_decorator, "default_is_named", lambda: False)
    bare, told = needs_lock("x")(plain), needs_lock("x", backend="memory://told")(plain)
    LockInterceptor().check([told, plain])
    LockInterceptor(backend="memory://all").check([bare])
    with pytest.raises(NotConfigured, match=r"plain is kept.*set DIBS_URL"):
        LockInterceptor().check([told, bare])
    monkeypatch.setattr(needs_lock_decorator, "default_is_named", lambda: True)
    LockInterceptor().check([bare])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"application": 7}, "application is 7"),
        ({"backend": 7}, "backend is 7"),
        ({"serve": "yes"}, "serve is 'yes'"),
    ],
)
def test_what_the_plugin_refuses(options: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        DibsPlugin(**options)


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
        (lambda: needs_lock("x")(numbers), TypeError, "generator"),
        (lambda: needs_lock("x")(staticmethod(plain)), TypeError, "above"),
        (lambda: needs_lock("x", backend="")(plain), NotConfigured, "backend is empty"),
        (
            lambda: needs_lock("x", backend="reddis://host")(plain),
            NotConfigured,
            "is not the URL of a store",
        ),
        (lambda: needs_lock("x", auto_renew=1)(plain), TypeError, "auto_renew is 1"),  # type: ignore[arg-type]
        (lambda: needs_lock("x/{")(plain), ValueError, "'x/{' is no name with fields"),
        (
            lambda: needs_lock("x")(Order),
            TypeError,
            "is a class: decorate its `__call__`.*Semaphore",
        ),
        (lambda: needs_lock("x")(7), TypeError, "decorates a function"),  # type: ignore[type-var]
        (lambda: needs_lock("x" * 600)(plain), ValueError, "512"),
    ],
)
def test_wrong_uses(what: Callable[[], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        what()
