"""Writes the vectors that every store replays, from the ledger in Python.

    python -m tests.core.write_vectors

To be run again when the ledger's answers change on purpose, or to add a plan: see `NEW` in `plans.py`.
The last 60 plans were drawn by chance, once.
"""

import json
from pathlib import Path
from typing import Any

from dibs.core import codec
from dibs.testing import ManualClock
from dibs.testing.conformance import vectors
from tests.core.plans import VECTORS
from tests.stores.differential import Reference

TARGET = Path(vectors.__file__).with_name("vectors.jsonl")


def written(plan: list[Any]) -> str:
    """A line: one plan, with what the ledger answers to it."""
    reference = Reference(ManualClock())
    steps = [_step(reference, step) for step in plan]
    return json.dumps({"steps": steps}, separators=(",", ":"))


def _step(reference: Reference, step: Any) -> dict[str, Any]:
    if isinstance(step, float):
        reference.time.advance(step)
        return {"wait": step}
    if isinstance(step, int):
        reference.time.step_stamp(step / 1e6)
        return {"wall": step / 1e6}
    replies, notifications = reference.apply(step)
    return {
        "batch": [[each.key.hex(), codec.encode(each)] for each in step],
        "replies": [codec.encode(each) for each in replies],
        "notifications": [
            [n.key.hex(), n.inbox, codec.encode(n)] for n in notifications if n.inbox
        ],
    }


def main() -> None:
    lines = [written(plan) for plan in VECTORS]
    TARGET.write_text("\n".join(lines) + "\n")
    print(f"{len(lines)} plans, {TARGET.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
