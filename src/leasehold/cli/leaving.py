"""How the program ends where Temporal's threads run."""

import atexit
import os
import sys
import threading


def leave(code: int) -> int:
    """The exit code; does not come back where Temporal was used.

    Its threads go on while the interpreter is taken apart, which now and then crashes it: the exit
    code would be that of a segmentation fault. So what is to be done at the end is done here, and the
    rest left out.
    """
    if "temporalio.bridge" not in sys.modules:
        return code
    threading._shutdown()  # type: ignore[attr-defined]  # joins threads, and what waits for that
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass  # nobody reads it, or there is none
    os._exit(code)
