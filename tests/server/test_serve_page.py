"""The page about running a server: it leaves no setting out, and its examples do what they say."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from dibs.cli.demo import MOST, demo
from dibs.cli.serve import serve
from dibs.server.config import VARIABLE, ServerConfig, read_config
from dibs.server.limits import FIXED, Limits
from dibs.server.placement.rules import PlacementSettings
from dibs.server.records import records_for
from tests.pages import DOCS, blocks
from tests.server.test_serve import Served
from tests.servers.certificates import self_signed
from tests.servers.discovery import Discovery

PAGE = "serve.md"
RECORDS = "Where leases and records lie"
ELSEWHERE = {"placement", "limits"}
"""They are tables, and told as such."""


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
    found = msgspec.structs.fields(kind)
    return {each.name: shown(each.default, each.type) for each in found}


def options(command: click.Command) -> set[str]:
    return {option for each in command.params for option in each.opts if option.startswith("--")}


# -- tables -----------------------------------------------------------------------------------------


def test_every_setting_is_told() -> None:
    told = {key.strip("`"): rest for key, *rest in rows("Settings")}
    wanted = fields(ServerConfig)
    assert told.keys() == wanted.keys()
    for key in wanted.keys() - ELSEWHERE:
        option = f"--{key.replace('_', '-')}"
        variable, flag, default, meaning = told[key]
        assert variable == f"`{VARIABLE}{key.upper()}`"
        assert flag == (f"`{option}`" if option in options(serve) else "–"), key
        assert default == wanted[key], key
        assert meaning
    for key in fields(PlacementSettings):
        assert f"`{key}`" in told["placement"][-1]


def test_every_limit_is_told() -> None:
    told: dict[str, tuple[str, str]] = {}
    for keys, defaults, meaning in rows("Limits"):
        each = keys.replace("`", "").split(", ")
        values = defaults.split(", ") if len(each) > 1 else [defaults]
        told |= {key: (value, meaning) for key, value in zip(each, values, strict=True)}
    wanted = fields(Limits)
    assert told.keys() == wanted.keys()
    for key, default in wanted.items():
        value, meaning = told[key]
        assert re.fullmatch(rf"{re.escape(default)}( bytes| characters)?", value), key
        assert (key in FIXED) == meaning.endswith("; fixed"), key


def test_every_option_of_the_demo_is_told() -> None:
    told = {option for cell, _ in rows("Try it") for option in re.findall(r"--\w+", cell)}
    assert told == options(demo)
    assert f"1 to {MOST};" in (DOCS / PAGE).read_text("utf-8")


def test_every_place_of_records_is_told() -> None:
    cells = {url.strip("`").partition(":")[0]: record for url, _, record, _ in rows(RECORDS)}
    for scheme, record in cells.items():
        if record.startswith("no"):
            with pytest.raises(Exception, match="cannot keep its records"):
                records_for(f"{scheme}://x")
        else:
            records_for(f"{scheme}:///x.db" if scheme == "sqlite" else f"{scheme}://x/0")


def test_what_it_links_to_is_there() -> None:
    text = (DOCS / PAGE).read_text("utf-8")
    links = re.findall(r"\]\(([^)#]+)\)", text)
    assert len(links) > 5
    assert [each for each in links if not (DOCS / each).exists()] == []


# -- examples ---------------------------------------------------------------------------------------


@pytest.fixture
def started() -> Iterator[list[Served]]:
    found: list[Served] = []
    yield found
    for each in found:
        if each.process.poll() is None:
            each.process.kill()
            each.process.communicate()


def test_the_file_of_the_example(tmp_path: Path) -> None:
    (toml,) = blocks(PAGE, "toml")
    file = tmp_path / "server.toml"
    file.write_text(toml, "utf-8")
    config = read_config(str(file), {}, {})
    assert (config.drain_delay, config.limits.max_ttl) == (10.0, 3600.0)
    assert config.records_url != config.stores[0].url


@pytest.mark.once
@pytest.mark.multiprocess
def test_the_first_start(tmp_path: Path, started: list[Served]) -> None:
    """As it stands there, but for the port."""
    self_signed(tmp_path / "tls.crt")
    clean = {k: v for k, v in os.environ.items() if not k.startswith("DIBS_")}
    store = {f"{VARIABLE}LEASES": f"sqlite:///{tmp_path / 'leases.db'}"}
    _, example = blocks(PAGE, "console")
    commands = [shlex.split(line[2:]) for line in example.splitlines() if line.startswith("$ ")]
    *keys, (program, verb, *served) = commands
    said = [
        subprocess.run(
            [sys.executable, "-m", *each],
            env=clean | store,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
        for each in keys
    ]
    assert re.fullmatch(r"dibs_\S+\n", said[0])
    assert said[0].split("_")[1] in said[1]
    assert (program, verb) == ("dibs", "serve")
    served[served.index("0.0.0.0:5327")] = "0.0.0.0:0"
    started.append(server := Served(tmp_path, *served, **store))
    assert re.fullmatch(r"Listening on https://0\.0\.0\.0:\d+", server.line())
    assert server.end()[0] == 0


@pytest.mark.once
@pytest.mark.multiprocess
def test_the_demo_says_so() -> None:
    example, _ = blocks(PAGE, "console")
    command, told = example.splitlines()
    with subprocess.Popen(
        [sys.executable, "-m", *shlex.split(command[2:]), "--for", "0s"],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().rstrip("\n") == told
        process.stdout.read()


@pytest.mark.once
@pytest.mark.skipif(not shutil.which("kubectl"), reason="there is no kubectl here")
def test_the_first_key_in_a_cluster() -> None:
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
