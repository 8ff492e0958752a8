"""Settings of the service: where they stand, what is refused, and the page that describes them."""

import re
import shlex
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from dibs.cli.demo import MOST, demo
from dibs.cli.demo.show import processes
from dibs.cli.serve import serve
from dibs.errors import NotConfigured
from dibs.server.config import VARIABLE, ServerConfig, read_config
from dibs.server.limits import FIXED, Limits
from dibs.server.placement.rules import PlacementSettings
from tests.cli.processes import Main
from tests.pages import DOCS, blocks
from tests.server.world import Patch

PAGE, START = "server-settings.md", "serve.md"
PASSWORD = "hunter2"


def refusal(file: str | None = None, variable: str = "", **options: Any) -> str:
    name, _, value = variable.partition("=")
    with pytest.raises(NotConfigured) as caught:
        read_config(file, options, {VARIABLE + name: value} if name else {})
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


def test_what_is_refused(tmp_path: Path) -> None:
    """The message suggests the closest match, and contains no value of what is misspelt."""
    file = tmp_path / "server.toml"
    for text, why in (
        (f'laeses = "redis://:{PASSWORD}@x"', "unknown setting laeses. Did you mean leases?"),
        ("port = 80", "unknown setting port. Did you mean listen?"),
        ("[limits]\nmax_tll = 5", "[limits] unknown setting max_tll. Did you mean max_ttl?"),
        ("placement = [5]", "at `$.placement[0]`"),
        ('metrics = "perhaps"', "metrics: give true or false"),
    ):
        file.write_text(text, "utf-8")
        told = refusal(str(file))
        assert told.startswith(f"{file}: ")
        assert why in told
    for name, meant in (
        *(("LAESES", "LEASES"), ("leases", "LEASES"), ("STORE", "LEASES"), ("PORT", "LISTEN")),
        *(("LIMITS_MAX_TTL", "LIMITS__MAX_TTL"), ("CONFIGURATION", "CONFIG")),
    ):
        told = refusal(variable=f"{name}={PASSWORD}")
        assert told == f"unknown setting {VARIABLE}{name}. Did you mean {VARIABLE}{meant}?"
    for variable, why in (
        ("DRAIN_DELAY=-3", "drain_delay is '-3': it can't be negative"),
        ("LIMITS__WAITERS=many", "give a whole number"),
        ("LIMITS__MAX_BATCH=9", "max_batch is part of the protocol, so it cannot be changed"),
        ("LOG_FORMAT=xml", "give one of json, text"),
    ):
        assert why in refusal(variable=variable)
    assert refusal(listen="[::]:1")
    for limits in ({"idle_time": 0}, {"min_ttl": 10, "max_ttl": 5}):
        assert refusal(limits=limits)
    one, other = ({"name": "a", "url": f"memory://{name}"} for name in "ab")
    assert refusal(placement=[one, other])
    assert refusal(placement=[one], leases="memory://a")


def test_variables_of_others_are_left_alone() -> None:
    """Those of the library, and of a Kubernetes Service that is called dibs-server."""
    address = "tcp://10.0.0.1:5327"
    others = {
        "DIBS_SERVER_SERVICE_PORT_HTTPS": "5327",
        "DIBS_SERVER_PORT": address,
        "DIBS_SERVER_PORT_5327_TCP_PROTO": "tcp",
        "DIBS_SERVER_METRICS_PORT": address,
        "DIBS_SERVER_METRICS_SERVICE_HOST": "10.0.0.1",
        "DIBS_SERVE": "x",
    }
    assert read_config(None, {}, others) == read_config(None, {}, {})


def rows(section: str, page: str = PAGE) -> list[list[str]]:
    """The cells of a section's table, without its head."""
    text = (DOCS / page).read_text("utf-8").partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return [line.split(" | ") for line in re.findall(r"^\| (.*) \|$", text, re.MULTILINE)[1:]]


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
    options = {option for cell, _ in rows("Try it", START) for option in re.findall(r"--\w+", cell)}
    assert options == options_of(demo)
    assert f"1 to {MOST};" in (DOCS / START).read_text("utf-8")


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


def test_the_file_on_the_page(tmp_path: Path) -> None:
    (toml,) = blocks(PAGE, "toml")
    file = tmp_path / "server.toml"
    file.write_text(toml, "utf-8")
    config = read_config(str(file), {}, {})
    assert (config.drain_delay, config.limits.max_ttl) == (10.0, 3600.0)
    assert config.records_url != config.stores[0].url


def test_the_first_start_on_the_page(
    tmp_path: Path, monkeypatch: Patch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(f"{VARIABLE}LEASES", f"sqlite:///{tmp_path / 'leases.db'}")
    demonstration, example = blocks(START, "console")
    commands = [shlex.split(each[2:]) for each in example.splitlines() if each.startswith("$ ")]
    create, listing, (program, verb, *served) = commands
    dibs = Main(capsys)
    made, listed = dibs(*create[1:]), dibs(*listing[1:])
    assert re.fullmatch(r"dibs_\S+\n", made.out)
    assert made.out.split("_")[1] in listed.out
    assert (program, verb) == ("dibs", serve.name)
    serve.make_context(verb, served)
    command, first = demonstration.splitlines()
    workers = demo.make_context("demo", []).params["workers"]
    count = len([*processes(workers)])
    assert command == "$ dibs demo"
    assert first == f"Started a lock service, and {workers} workers in {count} processes."
