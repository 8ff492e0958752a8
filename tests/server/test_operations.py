"""What operators look at: `/livez`, `/readyz`, `/metrics`, and the log."""

import json
import logging
import os
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dibs import AcquireTimeout
from dibs.model import Inspect
from dibs.server import logs
from dibs.server.api import service
from dibs.server.logs import logging_to
from dibs.server.placement.rules import PlacementSettings
from dibs.sync import connect
from tests.server.world import LONG, Client, Patch, Pool, World, b64, lock, problem
from tests.servers.redis import RedisServer
from tests.servers.waiting import wait_until

SECRET_NAME = "payroll/x"


def test_a_server_is_ready_until_it_is_about_to_stop(world: World) -> None:
    anybody = world.stranger()
    for path in ("/livez", "/readyz"):
        answer = anybody.get(path)
        assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
        assert answer.headers["cache-control"] == "no-store"
        assert anybody.head(path).status_code == 200
    world.do(world.server.shutdown.begin)
    answer = anybody.get("/readyz")
    assert (*problem(answer), answer.headers["retry-after"]) == (503, "draining", "1")
    assert anybody.get("/livez").status_code == 200


@pytest.mark.once
def test_not_ready_without_its_only_store(tmp_path: Path, monkeypatch: Patch) -> None:
    """It is without one of two stores, or it would not serve what lies in the other."""
    monkeypatch.setattr(service, "HEALTH_PATIENCE", 0.5)

    def is_ready(world: World) -> bool:
        return world.stranger().get("/readyz").status_code == 200

    with RedisServer(tmp_path) as redis:
        urls = {"here": "memory://here", "there": redis.url}
        places = [PlacementSettings(name=name, url=url) for name, url in urls.items()]
        with World.over(leases=redis.url) as alone, World.over(leases="", placement=places) as two:
            wait_until(lambda: is_ready(alone), "it is ready")
            redis.pause()
            try:
                wait_until(lambda: not is_ready(alone), "it is not ready")
                assert alone.stranger().get("/livez").status_code == 200
                wait_until(lambda: is_ready(two), "the other is ready")
            finally:
                redis.resume()
            wait_until(lambda: is_ready(alone), "it is ready again")


class Measured:
    def __init__(self, client: Client) -> None:
        answer = client.get("/metrics")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        self.text = answer.text
        self.families = list(text_string_to_metric_families(answer.text))

    def of(self, name: str, **labels: str) -> float:
        """The sum of all samples of that name that have these labels."""
        return sum(
            sample.value
            for family in self.families
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )


def test_what_is_counted(world: World, pool: Pool) -> None:
    client, anybody, path = world.client(), world.stranger(), lock(SECRET_NAME)
    for name in ("dibs_wait_seconds_count", "dibs_expired_leases_total"):  # alerts compare with it
        assert f'{name}{{kind="lock"}} 0.0\n' in Measured(anybody).text
    held = client.acquired(SECRET_NAME)
    assert client.post(path, params={"ttl": 60}).status_code == 409
    assert client.patch(path, params={"ttl": 60, "id": "n" * 22}).status_code == 410
    assert anybody.post(path).status_code == 401
    assert anybody.get("/nowhere").status_code == 404
    client.apply(*(Inspect(b"lock:%d" % n) for n in range(3)))
    with client.stream("GET", "/v1/stream"):
        found = Measured(anybody)
    route = {"method": "POST", "route": "/v1/locks/{name}"}
    for status, count in (("200", 1), ("409", 1), ("401", 1)):
        assert found.of("dibs_requests_total", **route, status=status) == count
    assert found.of("dibs_requests_total", route="", status="404") == 1
    assert found.of("dibs_request_seconds_count", **route) == 3
    kind = {"kind": "lock"}
    assert found.of("dibs_commands_total", **kind, command="acquire", reply="granted") == 1
    assert found.of("dibs_commands_total", **kind, command="acquire", reply="refused") == 1
    assert found.of("dibs_commands_total", **kind, command="renew", reply="lost") == 1
    assert found.of("dibs_streams") == found.of("dibs_batch_commands_count") == 1
    assert found.of("dibs_batch_commands_sum") == 3
    assert found.of("dibs_leases") == 1
    assert found.of("dibs_keys_age_seconds") < LONG
    assert found.of("dibs_draining") == 0
    assert found.of("process_resident_memory_bytes") > 0
    secrets = (SECRET_NAME, b64(SECRET_NAME), held["id"], world.admin_key, "nowhere")
    assert not [secret for secret in secrets if secret in found.text]
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text("utf-8")
    ours = {each.name for each in found.families if each.name.startswith("dibs_")}
    assert {name.removesuffix("_total") for name in re.findall(r"`(dibs_\w+)", page)} == ours
    waits = pool.submit(client.acquired, SECRET_NAME, wait=30)
    wait_until(lambda: client.waiting(SECRET_NAME), "it waits")
    assert Measured(anybody).of("dibs_waiters") == 1
    client.release(SECRET_NAME, held)
    client.release(SECRET_NAME, waits.result(LONG))
    wait_until(lambda: Measured(anybody).of("dibs_streams") == 0, "the stream is closed")
    found = Measured(anybody)
    assert found.of("dibs_commands_total", command="acquire", reply="granted") == 2
    assert found.of("dibs_wait_seconds_sum", **kind) > 0
    assert found.of("dibs_wait_seconds_count", **kind) == 2
    assert found.of("dibs_request_seconds_count", route="/v1/stream") == 0
    assert found.of("dibs_leases") == 0


def test_commands_by_placement_and_by_directory(tmp_path: Path) -> None:
    urls = {name: f"sqlite:///{tmp_path / name}" for name in ("here", "there")}
    places = tuple(PlacementSettings(name=name, url=url) for name, url in urls.items())
    settings = {"placement": places, "placement_fresh": 1.0, "leases": ""}
    directories = ("jobs/", "jobs/nightly", "pay")
    with World.over(tmp_path, **settings, metrics_directories=directories) as world:
        for name in ("jobs/a", "jobs/nightly/b", "jobs/nightly/c", "pay", SECRET_NAME):
            world.client().acquired(name)
        found = Measured(world.client())
    acquires = {"command": "acquire", "placement": "here"}
    counts = {"jobs/": 1, "jobs/nightly/": 2, "pay/": 0, "": 2}
    for directory, count in counts.items():
        assert found.of("dibs_commands_total", **acquires, directory=directory) == count
    assert SECRET_NAME not in found.text


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_requests_and_errors_are_logged_without_secrets(
    capfd: pytest.CaptureFixture[str], monkeypatch: Patch, log_format: Any
) -> None:
    async def fail() -> None:
        raise ZeroDivisionError("the disk \x1b[31m failed")

    with World.over(log_format=log_format) as world:
        client = world.client()
        held = client.acquired(SECRET_NAME)
        for status in (200, 410):
            own = {"id": held["id"]}
            assert client.delete(lock(SECRET_NAME), params=own).status_code == status
        assert client.get(f"/{SECRET_NAME}").status_code == 404
        monkeypatch.setattr(world.server.health, "check", fail)
        answer = client.get("/readyz")
        assert (problem(answer), "disk" in answer.text) == ((500, "bug"), False)
        world.server.leases.observers.append(lambda *_: 1 / 0)  # type: ignore[arg-type]
        client.acquired("x")  # which an observer's failure costs no answer
        key = world.admin_key
    text, path = capfd.readouterr().err, "/v1/locks/{name}"
    assert not [each for each in (SECRET_NAME, b64(SECRET_NAME), held["id"], key) if each in text]
    if log_format == "text":
        assert re.search(r"^\S+Z info POST /v1/locks/\{name\} 200 [\d.]+ ms$", text, re.MULTILINE)
        assert re.search(r"^\S+Z info no route 404 [\d.]+ ms$", text, re.MULTILINE)
        return
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    requests = [line for line in lines if "event" in line]
    assert [(line["method"], line["route"], line["status"]) for line in requests] == [
        *(("POST", path, 200), ("DELETE", path, 200), ("DELETE", path, 410), ("", "", 404)),
        *(("GET", "/readyz", 500), ("POST", path, 200)),
    ]
    for line in requests:
        assert set(line) == {"time", "level", "event", "method", "route", "status", "ms"}
        assert datetime.fromisoformat(line["time"]).tzinfo is UTC
        assert 0 < line["ms"] < LONG * 1e3
    wrong = next(line for line in lines if line["level"] == "error")["message"]
    assert wrong.startswith("/readyz failed: ZeroDivisionError: 'the disk \\x1b[31m failed'\n")
    assert "test_operations" in wrong, "and where it was"


def test_programs_that_look_into_the_store_see_plain_notes(tmp_path: Path) -> None:
    """What the service keeps beside a note is its own business."""
    with World.over(tmp_path) as world, connect(world.config.leases) as client:
        world.client().acquired("x", note="why")
        world.client().post(lock("y"))
        assert [status.holders[0].note for status in client.list()] == ["why", ""]
        for name, holder in (("x", r"web-3 \(why\)"), ("y", "first administrator")):
            with pytest.raises(AcquireTimeout, match=f"held by {holder} for") as found:
                client.lock(name).acquire(wait=0)
            assert found.value.holders[0].note == client.status(name).holders[0].note


def test_a_log_that_is_not_read_delays_no_request(monkeypatch: Patch) -> None:
    monkeypatch.setattr(logs, "LINES", 10)
    logger = logging.getLogger("dibs.server")
    reader, writer = os.pipe()
    with ThreadPoolExecutor() as pool, os.fdopen(reader) as file:
        with logging_to(writer, "text") as lines:
            for _ in range(2_000):  # more than the pipe and the queue have room for
                logger.warning("x" * 100)
            reading = pool.submit(file.read)
            lines.queue.join()
            logger.warning("the reader is back")
        os.close(writer)
        text = reading.result(LONG)
    dropped = re.findall(r"\S+Z warning dibs\.server\.logs: (\d+) lines were dropped", text)
    assert dropped
    assert sum(map(int, dropped)) + text.count("x" * 100) == 2_000
    assert text.endswith("the reader is back\n")


def test_a_log_that_is_not_read_delays_no_shutdown(monkeypatch: Patch) -> None:
    monkeypatch.setattr(logs, "PATIENCE", 0.1)
    reader, writer = os.pipe()
    with logging_to(writer, "json") as lines:
        for _ in range(5):
            logging.getLogger("dibs.server").warning("x" * 50_000)
    with ThreadPoolExecutor() as pool, os.fdopen(reader) as file:
        reading = pool.submit(file.read)
        lines.queue.join()
        os.close(writer)
        assert len(reading.result(LONG).splitlines()) == 5
