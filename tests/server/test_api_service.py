"""What others may hang onto the service: observers of commands, meters of requests."""

import gc
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from dibs import AcquireTimeout
from dibs.model import Acquire, Granted, Release, Released
from dibs.sync import connect
from tests.server.inside import keys_of, meters_of, observers_of
from tests.server.world import LONG, World, b64


@pytest.fixture
def world() -> Iterator[World]:
    world = World.over()
    yield world
    world.close()


def test_observers_hear_of_what_was_done(world: World) -> None:
    heard: list[tuple[str, type, type]] = []
    observers_of(world).append(
        lambda who, command, reply: heard.append((who.name, type(command), type(reply)))
    )
    client = world.client("acquire")
    held = client.post(f"/v1/locks/{b64('x')}").json()
    client.delete(f"/v1/locks/{b64('x')}", params={"id": held["id"]})
    waited = client.post(f"/v1/locks/{b64('x')}", params={"wait": 1})
    assert waited.status_code == 200
    assert heard == [
        ("a test", Acquire, Granted),
        ("a test", Release, Released),
        ("a test", Acquire, Granted),
    ]


def test_a_service_that_has_ended_is_not_kept_alive() -> None:
    world = World.over()
    assert world.client("read").get("/v1/openapi.json").status_code == 200
    keys = weakref.ref(keys_of(world))
    world.close()
    del world
    gc.collect()
    assert keys() is None


def test_an_observer_that_fails_costs_nobody_an_answer(world: World) -> None:
    observers_of(world).append(lambda *_: 1 / 0)  # type: ignore[arg-type]
    assert world.client().post(f"/v1/locks/{b64('x')}").status_code == 200


def test_meters_hear_of_every_request(world: World) -> None:
    heard: list[tuple[str | None, int]] = []
    meters_of(world).append(
        lambda route, status, seconds: heard.append((route.path if route else None, status))
    )
    client = world.client("read")
    for path in ("/v1/limits", f"/v1/locks/{b64('x')}", "/nowhere"):
        client.get(path)
    client.post(f"/v1/locks/{b64('x')}")
    give_up = time.monotonic() + LONG
    while len(heard) < 4:  # the last answer arrives before it is measured
        assert time.monotonic() < give_up
        time.sleep(0.01)
    assert heard == [
        ("/v1/limits", 200),
        ("/v1/locks/{name}", 404),
        (None, 404),
        ("/v1/locks/{name}", 403),
    ]


def test_an_unexpected_error_is_logged_with_its_message_and_not_told(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("the disk \x1b[31m said so")

    keys_of(world).authenticate = fail  # type: ignore[method-assign, assignment]
    answer = world.client().post(f"/v1/locks/{b64('x')}")
    assert (answer.status_code, answer.json()["type"]) == (500, "/problems/bug")
    assert "said so" not in answer.text
    assert "ValueError: 'the disk \\x1b[31m said so'" in caplog.text, "its control bytes escaped"
    assert "test_api_service" in caplog.text, "and where it was"


def test_whoever_looks_at_the_store_itself_sees_plain_notes(tmp_path: Path) -> None:
    """What the service keeps beside a note is nobody else's business."""
    world = World.over(tmp_path)
    try:
        world.client().post(f"/v1/locks/{b64('x')}", params={"note": "why", "client-id": "web-3"})
        world.client().post(f"/v1/locks/{b64('y')}")
        with connect(world.config.leases) as client:
            assert client.status("x").holders[0].note == "why"
            assert [status.holders[0].note for status in client.list()] == ["why", ""]
            with pytest.raises(AcquireTimeout, match=r"held by web-3 \(why\) for") as found:
                client.lock("x").acquire(wait=0)
            assert found.value.holders[0].note == "why"
            with pytest.raises(AcquireTimeout, match=r"held by first administrator for") as found:
                client.lock("y").acquire(wait=0.1)
            assert found.value.holders[0].note == ""
    finally:
        world.close()
