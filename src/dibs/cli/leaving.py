"""How the program ends: in good time, whatever its store does, and where Temporal's threads run."""

import atexit
import os
import select
import signal
import sys
from types import FrameType

ENDS = 5.0
"""So long the very end may take, in seconds: what is registered for it has limits of its own."""


def leave(code: int, interrupt: KeyboardInterrupt | None = None) -> int:
    """Return the exit code; does not return after an interrupt, or if Temporal was used.

    An interrupt (SIGINT) ends us by that signal, as a shell expects: else it goes on with its script.

    Temporal's threads go on while the interpreter is taken apart, which now and then crashes it: the exit
    code would be that of a segmentation fault. So what is to be done at the end is done here, and the
    rest left out. All threads of ours are daemons: none is waited for.
    """
    if interrupt is not None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second one ends us at once
    elif "temporalio" not in sys.modules:
        return code
    leave_within(ENDS, code)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass  # nobody reads it, or there is none
    if interrupt is not None:
        os.kill(0 if getattr(interrupt, "everyone", False) else os.getpid(), signal.SIGINT)
    os._exit(code)  # also if the signal does nothing, as for process 1


def leave_within(seconds: float, code: int) -> None:
    """From here on the program ends within that time, with this exit code, whatever happens.

    Only the main thread can say so, and only the first that says so counts.
    """
    if signal.getitimer(signal.ITIMER_REAL)[0]:
        return

    def end(signum: int, frame: FrameType | None) -> None:
        try:
            if select.select([], [2], [], 0)[1]:  # or we would wait for somebody to read it
                os.write(2, _GIVEN_UP.format(seconds).encode())
        finally:
            os._exit(code)

    signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)


_GIVEN_UP = (
    "dibs: could not close the store within {:.3g} s: a queue position or a lease there expires by "
    "itself\n"
)
