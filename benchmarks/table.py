"""The table, for people, and the same as JSON."""

import json
import os
import platform
import sqlite3
import sys
from dataclasses import asdict
from importlib.metadata import version
from math import isnan
from pathlib import Path
from typing import Any

from benchmarks.place import file_system
from benchmarks.results import Results, Row

BEGIN, END = "<!-- the table: --save writes it -->", "<!-- the end of the table -->"
PEERS = (
    *("grelmicro", "filelock", "portalocker", "fasteners", "uvloop"),
    *("aetcd", "etcd-client-py"),
)


def machine(folder: Path) -> dict[str, Any]:
    """What the figures were taken on."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "cpu": _cpu(),
        "cpus": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "file_system": file_system(folder),
        "sqlite": sqlite3.sqlite_version,
        "peers": {name: version(name) for name in PEERS},
        "load_before": os.getloadavg()[0],
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def told(about: dict[str, Any]) -> str:
    """What it was run on, and with which command, in a few lines."""
    peers = ", ".join(f"{name} {number}" for name, number in about["peers"].items())
    return (
        f"$ {command()}\n"
        f"{about['rounds']} rounds in {about['took']} s on Python {about['python']}, "
        f"{about['system']}, {about['cpus']} × {about['cpu']}, {about['file_system']}, "
        f"SQLite {about['sqlite']}\n"
        f"{peers}; load average {about['load_before']:.1f} before the run, "
        f"{about['load_after']:.1f} after it"
    )


def command() -> str:
    """How this run was started."""
    return " ".join(["python", "-m", "benchmarks", *sys.argv[1:]])


def save(text: str) -> None:
    """Replace the table in the README of this folder."""
    readme = Path(__file__).with_name("README.md")
    before, _, rest = readme.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    readme.write_text(f"{before}{BEGIN}\n```text\n{text}\n```\n{END}{after}")


def as_text(results: Results) -> str:
    """Aligned, section by section."""
    lines: list[str] = []
    last = ("", "")
    for row in results:
        if (row.section, row.setting) != last:
            last = row.section, row.setting
            lines += ["", f"{row.section}/{row.setting}"]
        lines.append(_line(results, row))
    return "\n".join(lines)


def _line(results: Results, row: Row) -> str:
    low, high = row.spread
    ratio = results.of(row)
    multiple = "" if ratio is None else f"{ratio:8.3g} × {row.baseline}"
    spread = f"{shown(low)} … {shown(high)}" if len(row.values) > 1 else ""
    value = f"{shown(row.median):>10} {row.unit:<29}"
    return f"  {row.contestant:<38} {value} {spread:<23} {multiple} {row.note}".rstrip()


def shown(value: float) -> str:
    """Three figures, however large."""
    if value == 0 or isnan(value):
        return "0" if value == 0 else "–"
    if value >= 1000:
        digits = len(str(int(value))) - 3
        return f"{round(value / 10**digits) * 10**digits:,}"
    return f"{value:.3g}"


def as_json(about: dict[str, Any], results: Results, verdicts: list[dict[str, Any]]) -> str:
    """Every round's value, and what follows from it."""
    rows = [
        asdict(row) | {"median": row.median, "multiple_of_baseline": results.of(row)}
        for row in results
    ]
    all_of_it = {"command": command(), "about": about, "rows": rows, "acceptance": verdicts}
    return json.dumps(all_of_it, indent=2)
