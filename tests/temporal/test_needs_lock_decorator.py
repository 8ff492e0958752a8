"""What `@needs_lock` and the plugin accept and refuse, where they are written."""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import pytest
from temporalio import activity, workflow
from temporalio.exceptions import ApplicationError

from dibs.errors import NotConfigured, NotHeld
from dibs.temporal import DibsPlugin, LockInterceptor, current_lock, needs_lock
from dibs.temporal.activity import decorator as needs_lock_decorator
from dibs.temporal.activity.decorator import LockNeed, need_of, refuse_locked_workflows


async def plain(day: str = "monday") -> str:
    return day


def need(function: Any) -> LockNeed:
    found = need_of(function)
    assert found is not None
    return found


@dataclass
class Order:
    tenant: str
    number: int


class Activities:
    @activity.defn
    @needs_lock("report:{day}")
    async def report(self, day: str) -> None: ...


def test_names_and_capacities() -> None:
    for options, name, capacity in (
        ({"name": "api"}, "api", 1),
        ({"name": "api", "max_locks": 3}, "api", 3),
        ({"lock_name": "db", "capacity": 2}, "db", 2),
        ({"lock_name": "db"}, "db", 5),
        ({}, "plain", 5),
    ):
        found = need(needs_lock(**options)(plain))
        assert (found.name.of(()), found.capacity) == (name, capacity)

    @needs_lock("order/{order.tenant}/{region}")
    def ship(order: Order, region: str = "eu") -> None: ...

    of_fields = need(ship).name
    assert of_fields.of((Order("a/b", 7),)) == "order/a%2Fb/eu"
    assert of_fields.of(({"tenant": "x"}, "us")) == "order/x/us"
    with pytest.raises(TypeError, match="has no tenant"):
        of_fields.of((7,))
    this = Activities()
    assert need(this.report).name.of((this, "monday")) == "report:monday"


@pytest.mark.parametrize(
    "decorated",
    [lambda it: needs_lock("x")(activity.defn(it)), lambda it: activity.defn(needs_lock("x")(it))],
    ids=["above", "below"],
)
async def test_it_stays_the_activity_that_it_was_and_does_not_run_unlocked(
    decorated: Callable[[Any], Any],
) -> None:
    async def work(day: str) -> int:
        return len(day)

    made: Any = decorated(work)
    assert await made.__wrapped__("monday") == 6, "the bare function is there for tests"
    found = activity._Definition.must_from_callable(made)
    assert (found.name, found.arg_types, found.ret_type) == ("work", [str], int)
    assert found.fn is made
    with pytest.raises(ApplicationError, match="install DibsPlugin") as caught:
        await made("monday")
    assert caught.value.non_retryable
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
    ("options", "error", "words"),
    [
        ({"name": plain}, TypeError, "not `@needs_lock`"),
        ({"name": "x", "lock_name": "y"}, TypeError, "one of them"),
        ({"capacity": 1, "max_locks": 2}, TypeError, "one of them"),
        ({"capacity": True}, ValueError, "at least 1"),
        ({"ttl": "soon"}, ValueError, "ttl is 'soon'"),
        ({"wait_in_slot": -1}, ValueError, "wait_in_slot"),
        ({"backend": ""}, NotConfigured, "backend is empty"),
        ({"backend": "reddis://host"}, NotConfigured, "is not the URL"),
        ({"auto_renew": 1}, TypeError, "auto_renew is 1"),
        ({"of": numbers}, TypeError, "generator"),
        ({"of": staticmethod(plain)}, TypeError, "above"),
        ({"of": Order}, TypeError, "is a class: decorate its `__call__`"),
        ({"name": "x/{"}, ValueError, "'x/{' is no name with fields"),
        ({"name": "x:{week}"}, ValueError, r"names 'week'.*it has: day"),
    ],
)
def test_wrong_uses(options: dict[str, Any], error: type[Exception], words: str) -> None:
    given = {**options}
    function = given.pop("of", plain)
    with pytest.raises(error, match=words):
        needs_lock(**given)(function)


@pytest.mark.parametrize("option", ["application", "backend", "serve"])
def test_wrong_options_of_the_plugin(option: str) -> None:
    wrong: dict[str, Any] = {option: 7}
    with pytest.raises(TypeError, match=f"{option} is 7"):
        DibsPlugin(**wrong)
