"""What a hand-off is made of: an acquire that answers with the release."""

from collections.abc import Awaitable, Callable

type Release = Callable[[], Awaitable[object]]
type Grab = Callable[[], Awaitable[Release]]
type BlockingGrab = Callable[[], Callable[[], object]]
