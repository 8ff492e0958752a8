"""Notifications on their way from the store to the tasks and threads that wait for them."""

from collections.abc import Callable
from typing import Protocol

from dibs.model import Notification
from dibs.runtime.port import Signal

MAX_EARLY = 1024
"""Notifications that are kept for waiters who have not begun to wait."""


class Receiver(Protocol):
    """Takes notifications of the store. To see them on their way, replace the receiver of a runtime."""

    def deliver(self, notification: Notification) -> None:
        """A notification has come."""

    def recheck(self) -> None:
        """Notifications may have been missed: all waiters should ask again."""


class NotificationRouter:
    """Delivers each notification to the signal of the key and id that it is for.

    A notification can come before the answer that makes its waiter wait, so what nobody expects yet is
    kept for a while. Every step is a single operation on a dict: any thread may deliver.
    """

    def __init__(self, revoked: Callable[[Notification], None]) -> None:
        self._waiting: dict[tuple[bytes, str], Signal] = {}
        self._early: dict[tuple[bytes, str], Notification] = {}
        self._revoked = revoked

    def expect(self, key: bytes, lease: str, signal: Signal) -> None:
        """Set `signal` to the next notification for that key and fingerprint, also if it is here already."""
        self._waiting[key, lease] = signal
        early = self._early.pop((key, lease), None)
        if early is not None:
            self.deliver(early)

    def pause(self, key: bytes, lease: str) -> bool:
        """Keep what comes, until it is expected again. False if a notification has come just now."""
        return self._waiting.pop((key, lease), None) is not None

    def forget(self, key: bytes, lease: str) -> None:
        """Nobody waits for it any more."""
        self._waiting.pop((key, lease), None)
        self._early.pop((key, lease), None)

    def deliver(self, notification: Notification) -> None:
        """Bring a notification to its waiter, or keep it; a revocation goes to the keeper."""
        if notification.event == "revoked":
            self._revoked(notification)
            return
        signal = self._waiting.pop((notification.key, notification.lease), None)
        if signal is not None:
            signal.set(notification)
            return
        self._early[notification.key, notification.lease] = notification
        while len(self._early) > MAX_EARLY:
            self._early.pop(next(iter(self._early)), None)

    def recheck(self) -> None:
        """Have all waiters ask again."""
        for waiter in list(self._waiting):
            signal = self._waiting.pop(waiter, None)
            if signal is not None:
                signal.set(None)


class ForwardingReceiver:
    """Passes everything on to another receiver: a base for what looks at notifications on their way."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver

    def deliver(self, notification: Notification) -> None:
        self._receiver.deliver(notification)

    def recheck(self) -> None:
        self._receiver.recheck()
