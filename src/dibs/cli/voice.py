"""What the command line says of itself: on stderr, as stdout is the command's or the answer's."""

import sys
from typing import Any

from dibs.cli.wording import printable
from dibs.errors import DibsError


class Voice:
    """Plain lines for people, or with `--json` one object a line."""

    def __init__(self, as_json: bool = False) -> None:
        self._as_json = as_json

    @property
    def is_live(self) -> bool:
        """Whether somebody watches: a terminal, where lines can be redrawn."""
        return not self._as_json and sys.stderr is not None and sys.stderr.isatty()

    def say(self, event: str, text: str, **fields: Any) -> None:
        """Tell what happened. A stderr that nobody reads stops nothing."""
        line = "dibs: " + "\n".join(map(printable, text.split("\n")))
        if self._as_json:
            import json

            line = json.dumps({"event": event, "message": text, **fields})
        self._write(line + "\n")

    def fail(self, error: DibsError, code: int) -> None:
        """Tell what went wrong and who is in the way."""
        fields: dict[str, Any] = {}
        if self._as_json:
            from dibs.cli.output import holder_shape, name_shape

            fields = name_shape(error.key) if error.key else {}
            fields["holders"] = [holder_shape(holder) for holder in error.holders]
            fields["ahead"] = error.position
            fields["retry_after"] = error.retry_after
        name = type(error).__name__
        self.say("error", str(error) or name, error=name, exit_code=code, **fields)

    def redraw(self, line: str) -> None:
        """Put a line in the place of the one shown before; an empty one clears it."""
        self._write(f"\r\x1b[K{line}")

    def _write(self, text: str) -> None:
        try:
            if sys.stderr is not None:
                sys.stderr.write(text)
                sys.stderr.flush()
        except (OSError, ValueError):
            pass  # it is closed
