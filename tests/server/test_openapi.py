"""The description is true: it names every route, and a fuzzer that relies on it finds no breach."""

import re
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import positive_data_acceptance

from dibs.server.api.openapi import describe
from dibs.server.app import TABLE
from dibs.server.limits import Limits
from tests.sampling import examples
from tests.server.world import World, b64, shared

NOT_FUZZED = {route.path for route in TABLE if route.media == "text/event-stream"}
"""They do not end."""


world = shared(limits=Limits(max_wait=0.05))


def test_every_route_is_described() -> None:
    paths = describe(TABLE)["paths"]
    described = {(method.upper(), path) for path, each in paths.items() for method in each}
    documented = {(r.method, r.path.replace("{rest}", "{path}")) for r in TABLE if r.documented}
    assert described == documented
    operations = [each for path in paths.values() for each in path.values()]
    ids = {each["operationId"] for each in operations}
    assert len(ids) == len(operations)


def test_it_is_public_and_says_how_to_begin() -> None:
    """Its example is one that is answered, and no lease id goes into a query, which proxies log."""
    with World.over() as world:
        description = world.stranger().get("/v1/openapi.json").json()
        assert (description["openapi"], description["servers"][0]["url"]) == ("3.1.0", "/")
        (path,) = re.findall(r"`POST (\S+)`", description["info"]["description"])
        assert path.split("?")[0].endswith(b64("jobs/nightly"))
        assert world.client("acquire").post(path).status_code == 200
    assert "?id=" not in description["info"]["description"]
    for method in ("post", "patch", "delete"):
        operation = description["paths"]["/v1/locks/{name}"][method]
        (header,) = [each for each in operation["parameters"] if each["in"] == "header"]
        assert (header["name"], header["required"]) == ("Dibs-Lease-Id", False)
        assert "secret" in header["schema"]["description"]


BOUNDED = settings(
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate),
)


@pytest.fixture(scope="module")
def schema(world: World) -> schemathesis.BaseSchema:
    schema = schemathesis.openapi.from_dict(describe(TABLE))
    schema.config.update(base_url=world.url)
    return schema


@pytest.mark.once
@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("path", sorted({r.path for r in TABLE if r.documented} - NOT_FUZZED))
def test_each_operation_does_as_described(
    world: World, schema: schemathesis.BaseSchema, path: str, mode: GenerationMode
) -> None:
    headers = {"Authorization": f"Bearer {world.admin_key}"}
    for found in schema.include(path=path).get_all_operations():
        assert isinstance(found, Ok)

        @settings(BOUNDED, max_examples=examples(10))
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
