"""Telling a task manager that what it has started is under way."""


def announce(ready: object) -> None:
    """Call a function, set an event's flag or a future's result, whichever `ready` is; None is nobody.

    Raises `TypeError` for anything else.
    """
    if ready is None:
        return
    if callable(ready):
        ready()
    elif hasattr(ready, "set_result"):
        if not ready.done():  # type: ignore[attr-defined]
            ready.set_result(None)
    elif hasattr(ready, "set"):
        ready.set()
    else:
        raise TypeError(f"ready is {ready!r}: give a function, an event or a future")
