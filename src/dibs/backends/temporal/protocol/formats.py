"""Whoever is older than what it is told says so, and does nothing: one rule for all that is said and kept."""


def too_new(what: str, given: int, whose: str, known: int) -> str | None:
    """Why what is of a later release's format is refused, and whose is older; None if it is known."""
    if given <= known:
        return None
    return f"{what} is of format {given}, and {whose} knows {known}: update that first"
