"""The reference of the HTTP API, made from the OpenAPI document of the service."""

import json
from collections.abc import Iterator
from typing import Any

from dibs.server.api.openapi import describe
from dibs.server.api.problems import PROBLEM_KINDS
from dibs.server.app import TABLE

type Node = dict[str, Any]

INTRO = """\
# HTTP API

A running service has the same description at `/v1/openapi.json`, as OpenAPI 3.1.
See [the HTTP API by hand](../http.md) for an introduction.

"""

GROUPS = {
    "Locks": ("locks",),
    "Batches and notifications": ("batch", "notifications"),
    "Lists": ("listing",),
    "Events": ("events",),
    "Keys and audit log": ("keys", "audit"),
    "Restrictions and placements": ("restrict", "placements", "move"),
    "Service": ("service",),
}
"""Sections, with the modules of their operations; of `admin`, the first words of paths."""


def page() -> str:
    """The whole page."""
    document = describe(TABLE)
    rest: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            module = operation["operationId"].partition("_")[0]
            module = path.split("/")[2] if module == "admin" else module
            rest.setdefault(module, []).append("\n\n".join(described(method, path, operation)))
    parts = [INTRO + document["info"]["description"]]
    for title, modules in {**GROUPS, **{name: (name,) for name in rest}}.items():
        operations = [each for module in modules for each in rest.pop(module, [])]
        parts += [f"## {title}", *operations] if operations else []
    parts += ["## Problems", problems(), "## Schemas"]
    for name, schema in document["components"]["schemas"].items():
        parts += [f"### {name}", schema.get("description", ""), fields(schema)]
    return "\n\n".join(parts) + "\n"


def described(method: str, path: str, operation: Node) -> Iterator[str]:
    """One operation."""
    yield f"### `{method.upper()} {path}`"
    yield f"{operation['summary']}. {operation.get('description', '')}"
    if operation["x-needs"] != "public":
        scope = operation["x-needs"].partition(" ")[2]
        yield f"Needs an API key{f' with the scope `{scope}`' if scope else ''}."
    rows = [
        row(each["name"], each["schema"], required=each["required"], place=each["in"])
        for each in operation["parameters"]
    ]
    if rows:
        yield table("parameter", rows)
    if body := operation.get("requestBody"):
        need = "" if body["required"] else " (optional)"
        yield f"Body{need}: {type_of(body['content']['application/json']['schema'])}"
    problems = []
    for status, answer in operation["responses"].items():
        content = answer.get("content", {})
        if "application/problem+json" in content:
            problems.append(status)
            continue
        for media, each in content.items():
            if events := each.get("x-events"):
                yield f"Response {status}, `{media}`. `message` is an event without a name."
                yield table(
                    "event", [f"| `{name}` | {type_of(kind)} | |" for name, kind in events.items()]
                )
            else:
                yield f"Response {status}, `{media}`: {type_of(each['schema'])}"
        if not content:
            yield f"Response {status}: {answer['description']}, without a body."
    yield f"[Problems](#problems): {', '.join(problems)}."


def problems() -> str:
    """A table of the kinds of problems."""
    intro = "Errors are [Problem](#problem) objects. These are their types:\n\n"
    head = "| type | status | title | advice |\n|---|---|---|---|\n"
    return (
        intro
        + head
        + "\n".join(
            f"| `{each.type}` | {each.status} | {each.title} | {each.advice} |"
            for each in PROBLEM_KINDS.values()
        )
    )


def fields(schema: Node) -> str:
    """A table of the fields of a schema."""
    required = schema.get("required", [])
    properties = schema.get("properties")
    if properties is None:
        return f"Type: {type_of({**schema, 'description': ''})}"
    rows = [row(name, each, required=name in required) for name, each in properties.items()]
    return table("field", rows) if rows else "No fields."


def table(first: str, rows: list[str]) -> str:
    return "\n".join((f"| {first} | type | |", "|---|---|---|", *rows))


def row(name: str, schema: Node, *, required: bool, place: str = "") -> str:
    """A row about a parameter or a field."""
    described = (each.get("description") for each in (schema, *schema.get("anyOf", [])))
    about = [next(filter(None, described), "")]
    if place in ("path", "header"):
        about.insert(0, f"In the {place}.")
    if required and place != "path":
        about.insert(0, "**Required.**")
    elif schema.get("default") not in (None, "", [], {}):
        value = schema["default"]
        about.append(
            f"Default: `{f'{value:g}' if isinstance(value, float) else json.dumps(value)}`."
        )
    text = " ".join(each if each.endswith((".", "**")) else f"{each}." for each in about if each)
    return f"| `{name}` | {type_of(schema)} | {text} |"


def type_of(schema: Node) -> str:
    """A type in a word or two; a schema is a link."""
    if reference := schema.get("$ref"):
        name = reference.rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if options := schema.get("anyOf"):
        return " or ".join(map(type_of, options))
    if words := schema.get("enum"):
        return ", ".join(f"`{json.dumps(each)}`" for each in words)
    if schema.get("type") == "array":
        return f"list of {type_of(schema.get('items', {}))}"
    return str(schema.get("type", "any"))
