"""Who shares a thing, so that it ends once: with the last of them."""


class _Page:
    """Who was on the roll at one time, and the next page once there is one."""

    __slots__ = ("members", "next")

    def __init__(self, members: frozenset[int]) -> None:
        self.members = members
        self.next: dict[None, _Page] = {}


class Roll:
    """Who is in; any thread may join and leave, and the garbage collector in the middle of that.

    Without a lock, which the collector could find taken by the very thread that it interrupts: a change
    is one operation, which puts a page behind the newest one, or fails and is tried again. Joining or
    leaving twice is doing it once, so whoever was interrupted may simply do it again.
    """

    __slots__ = ("_page",)

    def __init__(self, first: int) -> None:
        self._page = _Page(frozenset((first,)))

    def __len__(self) -> int:
        return len(self._newest().members)

    def join(self, member: int) -> bool:
        """Come in; False if the last one has left, after which nobody can."""
        while members := (page := self._newest()).members:
            if self._follows(page, members | {member}):
                return True
        return False

    def leave(self, member: int) -> None:
        """Be out."""
        while member in (page := self._newest()).members:
            if self._follows(page, page.members - {member}):
                return

    def _follows(self, page: _Page, members: frozenset[int]) -> bool:
        """Write the next page; False if somebody else was first."""
        written = _Page(members)
        if page.next.setdefault(None, written) is not written:
            return False
        self._page = written
        return True

    def _newest(self) -> _Page:
        page = self._page
        while (later := page.next.get(None)) is not None:
            page = later
        return page
