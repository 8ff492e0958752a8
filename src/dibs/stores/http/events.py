"""Reads server-sent events as their bytes come."""

MAX_EVENT = 1 << 20
"""More than that is no event of the service's, in bytes."""


class Events:
    """Makes events of bytes: pairs of a kind and its data. Comments are signs of life, and no events."""

    def __init__(self) -> None:
        self.last_id = ""
        """Of the last event that is complete and has one: whoever comes again goes on there."""
        self._id = ""
        self._rest = b""
        self._kind = ""
        self._data: list[str] = []

    def feed(self, data: bytes) -> list[tuple[str, str]]:
        """The events that are complete now. Raises `ValueError` for what is too large or no UTF-8."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_EVENT:
            raise ValueError("an event is too large")
        found = []
        for line in lines:
            text = line.removesuffix(b"\r").decode()
            if text:
                self._take(text)
            elif self._data:
                found.append((self._kind or "message", "\n".join(self._data)))
            if not text:
                self._kind, self._data, self.last_id = "", [], self._id
        return found

    def _take(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._kind = value
        elif name == "data":
            self._data.append(value)
        elif name == "id":
            self._id = value
