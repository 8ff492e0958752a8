"""Who may import whom (`RULES`), and the reader of imports that holds it."""

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"


@dataclass(frozen=True, slots=True)
class Rule:
    """What one layer may import besides the standard library.

    `ours` names modules without `dibs.`: exactly one (`runtime.port`), or all below a package
    (`core.*`); `""` is the package `dibs` itself. `theirs`: third-party packages, `*` for any.
    """

    ours: frozenset[str] = frozenset()
    theirs: frozenset[str] = frozenset()
    not_stdlib: frozenset[str] = frozenset()
    siblings: bool = False  # the layer's own other modules
    no_async: bool = False


def names(text: str) -> frozenset[str]:
    return frozenset(text.split())


IMPURE = names(
    "time random os asyncio threading socket secrets uuid select selectors signal subprocess"
    " multiprocessing concurrent sqlite3 contextvars shutil tempfile pathlib io logging"
)
IN_WORKFLOWS = IMPURE - {"asyncio", "logging"}
"""Where Temporal's loop runs, nothing else may act: a replay would see something else."""

BASE = names("errors model")
BELOW = BASE | names("config clock process core.*")
PUBLIC = BASE | {"", "sync"}
SERVICE = BELOW | names(
    "session settings stores.registry stores.port stores.redact stores.http.wire stores.http.names"
    " runtime.port runtime.aio runtime.notifications"
    " locks.acquire locks.requests locks.messages"
)
HTTP = names("msgspec starlette")
TEMPORAL_FLOWS = BASE | names(
    "config core.* locks.messages stores.temporal.ids stores.temporal.wire"
    " temporal.alarm temporal.errors temporal.options temporal.permit temporal.sdk"
)
"""What workflow code of Temporal's users relies on, however a permit is granted."""


def flows(more: str = "") -> Rule:
    """Code in workflows of Temporal's users."""
    return Rule(
        TEMPORAL_FLOWS | names(more),
        siblings=True,
        theirs=names("temporalio"),
        not_stdlib=IN_WORKFLOWS,
    )


# The most specific row holds: `stores.port` before `stores.*`. A module without a row fails.
RULES: Mapping[str, Rule] = {
    "model": Rule(),
    "errors": Rule(names("model")),
    "clock": Rule(BASE),
    "process": Rule(BASE),
    "lazy": Rule(),
    "core.*": Rule(BASE, siblings=True, not_stdlib=IMPURE, no_async=True),
    "config": Rule(BASE | names("core.*")),
    "settings": Rule(BASE | names("config core.* stores.redact")),
    "stores.port": Rule(BELOW),
    "stores.redact": Rule(),
    "stores.url_options": Rule(names("config settings")),
    "stores.tls": Rule(names("errors")),
    "stores.waker": Rule(names("model")),
    "stores.aio": Rule(BASE | names("stores.port")),
    "stores.loop_thread": Rule(BASE | names("process stores.port")),
    "stores": Rule(),
    "stores.web.*": Rule(names("stores.aio stores.tls"), theirs=names("httptools"), siblings=True),
    "stores.snapshot": Rule(names("core.*")),
    "stores.cas.*": Rule(
        BELOW | names("stores.aio stores.port stores.loop_thread stores.snapshot"),
        siblings=True,
        theirs=names("msgspec"),
    ),
    "stores.registry": Rule(BELOW | names("lazy stores.port stores.redact")),
    "stores.*": Rule(
        BELOW
        | names(
            "stores.aio stores.loop_thread stores.waker stores.port stores.redact stores.tls"
            " stores.url_options stores.web.* stores.cas.*"
        ),
        theirs=names("*"),
    ),
    "stores.memory": Rule(BELOW | names("stores.port")),
    "stores.sqlite.*": Rule(
        BELOW | names("stores.aio stores.waker stores.port stores.redact stores.url_options"),
        siblings=True,
    ),
    # names and messages that workflows and clients share: workflow code imports them, so they do no I/O
    "stores.temporal.ids": Rule(BASE, not_stdlib=IMPURE - {"os"}, no_async=True),
    "stores.temporal.wire": Rule(BASE | names("core.*"), not_stdlib=IMPURE, no_async=True),
    "stores.temporal": Rule(),
    "stores.temporal.*": Rule(
        BELOW
        | names("stores.aio stores.port stores.loop_thread")
        | names("stores.temporal stores.redact stores.url_options"),
        siblings=True,
        theirs=names("temporalio"),
    ),
    "runtime.*": Rule(BELOW | names("stores.port"), siblings=True),
    "locks.*": Rule(
        BASE | names("config settings process core.* runtime.port"),
        siblings=True,
        not_stdlib=names("asyncio threading concurrent queue selectors"),
    ),
    "session": Rule(BELOW | names("stores.registry stores.port runtime.*")),
    "client": Rule(BELOW | names("session settings locks.* runtime.port")),
    "sides": Rule(BELOW | names("session client locks.* runtime.*")),
    "decorator": Rule(BELOW | names("lazy client settings sides locks.*")),
    "sync": Rule(BELOW | names("lazy session settings client runtime.* locks.* sides decorator")),
    "_api": Rule(BELOW | names("lazy session settings client runtime.* locks.* sides sync")),
    "": Rule(BASE | names("lazy config client decorator locks.* _api")),
    "fencing": Rule(names("fencing.*")),
    "fencing.*": Rule(BASE | names("core.names"), siblings=True),
    "tasks.*": Rule(
        PUBLIC | names("clock config process settings"), siblings=True, theirs=names("cronsim")
    ),
    "contrib.*": Rule(PUBLIC | names("config client"), siblings=True, theirs=names("*")),
    # it is told what passes inside
    "contrib.otel": Rule(
        PUBLIC | names("contrib core.names") | names("locks.requests locks.hooks"),
        theirs=names("opentelemetry"),
    ),
    "temporal": Rule(
        names("errors lazy temporal.broker.* temporal.semaphore temporal.plugin")
        | names("temporal.errors temporal.options temporal.permit temporal.slots.*")
        | names("temporal.activity.* temporal.worker.* stores.temporal.ids")
    ),
    "temporal.sdk": Rule(theirs=names("temporalio")),
    "temporal.errors": Rule(names("errors temporal.sdk"), theirs=names("temporalio")),
    "temporal.alarm": Rule(theirs=names("temporalio"), not_stdlib=IN_WORKFLOWS),
    "temporal.options": flows(),
    "temporal.permit": flows(),
    # the workflow of a key's broker: no clock, no thread, no I/O but by Temporal
    "temporal.broker.*": Rule(
        BASE
        | names("core.* stores.snapshot stores.temporal.ids stores.temporal.wire temporal.alarm"),
        siblings=True,
        theirs=names("temporalio"),
        not_stdlib=IN_WORKFLOWS,
    ),
    # a query is asked at any time, and the workflow's own time stands still between its tasks
    "temporal.broker.workflow": Rule(
        BASE
        | names("core.* stores.temporal.ids stores.temporal.wire temporal.alarm temporal.broker.*"),
        siblings=True,
        theirs=names("temporalio"),
        not_stdlib=IN_WORKFLOWS - {"time"},
    ),
    "temporal.slots.*": flows(),
    "temporal.fair.*": flows(),
    # the kind of the workflow's own random numbers, which a replay draws again
    "temporal.slots.acquire": replace(
        flows("temporal.slots.*"), not_stdlib=IN_WORKFLOWS - {"random"}
    ),
    "temporal.semaphore": flows("temporal.slots.* temporal.fair.*"),
    "temporal.activity.*": Rule(
        PUBLIC
        | names("config settings core.* client stores.registry temporal.sdk")
        # an acquire that goes on in the next attempt
        | names("locks.acquire locks.requests locks.waiting runtime.port"),
        siblings=True,
        theirs=names("temporalio"),
    ),
    "temporal.worker.*": Rule(
        BASE
        | names("config stores.temporal.ids stores.temporal.client stores.temporal.errors")
        | names("stores.temporal.url temporal.broker.* temporal.sdk temporal.slots.*"),
        siblings=True,
        theirs=names("temporalio"),
    ),
    "temporal.plugin": Rule(
        BASE | names("config stores.temporal.ids temporal.activity.* temporal.worker.*"),
        theirs=names("temporalio"),
    ),
    # the service speaks the stores' own language, for others, so it reaches below the public names
    "server.*": Rule(SERVICE, siblings=True, theirs=HTTP),
    # knows who asks, and nothing of leases
    "server.auth.*": Rule(
        BASE
        | names("clock core.names stores.http.names server.audit server.records.port")
        | names("server.background"),
        siblings=True,
        theirs=names("msgspec"),
    ),
    # signs keys' tokens and cookies
    "server.auth.credentials": Rule(
        BASE | names("clock"),
        theirs=names("itsdangerous msgspec"),
    ),
    # also knows what browsers send
    "server.auth.sessions": Rule(
        BASE
        | names("server.api.problems server.api.responses server.api.routing")
        | names("server.auth.credentials server.auth.keys server.auth.policy server.background")
        | names("server.records.port"),
        theirs=names("msgspec"),
    ),
    # each of these is the only one that knows its library
    "server.front": Rule(SERVICE | names("server.*"), theirs=names("starlette uvicorn")),
    "server.metrics": Rule(SERVICE | names("server.*"), theirs=HTTP | {"prometheus_client"}),
    "server.tracing": Rule(
        SERVICE | names("contrib.otel server.*"), theirs=HTTP | {"opentelemetry"}
    ),
    "server.main": Rule(SERVICE | names("server.*"), theirs=HTTP | {"opentelemetry"}),
    # sees what passes, and knows neither routes nor stores
    "server.activity": Rule(
        BASE
        | names("core.names runtime.notifications runtime.port")
        | names("server.key_changes server.lock_events")
    ),
    # in the command line as well, without a loop
    "server.key_changes": Rule(
        BASE | names("core.names locks.requests server.key_state server.lock_events"),
        not_stdlib=names("asyncio"),
        no_async=True,
    ),
    "server.key_state": Rule(BASE, not_stdlib=names("asyncio"), no_async=True),
    "server.lock_events": Rule(BASE, not_stdlib=names("asyncio"), no_async=True),
    # several stores as one, beneath the service and its routes
    "server.placement.*": Rule(
        BASE
        | names("core.names stores.registry stores.http.names stores.postgres.url stores.redis.url")
        | names(
            "stores.kubernetes.store stores.s3 stores.temporal.url"
        )  # what their URLs leave out
        | names("stores.redact locks.requests runtime.aio runtime.notifications runtime.port")
        | names("server.audit server.auth.api_key server.auth.policy server.background")
        | names("server.records server.records.port"),
        siblings=True,
        theirs=names("msgspec"),
    ),
    # pages know who asks, and nothing of locks
    "server.ui.*": Rule(
        BASE
        | names("stores.http.names server.api.parameters server.api.problems server.api.responses")
        | names("server.api.routing server.api.schemas server.audit server.auth.policy")
        | names("server.auth.sessions server.quotas"),
        siblings=True,
        theirs=HTTP,
    ),
    # what the service remembers lies where leases do, so their addresses and connections are known
    "server.records.*": Rule(
        BASE
        | names("stores.registry stores.redact stores.sqlite.* stores.redis.* stores.postgres.*"),
        siblings=True,
        theirs=names("psycopg"),
    ),
    "__main__": Rule(names("cli")),
    "cli.*": Rule(
        PUBLIC
        | names("process settings temporal testing config stores.http.* stores.waker server.*")
        | names("stores.redact locks.by_id runtime.port core.names"),
        siblings=True,
        theirs=names("click rich msgspec"),
        not_stdlib=names("http"),  # services are asked over the store's connections
    ),
    # a service of its own, and processes that use it as any program would
    "cli.demo.*": Rule(
        PUBLIC
        | names("config cli.exits cli.options cli.output cli.wording testing.leash")
        | names("server.config server.main server.auth.policy server.lock_events"),
        siblings=True,
        theirs=names("click"),
    ),
    "testing.*": Rule(
        PUBLIC
        | names(
            "clock config session lazy core.* stores.aio stores.cas.clock stores.registry stores.port"
            " runtime.*"
        ),
        siblings=True,
        theirs=names("pytest"),
    ),
}


@dataclass(frozen=True, slots=True)
class Import:
    """One imported module."""

    module: str
    line: int


@dataclass(frozen=True, slots=True)
class Module:
    """A source file, read but not run."""

    name: str
    tree: ast.Module = field(repr=False)
    is_package: bool = False

    @property
    def short(self) -> str:
        """The name as `RULES` has it."""
        return shorten(self.name)


def shorten(name: str) -> str:
    return name.removeprefix("dibs").removeprefix(".")


def read_modules(source: Path = SOURCE) -> dict[str, Module]:
    modules = {}
    for path in sorted((source / "dibs").rglob("*.py")):
        parts = list(path.relative_to(source).with_suffix("").parts)
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        modules[name] = Module(name, ast.parse(path.read_text("utf-8"), str(path)), is_package)
    return modules


def imports_of(module: Module, known: Mapping[str, Module]) -> Iterator[Import]:
    """Every import, also in functions and for type checkers; `from p import m` can name the module `p.m`."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            base = origin(module, node)
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield Import(inner if inner in known else base, node.lineno)


def origin(module: Module, node: ast.ImportFrom) -> str:
    """The absolute name of what a `from` statement imports from."""
    if node.level == 0:
        return node.module or ""
    parts = module.name.split(".")
    parts = parts[: len(parts) - node.level + module.is_package]
    return ".".join([*parts, *([node.module] if node.module else [])])


def row_of(short: str) -> str | None:
    """The most specific row of `RULES` for a module."""
    if short in RULES:
        return short
    parts = short.split(".")
    for length in range(len(parts), 0, -1):
        row = ".".join(parts[:length]) + ".*"
        if row in RULES:
            return row
    return None


def matches(short: str, pattern: str) -> bool:
    if pattern.endswith(".*"):
        return short == pattern[:-2] or short.startswith(pattern[:-1])
    return short == pattern


def own_package(short: str, row: str) -> str | None:
    """The package whose modules are a module's own: of `stores.redis.lua` it is `stores.redis`.

    Two modules of `core.*` are siblings; two stores of `stores.*` are strangers.
    """
    if RULES[row].siblings:
        return row
    head = row.removesuffix(".*")
    parts = short.split(".")
    if row.endswith(".*") and len(parts) > head.count(".") + 1:
        return ".".join(parts[: head.count(".") + 2]) + ".*"
    return None


def problems_of(module: Module, known: Mapping[str, Module]) -> list[str]:
    """What in a module is against its row, as lines for a person."""
    row = row_of(module.short)
    if row is None:
        return [f"{module.name}: has no row in RULES: decide its layer"]
    rule, own, found = RULES[row], own_package(module.short, row), []
    for item in imports_of(module, known):
        top = item.module.split(".")[0]
        short = shorten(item.module)
        if top == "dibs":
            allowed = any(matches(short, pattern) for pattern in rule.ours)
            ok = allowed or (own is not None and matches(short, own))
        elif top in sys.stdlib_module_names:
            ok = top not in rule.not_stdlib
        else:
            ok = top in rule.theirs or "*" in rule.theirs
        if not ok:
            found.append(f"{module.name}:{item.line}: imports {item.module} (row {row!r})")
    if rule.no_async:
        found += [
            f"{module.name}:{node.lineno}: awaits (row {row!r})"
            for node in ast.walk(module.tree)
            if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith)
        ]
    return found


def cycles(modules: Mapping[str, Module]) -> list[list[str]]:
    """Groups of modules that import each other, directly or through others.

    All imports count, also in functions and for type checkers, but not those from a package around a module.
    """
    edges = {
        name: {
            each.module
            for each in imports_of(module, modules)
            if each.module in modules and not f"{name}.".startswith(f"{each.module}.")
        }
        for name, module in modules.items()
    }

    def reached_from(start: str) -> set[str]:
        found: set[str] = set()
        new = [start]
        while new:
            fresh = edges[new.pop()] - found
            found |= fresh
            new += fresh
        return found

    reached = {name: reached_from(name) for name in edges}
    groups = {
        tuple(sorted(each for each in found if name in reached[each]))
        for name, found in reached.items()
        if name in found
    }
    return sorted(map(list, groups))
