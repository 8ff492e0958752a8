"""The description tells the truth: it names every route, and a fuzzer that believes it finds no breach."""

import re
import socket
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis.errors import Unsatisfiable
from hypothesis.stateful import run_state_machine_as_test
from schemathesis import Case, GenerationMode
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import positive_data_acceptance

from dibs.server.api.openapi import describe
from dibs.server.app import TABLE
from dibs.server.limits import Limits
from tests.server.world import LONG, World, b64

NOT_FUZZED = {route.path for route in TABLE if route.media == "text/event-stream"}
"""They do not end."""


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    world = World.over(limits=Limits(max_wait=0.05))
    yield world
    world.close()


@pytest.fixture
def plain() -> Iterator[World]:
    """One of no peculiar limits."""
    world = World.over()
    yield world
    world.close()


def test_every_route_is_described() -> None:
    paths = describe(TABLE)["paths"]
    told = {(method.upper(), path) for path, each in paths.items() for method in each}
    assert told == {(r.method, r.path.replace("{rest}", "{path}")) for r in TABLE if r.documented}


def test_a_lease_id_belongs_in_a_header() -> None:
    told = describe(TABLE)
    for method in ("post", "patch", "delete"):
        operation = told["paths"]["/v1/locks/{name}"][method]
        (header,) = [each for each in operation["parameters"] if each["in"] == "header"]
        assert (header["name"], header["required"]) == ("Dibs-Lease-Id", False)
        assert "secret" in header["schema"]["description"]
    assert "?id=" not in told["info"]["description"], "proxies log queries"


def test_commands_of_a_batch_say_how_keys_and_ids_are_written() -> None:
    schemas = describe(TABLE)["components"]["schemas"]
    for command in ("Acquire", "Renew", "Release"):
        fields = schemas[command]["properties"]
        assert "base64" in fields["key"]["description"]
        assert "not encoded again" in fields["id"]["description"]


def test_operations_have_names_of_their_own() -> None:
    operations = [each for path in describe(TABLE)["paths"].values() for each in path.values()]
    assert len({each["operationId"] for each in operations}) == len(operations)


def test_it_says_how_to_begin(plain: World) -> None:
    """By itself, for whoever has nothing else; its example is one that is answered."""
    told = describe(TABLE)
    assert told["servers"][0]["url"] == "/"
    (path,) = re.findall(r"`POST (\S+)`", told["info"]["description"])
    held = plain.client("acquire").post(path)
    assert held.status_code == 200
    examples = {
        (each["name"], each["example"])
        for operations in told["paths"].values()
        for operation in operations.values()
        for each in operation["parameters"]
        if "example" in each
    }
    assert examples == {("name", b64("jobs/nightly")), ("dir", b64("jobs"))}
    assert path.split("?")[0].endswith(b64("jobs/nightly"))


@pytest.mark.parametrize(
    "sent",
    [
        "FOO /v1/locks HTTP/1.1\r\nHost: x",
        "GET /v1/locks HTTP/1.1\r\nHost: x\r\nContent-Length: many",
        "Hello",
    ],
)
def test_only_what_is_no_http_is_refused_as_text(world: World, sent: str) -> None:
    told = describe(TABLE)["info"]["description"]
    assert "Only requests that are not valid HTTP get `text/plain`, with 400" in told
    url = httpx2.URL(world.url)
    with socket.create_connection((url.host, url.port), LONG) as line:
        line.sendall(f"{sent}\r\n\r\n".encode())
        head, _, body = line.makefile("rb").read().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"content-type: text/plain" in head
    assert body.count(b"\n") == 0 < len(body)


def test_it_is_served_to_everybody(world: World) -> None:
    client = world.client("read")
    del client.headers["authorization"]
    answer = client.get("/v1/openapi.json")
    assert answer.json()["openapi"] == "3.1.0"


BOUNDED = settings(
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate),
)


def schema_of(world: World) -> schemathesis.BaseSchema:
    schema = schemathesis.openapi.from_dict(describe(TABLE))
    schema.config.update(base_url=world.url)
    return schema


@pytest.mark.once
@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("path", sorted({r.path for r in TABLE if r.documented} - NOT_FUZZED))
def test_no_breach_of_its_own_word(world: World, path: str, mode: GenerationMode) -> None:
    headers = {"Authorization": f"Bearer {world.admin_key}"}
    for found in schema_of(world).include(path=path).get_all_operations():
        assert isinstance(found, Ok)

        @settings(BOUNDED, max_examples=15)
        @given(found.ok().as_strategy(generation_mode=mode))
        def check(case: Case[Any]) -> None:
            # an empty list is sent as nothing, and nobody can refuse that
            assume([] not in (case.query or {}).values())
            # what goes together, and what one server allows, no schema can say
            case.call_and_validate(headers=headers, excluded_checks=[positive_data_acceptance])

        try:
            check()
        except Unsatisfiable:
            assert mode is GenerationMode.NEGATIVE, "it has no parameter that could be wrong"


@pytest.mark.once
def test_no_breach_along_its_links(world: World) -> None:
    machine = schema_of(world).exclude(path=sorted(NOT_FUZZED)).as_state_machine()
    key = world.admin_key

    class Machine(machine):  # type: ignore[misc, valid-type]
        def get_call_kwargs(self, case: Case[Any]) -> dict[str, object]:
            return {"headers": {"Authorization": f"Bearer {key}"}}

        def validate_response(self, response: object, case: Case[Any], **more: object) -> None:
            case.validate_response(response, excluded_checks=[positive_data_acceptance])

    run_state_machine_as_test(
        Machine, settings=settings(BOUNDED, max_examples=8, stateful_step_count=6)
    )
