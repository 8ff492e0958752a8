"""The NATS store: `nats://`, a bucket of JetStream."""

from dibs.stores.nats.store import NatsStore

__all__ = ["NatsStore"]
