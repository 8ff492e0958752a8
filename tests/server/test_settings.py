"""Settings of the service: where they stand, what is refused, and the page that describes them."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from dibs.cli.demo import MOST, demo
from dibs.cli.serve import serve
from dibs.errors import NotConfigured
from dibs.server.config import VARIABLE, ServerConfig, read_config
from dibs.server.limits import FIXED, Limits
from dibs.server.placement.rules import PlacementSettings
from dibs.server.records import records_for
from tests.pages import DOCS, blocks
from tests.server.world import Served
from tests.servers.certificates import self_signed
from tests.servers.discovery import Discovery

PAGE = "serve.md"
PASSWORD = "hunter2"


def refusal(
    file: str | None = None, options: Mapping[str, Any] | None = None, variable: str = "="
) -> str:
    name, _, value = variable.partition("=")
    with pytest.raises(NotConfigured) as caught:
        read_config(file, dict(options or {}), {VARIABLE + name: value} if name else {})
    assert PASSWORD not in str(caught.value)
    return str(caught.value)


def test_options_come_before_variables_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    file.write_text(
        'leases = "memory://a"\ndrain_time = "5s"\n[limits]\nmax_ttl = "1h"\nwaiters = 7\n'
    )
    environ = {
        "DIBS_SERVER_CONFIG": str(file),
        "DIBS_SERVER_LEASES": "memory://b",
        "DIBS_SERVER_LIMITS__MAX_TTL": "2h",
        "DIBS_SERVER_LIMITS__WAITERS_PER_KEY": "9",
        "DIBS_SERVER_LIMITS__MAX_BATCH": "512",
        "DIBS_SERVER_TRUSTED_PROXIES": "10.0.0.1, 10.1.0.0/16",
        "DIBS_SERVER_ALLOW_PLAIN_HTTP": "true",
        "DIBS_SERVER_METRICS": "false",
        "DIBS_SERVER_LOG_FORMAT": "json",
    }
    config = read_config(None, {}, environ)
    limits = config.limits
    assert (config.leases, config.drain_time) == ("memory://b", 5.0)
    assert (limits.max_ttl, limits.waiters, limits.waiters_per_key) == (7200.0, 7, 9)
    assert config.trusted_proxies == ("10.0.0.1", "10.1.0.0/16")
    assert (config.allow_plain_http, config.metrics, config.log_format) == (True, False, "json")
    assert read_config(None, {"leases": "memory://c"}, environ).leases == "memory://c"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f'laeses = "redis://:{PASSWORD}@x"', "unknown setting laeses. Did you mean leases?"),
        ("port = 80", "unknown setting port. Did you mean listen?"),
        ("xyzzy = 1", "unknown setting xyzzy"),
        ("[limits]\nmax_tll = 5", "[limits] unknown setting max_tll. Did you mean max_ttl?"),
        (
            '[[placement]]\nname = "a"\nurl = "memory://a"\nregoin = "DE"',
            "[placement] unknown setting regoin. Did you mean region?",
        ),
        ("limits = 5", "at `$.limits`"),
        ("placement = 5", "at `$.placement`"),
        ("placement = [5]", "at `$.placement[0]`"),
        ('metrics = "perhaps"', "metrics: give true or false"),
    ],
)
def test_a_file_that_is_wrong(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "server.toml"
    file.write_text(text, "utf-8")
    told = refusal(str(file))
    assert told.startswith(f"{file}: ")
    assert why in told


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("LAESES", "LEASES"),
        ("leases", "LEASES"),
        ("STORE", "LEASES"),
        ("PORT", "LISTEN"),
        ("LIMITS", "LIMITS__MAX_ID"),
        ("LIMIT__MAX_TTL", "LIMITS__MAX_TTL"),
        ("LIMITS__MAX_TLL", "LIMITS__MAX_TTL"),
        ("LIMITS_MAX_TTL", "LIMITS__MAX_TTL"),
        ("CONFIGURATION", "CONFIG"),
        ("XYZZY", None),
        ("PLACEMENT", "PLACEMENT_FRESH"),
    ],
)
def test_a_variable_that_is_unknown(name: str, meant: str | None) -> None:
    more = f". Did you mean {VARIABLE}{meant}?" if meant else ""
    assert refusal(variable=f"{name}={PASSWORD}") == f"unknown setting {VARIABLE}{name}{more}"


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("METRICS", "perhaps", "give true or false"),
        ("DRAIN_DELAY", "-3", "drain_delay is '-3': it can't be negative"),
        ("LIMITS__MIN_TTL", "x", "limits.min_ttl is 'x': write it as"),
        ("LIMITS__WAITERS", "many", "give a whole number"),
        ("LIMITS__MAX_BATCH", "9", "max_batch is told to clients, and can't be changed"),
        ("LOG_FORMAT", "xml", "give one of json, text"),
    ],
)
def test_a_variable_that_is_wrong(name: str, value: str, why: str) -> None:
    assert why in refusal(variable=f"{name}={value}")


@pytest.mark.parametrize(
    "options",
    [
        *({"listen": address} for address in ("0.0.0.0:1", "[::]:1", "x:y")),
        *({"limits": limits} for limits in ({"max_ttl": "never"}, {"spoons": 3}, {"idle_time": 0})),
        *({"limits": limits} for limits in ({"min_ttl": 10, "max_ttl": 5}, {"stall_time": -1})),
        {"limits": {"stream_beat": float("nan")}},
        {"placement": [{"name": "a", "url": "memory://a"}, {"name": "a", "url": "memory://b"}]},
        {"leases": "memory://a", "placement": [{"name": "a", "url": "memory://a"}]},
    ],
    ids=str,
)
def test_options_that_make_no_sense(options: dict[str, Any]) -> None:
    assert refusal(options=options)


def test_variables_of_others_are_left_alone() -> None:
    """Those of the library, and of a Kubernetes Service that is called dibs-server."""
    address = "tcp://10.0.0.1:5327"
    links = {
        "SERVICE_HOST": "10.0.0.1",
        "SERVICE_PORT": "5327",
        "SERVICE_PORT_HTTPS": "5327",
        "PORT": address,
        "PORT_5327_TCP": address,
        "PORT_5327_TCP_PROTO": "tcp",
        "METRICS_PORT": address,
        "METRICS_SERVICE_HOST": "10.0.0.1",
    }
    others = {VARIABLE + name: value for name, value in links.items()}
    others |= {"DIBS_SERVE": "x", "DIBS_TTL": "5s"}
    assert read_config(None, {}, others) == read_config(None, {}, {})


# -- the page ---------------------------------------------------------------------------------------


def rows(section: str) -> list[list[str]]:
    """The cells of a section's table, without its head."""
    text = (DOCS / PAGE).read_text("utf-8").partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^\| (.*) \|$", text, re.MULTILINE)
    return [[cell.strip() for cell in re.split(r" \| ", line)] for line in lines[1:]]


def shown(value: Any, kind: Any) -> str:
    """A default, as the page has it."""
    if value in ("", ()):
        return "none"
    if kind is float:
        return f"{value:,g} s" if value < 1000 else f"{value:,.0f} s"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) else f"`{value}`"


def fields(kind: type[msgspec.Struct]) -> dict[str, str]:
    """All settings, and their defaults as the page has them."""
    return {each.name: shown(each.default, each.type) for each in msgspec.structs.fields(kind)}


def options_of(command: click.Command) -> set[str]:
    return {option for each in command.params for option in each.opts if option.startswith("--")}


def test_every_setting_is_on_the_page() -> None:
    on_page = {key.strip("`"): rest for key, *rest in rows("Settings")}
    wanted = fields(ServerConfig)
    assert on_page.keys() == wanted.keys()
    for key in wanted.keys() - {"placement", "limits"}:  # which are tables
        option = f"--{key.replace('_', '-')}"
        variable, flag, default, meaning = on_page[key]
        assert variable == f"`{VARIABLE}{key.upper()}`"
        assert flag == (f"`{option}`" if option in options_of(serve) else "–"), key
        assert default == wanted[key], key
        assert meaning
    for key in fields(PlacementSettings):
        assert f"`{key}`" in on_page["placement"][-1]


def test_every_limit_is_on_the_page() -> None:
    on_page: dict[str, tuple[str, str]] = {}
    for keys, defaults, meaning in rows("Limits"):
        each = keys.replace("`", "").split(", ")
        values = defaults.split(", ") if len(each) > 1 else [defaults]
        on_page |= {key: (value, meaning) for key, value in zip(each, values, strict=True)}
    wanted = fields(Limits)
    assert on_page.keys() == wanted.keys()
    for key, default in wanted.items():
        value, meaning = on_page[key]
        assert re.fullmatch(rf"{re.escape(default)}( bytes| characters)?", value), key
        assert (key in FIXED) == meaning.endswith("; fixed"), key


def test_every_option_of_the_demo_is_on_the_page() -> None:
    on_page = {option for cell, _ in rows("Try it") for option in re.findall(r"--\w+", cell)}
    assert on_page == options_of(demo)
    assert f"1 to {MOST};" in (DOCS / PAGE).read_text("utf-8")


def test_every_place_of_records_is_on_the_page() -> None:
    for url, _, record, _ in rows("Where leases and records lie"):
        scheme = url.strip("`").partition(":")[0]
        if record.startswith("no"):
            with pytest.raises(NotConfigured, match="cannot keep its records"):
                records_for(f"{scheme}://x")
        else:
            records_for(f"{scheme}:///x.db" if scheme == "sqlite" else f"{scheme}://x/0")


def test_links_of_the_page() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", (DOCS / PAGE).read_text("utf-8"))
    assert len(links) > 5
    assert [each for each in links if not (DOCS / each).exists()] == []


def test_the_file_on_the_page(tmp_path: Path) -> None:
    (toml,) = blocks(PAGE, "toml")
    file = tmp_path / "server.toml"
    file.write_text(toml, "utf-8")
    config = read_config(str(file), {}, {})
    assert (config.drain_delay, config.limits.max_ttl) == (10.0, 3600.0)
    assert config.records_url != config.stores[0].url


@pytest.mark.once
@pytest.mark.multiprocess
def test_the_first_start_on_the_page(tmp_path: Path, start: Callable[..., Served]) -> None:
    """As it stands there, but for the port."""
    self_signed(tmp_path / "tls.crt")
    clean = {k: v for k, v in os.environ.items() if not k.startswith("DIBS_")}
    store = {f"{VARIABLE}LEASES": f"sqlite:///{tmp_path / 'leases.db'}"}
    demonstration, example = blocks(PAGE, "console")
    commands = [shlex.split(line[2:]) for line in example.splitlines() if line.startswith("$ ")]
    *keys, (program, verb, *served) = commands
    said = [
        subprocess.check_output(
            [sys.executable, "-m", *each], env=clean | store, cwd=tmp_path, text=True
        )
        for each in keys
    ]
    assert re.fullmatch(r"dibs_\S+\n", said[0])
    assert said[0].split("_")[1] in said[1]
    assert (program, verb) == ("dibs", "serve")
    served[served.index("0.0.0.0:5327")] = "0.0.0.0:0"
    server = start(*served, **store)
    assert re.fullmatch(r"Listening on https://0\.0\.0\.0:\d+", server.line())
    assert server.end()[0] == 0
    command, first = demonstration.splitlines()
    words = [sys.executable, "-m", *shlex.split(command[2:]), "--for", "0s"]
    assert subprocess.check_output(words, text=True).splitlines()[0] == first


@pytest.mark.once
@pytest.mark.skipif(not shutil.which("kubectl"), reason="there is no kubectl here")
def test_the_first_key_in_a_cluster_on_the_page() -> None:
    text = (DOCS / PAGE).read_text("utf-8")
    (command,) = re.findall(r"^(kubectl run (?:.|\n)*?\}\]\}\}')$", text, re.MULTILINE)
    program, *words = (each for each in shlex.split(command) if each not in ("--rm", "-i"))
    with Discovery() as discovery:
        done = subprocess.run(
            [program, "--server", discovery.url, *words, "--dry-run=client", "-o", "json"],
            env=os.environ | {"KUBECONFIG": os.devnull},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    (container,) = json.loads(done.stdout)["spec"]["containers"]
    assert container["args"][:2] == ["keys", "create"]
    (variable,) = container["env"]
    assert variable["name"] == f"{VARIABLE}LEASES"
    assert variable["valueFrom"]["secretKeyRef"] == {"name": "dibs", "key": "store"}
