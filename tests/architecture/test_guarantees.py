"""Every promise in docs/proofs.md names a test that is there."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("tests", "src/dibs/testing/conformance")
DEFINED = re.compile(r"^\s*(?:async )?def (test_\w+)\(", re.MULTILINE)


def defined_tests() -> set[str]:
    files = [path for place in PLACES for path in (ROOT / place).rglob("*.py")]
    return {name for path in files for name in DEFINED.findall(path.read_text())}


def test_every_test_that_a_guarantee_names_is_there() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs/proofs.md").read_text()))
    assert len(named) > 20
    assert named - defined_tests() == set()
