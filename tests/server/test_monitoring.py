"""The files for Prometheus and Grafana: each of their queries finds what a server exports."""

import json
import re
import shutil
from functools import partial
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dibs.model import Inspect
from dibs.server.limits import Limits
from tests.pages import DOCS, write_files
from tests.server.test_deploy import DEPLOY, run
from tests.server.world import World
from tests.servers.binaries import prometheus_program
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.once

PAGE = "how-to/monitoring.md"
RULES = "prometheus-rules.yaml"
BOARD = json.loads((DEPLOY / "grafana-dashboard.json").read_text("utf-8"))
QUERIES = [
    target["expr"].replace("$job", "dibs").replace("$__rate_interval", "10s")
    for panel in BOARD["panels"]
    for target in panel["targets"]
]
SELECTOR = re.compile(r'\b((?:dibs|process)_\w+)(?:{((?:"[^"]*"|[^"}])*)})?')
MATCHER = re.compile(r'(\w+)(!?=?~?)"([^"]*)"')


def use(world: World, redis: RedisServer) -> None:
    """Cause each result that an alert looks for. In the end the store is away."""
    client = world.client()
    client.apply(Inspect(b"lock:a"))
    held = client.acquired("a")
    renewal = partial(client.renewed, "a", held["id"])
    assert renewal().status_code == 200
    expired = client.acquired("b", ttl=1)
    second = client.acquired("b", wait=30)
    assert client.renewed("b", expired["id"]).status_code == 410
    client.acquired("c")
    assert client.acquire("d").status_code == 429
    redis.kill()
    for answer in (renewal(), client.acquire("b", id=second["id"], wait=0.1)):
        assert answer.status_code == 503
    unanswered = re.findall(r'command="(\w+)".*reply="unavailable"', client.get("/metrics").text)
    assert {*unanswered} == {"acquire", "renew"}


def is_match(value: str, how: str, wanted: str) -> bool:
    found = re.fullmatch(wanted, value) is not None if how.endswith("~") else value == wanted
    return found is not how.startswith("!")


def test_every_query_finds_what_a_server_exports(tmp_path: Path) -> None:
    with (
        RedisServer(tmp_path) as redis,
        World.over(leases=redis.url, limits=Limits(leases_per_key=3)) as world,
    ):
        use(world, redis)
        families = text_string_to_metric_families(world.stranger().get("/metrics").text)
        samples = [sample for family in families for sample in family.samples]
    selectors = SELECTOR.findall("\n".join([*QUERIES, (DEPLOY / RULES).read_text("utf-8")]))
    assert len(selectors) > 20
    for name, inside in selectors:
        matchers = [each for each in MATCHER.findall(inside) if each[0] != "job"]
        assert any(
            sample.name == name
            and all(is_match(sample.labels.get(label, ""), *rest) for label, *rest in matchers)
            for sample in samples
        ), f"{name}{{{inside}}} has values"


def test_prometheus_takes_the_page_the_rules_and_the_queries(tmp_path: Path) -> None:
    write_files(PAGE, tmp_path)
    shutil.copy(DEPLOY / RULES, tmp_path)
    rules = [{"record": f"query:{n}", "expr": query} for n, query in enumerate(QUERIES)]
    board = tmp_path / "board.yaml"
    board.write_text(json.dumps({"groups": [{"name": "board", "rules": rules}]}), "utf-8")
    for words in (
        ("check", "config", tmp_path / "prometheus.yml"),
        ("check", "rules", board),
        ("test", "rules", DEPLOY / RULES.replace(".yaml", ".test.yaml")),
    ):
        done = run(prometheus_program().path.with_name("promtool"), *words)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_explains_each_alert() -> None:
    alerts = re.findall(r"- alert: (\w+)", (DEPLOY / RULES).read_text("utf-8"))
    text = (DOCS / PAGE).read_text("utf-8")
    assert re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) == alerts
    assert f"{len(alerts)} alerts" in text
