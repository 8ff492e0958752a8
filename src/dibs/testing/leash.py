"""No worker outlives its supervisor, however that one ends."""

import os
import signal
import sys
import threading

_PR_SET_PDEATHSIG = 1


def hold_to(parent: int) -> None:
    """Have this process ended with `parent`, and asked to end (TERM) when standard input closes.

    On Linux the kernel kills it, also while it is stopped. Elsewhere a stopped one is continued, as
    its process group is orphaned, and then finds that its input is closed.
    """
    if sys.platform == "linux":
        _die_with_parent()
    if os.getppid() != parent:
        sys.exit(1)  # it ended before we asked the kernel
    main = threading.main_thread().ident
    assert main is not None
    threading.Thread(target=_wait_for_the_end, args=(main,), name="leash", daemon=True).start()


def _die_with_parent() -> None:
    try:
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        pass  # the end of standard input shows it too, unless we are stopped


def _wait_for_the_end(main: int) -> None:
    while os.read(0, 4096):
        pass
    signal.pthread_kill(main, signal.SIGTERM)
