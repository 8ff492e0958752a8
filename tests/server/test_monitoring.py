"""The files for Prometheus and Grafana, against a Prometheus that scrapes a server in use."""

import json
import re
import shutil
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from dibs.model import Inspect
from dibs.server.limits import Limits
from tests.pages import DOCS, write_files
from tests.server.test_deploy import DEPLOY, run
from tests.server.world import TRUST, World, lock
from tests.servers.binaries import prometheus_program
from tests.servers.redis import RedisServer
from tests.servers.server import Server
from tests.servers.waiting import wait_until

pytestmark = pytest.mark.once

PAGE = "how-to/monitoring.md"
RULES = "prometheus-rules.yaml"
SELECTOR = re.compile(r'\b(?:dibs|process)_\w+(?:{(?:"[^"]*"|[^"}])*})?')


class Prometheus(Server):
    PORT_IS_TAKEN = "address already in use"

    def __init__(self, folder: Path, target: str) -> None:
        super().__init__(folder)
        write_files(PAGE, folder)
        shutil.copy(DEPLOY / RULES, folder)
        self.config = folder / "prometheus.yml"
        text = self.config.read_text("utf-8")
        self.config.write_text(text.replace("127.0.0.1:5327", target).replace("15s", "500ms"))

    def _command(self) -> list[str | Path]:
        return [
            prometheus_program().path,
            f"--config.file={self.config}",
            f"--storage.tsdb.path={self.folder / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
        ]

    def _answers(self) -> bool:
        with suppress(httpx2.ConnectError, ValueError):  # or it still reads its files
            return bool(self.values("vector(1)"))  # its first scrape follows after 5 s
        return False

    def values(self, query: str) -> list[Any]:
        found: list[Any] = self.ask("query", query=query)["result"]
        return found

    def rules(self) -> set[str]:
        return {rule["health"] for each in self.ask("rules")["groups"] for rule in each["rules"]}

    def ask(self, what: str, **parameters: str) -> Any:
        url = f"{self.url}/api/v1/{what}"
        answer = httpx2.get(url, params=parameters, verify=TRUST).json()
        assert answer["status"] == "success", (answer, parameters)
        return answer["data"]


def use(world: World, redis: RedisServer) -> None:
    """Cause each result that an alert looks for. In the end the store is away."""
    client = world.client()
    client.apply(Inspect(b"lock:a"))
    held = client.acquired("a", ttl=3)
    renewal = partial(client.patch, lock("a"), params={"id": held["id"], "ttl": 3})
    assert renewal().status_code == 200
    second = client.acquired("a", ttl=60, wait=30)
    assert renewal().status_code == 410
    client.acquired("b")
    assert client.acquire("c").status_code == 429
    redis.kill()
    for answer in (renewal(), client.acquire("a", id=second["id"], wait=0.1)):
        assert answer.status_code == 503
    unanswered = re.findall(r'command="(\w+)".*reply="unavailable"', client.get("/metrics").text)
    assert {*unanswered} == {"acquire", "renew"}


def test_every_query_finds_what_a_server_exports(tmp_path: Path) -> None:
    board = json.loads((DEPLOY / "grafana-dashboard.json").read_text("utf-8"))
    queries = [
        target["expr"].replace("$job", "dibs").replace("$__rate_interval", "10s")
        for panel in board["panels"]
        for target in panel["targets"]
    ]
    with (
        RedisServer(tmp_path / "redis") as redis,
        World.over(leases=redis.url, records="memory://", limits=Limits(leases_per_key=2)) as world,
        Prometheus(tmp_path / "prometheus", world.url.removeprefix("http://")) as prometheus,
    ):
        use(world, redis)
        (group,) = prometheus.ask("rules")["groups"]
        text = "".join(rule["query"] for rule in group["rules"])
        for query in (*queries, *SELECTOR.findall(text)):
            wait_until(partial(prometheus.values, query), f"{query} has values")
        wait_until(lambda: prometheus.rules() == {"ok"}, "the rules are evaluated")


def test_the_rules() -> None:
    done = run("promtool", "test", "rules", str(DEPLOY / RULES.replace(".yaml", ".test.yaml")))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_explains_each_alert() -> None:
    alerts = re.findall(r"- alert: (\w+)", (DEPLOY / RULES).read_text("utf-8"))
    text = (DOCS / PAGE).read_text("utf-8")
    assert re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) == alerts
    assert f"{len(alerts)} alerts" in text
