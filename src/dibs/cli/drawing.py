"""Whether a terminal is drawn upon: only where rich is installed, which comes with `cli` alone."""

import sys
from importlib.util import find_spec


def has_rich() -> bool:
    """Whoever has click for another reason (uvicorn brings it) has a command line without drawings."""
    return find_spec("rich") is not None


def draws() -> bool:
    """Whether stdout is a terminal, and there is something to draw with; else lines with tabs are for it."""
    return sys.stdout.isatty() and has_rich()
