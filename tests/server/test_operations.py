"""What those look at who look after servers: `/livez`, `/readyz`, `/metrics`, and the log."""

import asyncio
import json
import logging
import os
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dibs.cli import main
from dibs.errors import NotConfigured
from dibs.model import Command, Inspect
from dibs.runtime.port import TimedReply
from dibs.server import logs
from dibs.server.auth import key_cache
from dibs.server.config import read_config
from dibs.server.limits import Limits
from dibs.server.logs import logging_to
from dibs.server.placement.rules import PlacementSettings
from dibs.stores.http import wire
from tests.server.inside import health_of, keys_of, meters_of, shutdown_of, store_of
from tests.server.world import LONG, World, b64
from tests.servers.redis import RedisServer
from tests.servers.waiting import wait_until

SECRET_NAME = "payroll/x"


@pytest.fixture
def world() -> Iterator[World]:
    world = World.over()
    yield world
    world.close()


@pytest.fixture
def anybody(world: World) -> Iterator[httpx2.Client]:
    """Somebody without a key."""
    with httpx2.Client(base_url=world.url, timeout=LONG) as client:
        yield client


# -- probes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
def test_a_server_that_is_well_says_so_to_anybody(anybody: httpx2.Client, path: str) -> None:
    answer = anybody.get(path)
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
    assert answer.headers["cache-control"] == "no-store"
    assert anybody.head(path).status_code == 200


def test_one_that_is_about_to_stop_lives_and_is_not_ready(
    world: World, anybody: httpx2.Client
) -> None:
    world.do(shutdown_of(world).begin)
    answer = anybody.get("/readyz")
    assert (answer.status_code, answer.json()["type"]) == (503, "/problems/draining")
    assert answer.headers["retry-after"] == "1"
    assert anybody.get("/livez").status_code == 200


@pytest.mark.once
def test_one_whose_store_is_away_is_not_ready_until_it_is_back(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as redis:
        world = World.over(leases=redis.url, records=f"sqlite:///{tmp_path / 'records.db'}")
        try:
            client = world.client()
            assert client.get("/readyz").status_code == 200
            redis.pause()
            away = wait_until(lambda: _unready(client), "it is not ready")
            assert away["detail"] == "the store does not answer"
            assert away["type"] == "/problems/unavailable"
            assert client.get("/livez").status_code == 200
            redis.resume()
            wait_until(lambda: client.get("/readyz").status_code == 200, "it is ready again")
        finally:
            redis.resume()
            world.close()


@pytest.mark.once
def test_one_of_several_stores_may_be_away(tmp_path: Path) -> None:
    """Or no server would be ready for what lies in the others."""
    with RedisServer(tmp_path) as redis:
        places = (
            PlacementSettings(name="here", url=f"sqlite:///{tmp_path / 'leases.db'}"),
            PlacementSettings(name="there", url=redis.url),
        )
        world = World.over(tmp_path, placement=places, records=f"sqlite:///{tmp_path / 'r.db'}")
        try:
            client = world.client()
            redis.pause()
            assert client.get("/readyz").status_code == 200
        finally:
            redis.resume()
            world.close()


@pytest.mark.once
def test_one_whose_records_hang_is_ready_and_grants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_cache, "ASKED_AFTER", 0.5)
    with RedisServer(tmp_path) as redis:
        world = World.over(leases=f"sqlite:///{tmp_path / 'leases.db'}", records=redis.url)
        try:
            client, keys = world.client(), keys_of(world)
            redis.pause()
            wait_until(lambda: keys.cache.stale_for > 5, "the records are away")
            assert client.get("/readyz").status_code == 200
            assert client.post(f"/v1/locks/{b64('x')}").status_code == 200
        finally:
            redis.resume()
            world.close()


def _unready(client: httpx2.Client) -> Any:
    answer = client.get("/readyz")
    return answer.json() if answer.status_code == 503 else None


def test_whoever_asks_often_costs_the_store_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, asked = store_of(world), list[Command]()
    call = store.call

    async def counted(command: Command, wait: float | None = None) -> TimedReply:
        asked.append(command)
        return await call(command, wait)

    monkeypatch.setattr(store, "call", counted)

    async def ask_all() -> None:
        await asyncio.gather(*(health_of(world).check() for _ in range(50)))

    world.do(ask_all)
    assert len(asked) == 1


# -- metrics ----------------------------------------------------------------------------------------


class Measured:
    """What `/metrics` says at this moment."""

    def __init__(self, client: httpx2.Client) -> None:
        answer = client.get("/metrics")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        self.text = answer.text
        self._samples = [
            sample
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
        ]

    def of(self, name: str, **labels: str) -> float:
        """The sum of all samples of that name that have these labels."""
        return sum(
            sample.value
            for sample in self._samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )


def test_what_is_counted(world: World, anybody: httpx2.Client) -> None:
    client, path = world.client(), f"/v1/locks/{b64(SECRET_NAME)}"
    held = client.post(path, params={"ttl": 60}).json()
    assert client.post(path, params={"ttl": 60}).status_code == 409
    assert client.patch(path, params={"ttl": 60, "id": "n" * 22}).status_code == 410
    assert anybody.post(path).status_code == 401
    assert anybody.get("/nowhere").status_code == 404
    found = Measured(anybody)
    route = {"method": "POST", "route": "/v1/locks/{name}"}
    for status, count in (("200", 1), ("409", 1), ("401", 1)):
        assert found.of("dibs_requests_total", **route, status=status) == count
    assert found.of("dibs_requests_total", route="", status="404") == 1
    assert found.of("dibs_request_seconds_count", **route) == 3
    lock = {"kind": "lock"}
    assert found.of("dibs_commands_total", **lock, command="acquire", reply="granted") == 1
    assert found.of("dibs_commands_total", **lock, command="acquire", reply="refused") == 1
    assert found.of("dibs_commands_total", **lock, command="renew", reply="lost") == 1
    assert found.of("dibs_leases") == 1
    assert found.of("dibs_keys_age_seconds") < LONG
    assert found.of("dibs_draining") == 0
    assert found.of("process_resident_memory_bytes") > 0
    secrets = (SECRET_NAME, b64(SECRET_NAME), held["id"], world.admin_key, "nowhere")
    assert not [secret for secret in secrets if secret in found.text]
    assert client.delete(path, params={"id": held["id"]}).status_code == 200
    assert Measured(anybody).of("dibs_leases") == 0


def test_batches_streams_and_those_who_wait(world: World, anybody: httpx2.Client) -> None:
    client, path = world.client(), f"/v1/locks/{b64('x')}"
    looks = wire.Batch(tuple(wire.to_wire(Inspect(b"lock:%d" % n)) for n in range(3)))
    answer = client.post("/v1/batch", content=msgspec.json.encode(looks))
    assert answer.status_code == 200, answer.text
    found = Measured(anybody)
    assert found.of("dibs_batch_commands_sum") == 3
    assert found.of("dibs_batch_commands_count") == 1
    with client.stream("GET", "/v1/stream"):
        assert Measured(anybody).of("dibs_streams") == 1
    wait_until(lambda: Measured(anybody).of("dibs_streams") == 0, "the stream is closed")
    held = client.post(path, params={"ttl": 60}).json()
    waiter = threading.Thread(target=lambda: world.client().post(path, params={"wait": 30}))
    waiter.start()
    wait_until(lambda: client.get(path).json()["waiting"], "it waits")
    assert client.delete(path, params={"id": held["id"]}).status_code == 200
    waiter.join(LONG)
    found = Measured(anybody)
    assert found.of("dibs_commands_total", command="acquire", reply="granted") == 2
    assert found.of("dibs_request_seconds_count", route="/v1/stream") == 0


def test_the_page_names_every_metric(world: World, anybody: httpx2.Client) -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text("utf-8")
    families = text_string_to_metric_families(Measured(anybody).text)
    ours = {each.name for each in families if each.name.startswith("dibs_")}
    told = {name.removesuffix("_total") for name in re.findall(r"`(dibs_\w+)", page)}
    assert told == ours


def test_commands_by_placement_and_by_the_directories_that_are_told_apart(tmp_path: Path) -> None:
    names = ("here", "there")
    places = tuple(
        PlacementSettings(name=name, url=f"sqlite:///{tmp_path / name}") for name in names
    )
    told_apart = ("jobs/", "jobs/nightly", "pay")
    world = World.over(
        tmp_path, placement=places, placement_fresh=1.0, metrics_directories=told_apart, leases=""
    )
    try:
        client = world.client()
        for name in ("jobs/a", "jobs/nightly/b", "jobs/nightly/c", "pay", SECRET_NAME):
            answer = client.post(f"/v1/locks/{b64(name)}", params={"ttl": 60})
            assert answer.status_code == 200, answer.text
        found = Measured(client)
        acquires = {"command": "acquire", "placement": "here"}
        told = {
            directory: found.of("dibs_commands_total", **acquires, directory=directory)
            for directory in ("jobs/", "jobs/nightly/", "pay/", "")
        }
        assert told == {"jobs/": 1, "jobs/nightly/": 2, "pay/": 0, "": 2}
        assert SECRET_NAME not in found.text
    finally:
        world.close()


@pytest.mark.parametrize(
    ("said", "status"),
    [(b"Content-Length: 9", "408"), (b"Content-Length: 9000000", "413")],
    ids=["late", "too large"],
)
def test_a_refused_body_is_counted_once(said: bytes, status: str) -> None:
    world = World.over(limits=Limits(request_time=0.4))
    client = world.client()
    host, port = world.url.removeprefix("http://").split(":")
    head = f"POST /v1/batch HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {world.admin_key}\r\n"
    try:
        with socket.create_connection((host, int(port)), LONG) as line:
            line.sendall(head.encode() + said + b"\r\n\r\n")
            answer = b""
            while piece := line.recv(65536):
                answer += piece
        assert answer.startswith(b"HTTP/1.1 " + status.encode())
        found = Measured(client)
        assert found.of("dibs_requests_total", route="/v1/batch", status=status) == 1
        assert found.of("dibs_requests_total", status="499") == 0, "nobody has left"
    finally:
        world.close()


def test_where_nothing_is_to_be_measured() -> None:
    world = World.over(metrics=False)
    try:
        answer = world.client().get("/metrics")
        assert (answer.status_code, answer.json()["type"]) == (404, "/problems/no-such-route")
        assert not meters_of(world)
    finally:
        world.close()


# -- the log ----------------------------------------------------------------------------------------


def logged(capfd: pytest.CaptureFixture[str], **settings: Any) -> tuple[str, str]:
    """What a server logs of a lock's life, and the lock's id."""
    world = World.over(**settings)
    try:
        client, path = world.client(), f"/v1/locks/{b64(SECRET_NAME)}"
        held: str = client.post(path, params={"ttl": 60}).json()["id"]
        assert client.delete(path, params={"id": held}).status_code == 200
        assert client.delete(path, params={"id": held}).status_code == 410
        assert client.get(f"/{SECRET_NAME}").status_code == 404
        key = world.admin_key
    finally:
        world.close()
    text = capfd.readouterr().err
    secrets = (SECRET_NAME, b64(SECRET_NAME), held, key)
    assert not [secret for secret in secrets if secret in text]
    return text, held


def test_a_line_of_json_for_each_request(capfd: pytest.CaptureFixture[str]) -> None:
    lines = [json.loads(line) for line in logged(capfd, log_format="json")[0].splitlines()]
    path = "/v1/locks/{name}"
    told = [(line["method"], line["route"], line["status"]) for line in lines]
    assert told == [
        ("POST", path, 200),
        ("DELETE", path, 200),
        ("DELETE", path, 410),
        ("", "", 404),
    ]
    for line in lines:
        assert set(line) == {"time", "level", "event", "method", "route", "status", "ms"}
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])
        assert (line["level"], line["event"]) == ("info", "request")
        assert 0 < line["ms"] < LONG * 1e3


def test_a_line_of_text_for_each_request(capfd: pytest.CaptureFixture[str]) -> None:
    lines = logged(capfd, log_format="text")[0].splitlines()
    assert re.fullmatch(r"\S+Z info POST /v1/locks/\{name\} 200 [\d.]+ ms", lines[0])
    assert re.fullmatch(r"\S+Z info no route 404 [\d.]+ ms", lines[-1])


def test_without_a_format_requests_are_not_logged(capfd: pytest.CaptureFixture[str]) -> None:
    assert logged(capfd)[0] == ""


def test_without_a_format_lines_have_their_time(capfd: pytest.CaptureFixture[str]) -> None:
    world = World.over()
    try:
        logging.getLogger("dibs.server").warning("it rains")
        logging.getLogger("dibs.server").info("it does not")
    finally:
        world.close()
    told = set(capfd.readouterr().err.splitlines())  # each server of this process logs it
    assert told
    for line in told:
        assert re.fullmatch(r"\S+T\S+Z warning dibs\.server: it rains", line)


def test_a_folder_that_was_not_there_is_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    World.over(tmp_path / "mispelt").close()
    told = f"there was no folder {tmp_path / 'mispelt'}, so it was made"
    assert told in capfd.readouterr().err
    World.over(tmp_path / "mispelt").close()
    assert told not in capfd.readouterr().err


def test_what_goes_wrong_is_in_the_same_log(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World.over(log_format="json")

    async def fail() -> None:
        raise ZeroDivisionError("the disk said so")

    try:
        monkeypatch.setattr(health_of(world), "check", fail)
        assert world.client().get("/readyz").status_code == 500
    finally:
        world.close()
    told = capfd.readouterr().err.splitlines()
    # other servers of this process log it too, as text
    wrong, request = (json.loads(line) for line in told if line.startswith("{"))
    assert (wrong["level"], wrong["logger"]) == ("error", "dibs.server")
    assert wrong["message"].startswith("/readyz failed: ZeroDivisionError: 'the disk said so'\n")
    assert (request["route"], request["status"]) == ("/readyz", 500)


def test_a_log_that_nobody_reads_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_log_that_nobody_reads_delays_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "PATIENCE", 0.1)
    reader, writer = os.pipe()
    with logging_to(writer, "json") as lines:
        for _ in range(9_000):
            logging.getLogger("dibs.server").warning("x" * 100)
    with ThreadPoolExecutor() as pool, os.fdopen(reader) as file:
        reading = pool.submit(file.read)
        lines.queue.join()
        os.close(writer)
        assert len(reading.result(LONG).splitlines()) == 9_000


def test_a_format_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--log-format", "xml"]) == 64
    assert "--log-format" in capsys.readouterr().err
    with pytest.raises(NotConfigured, match="DIBS_SERVER_LOG_FORMAT: give one of json, text"):
        read_config(None, {}, {"DIBS_SERVER_LOG_FORMAT": "xml"})
    config = read_config(None, {}, {"DIBS_SERVER_LOG_FORMAT": "json"})
    assert (config.log_format, config.metrics) == ("json", True)
    off = read_config(None, {}, {"DIBS_SERVER_METRICS": "false"})
    assert not off.metrics
