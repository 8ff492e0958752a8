"""Single keys, as they are pressed."""

import os
import select
import sys
import termios
import tty
from collections.abc import Generator
from contextlib import contextmanager


class Keyboard:
    """A terminal that hands over each key at once."""

    def __init__(self, file: int) -> None:
        self._file = file

    def read(self, timeout: float) -> str:
        """The keys pressed by then; empty if there are none. Raises `EOFError` at the end of all."""
        if not select.select([self._file], [], [], timeout)[0]:
            return ""
        pressed = os.read(self._file, 64)
        if not pressed:
            raise EOFError
        return pressed.decode("utf-8", "replace")


@contextmanager
def keyboard() -> Generator[Keyboard]:
    """The keyboard of stdin's terminal, which is as it was afterwards. Ctrl-C still interrupts."""
    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)
    tty.setcbreak(file)
    try:
        yield Keyboard(file)
    finally:
        termios.tcsetattr(file, termios.TCSADRAIN, before)
