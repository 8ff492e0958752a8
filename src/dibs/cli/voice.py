"""Messages of the command line: on stderr, as stdout belongs to the command or the result."""

import sys
from typing import Any

from dibs.cli.wording import printable
from dibs.errors import DibsError


class Voice:
    """Prints lines of text, or one JSON object a line. `quiet`: only errors."""

    def __init__(self, as_json: bool = False, *, quiet: bool = False) -> None:
        self.as_json = as_json
        self._quiet = quiet

    @property
    def is_live(self) -> bool:
        """Whether stderr is a terminal, where lines can be redrawn."""
        if self.as_json or self._quiet:
            return False
        return sys.stderr is not None and sys.stderr.isatty()

    def say(self, event: str, text: str, **fields: Any) -> None:
        """Print a message. A closed stderr is ignored."""
        if self._quiet and event not in ("error", "lost"):
            return
        line = "dibs: " + "\n".join(map(printable, text.split("\n")))
        if self.as_json:
            import json

            line = json.dumps({"event": event, "message": text, **fields})
        self._write(line + "\n")

    def fail(self, error: DibsError, code: int) -> None:
        """Print an error, with the holders as JSON fields."""
        fields: dict[str, Any] = {}
        if self.as_json:
            from dibs.cli.output import holder_shape, name_shape

            fields = name_shape(error.key) if error.key else {}
            fields["holders"] = [holder_shape(holder) for holder in error.holders]
            fields["ahead"] = error.position
            fields["retry_after"] = error.retry_after
        name = type(error).__name__
        self.say("error", str(error) or name, error=name, exit_code=code, **fields)

    def redraw(self, line: str) -> None:
        """Replace the line shown before; an empty one clears it."""
        self._write(f"\r\x1b[K{line}")

    def _write(self, text: str) -> None:
        try:
            if sys.stderr is not None:
                sys.stderr.write(text)
                sys.stderr.flush()
        except (OSError, ValueError):
            pass  # it is closed
