"""redis:// keeps leases in Redis or Valkey: one server, Sentinel, or a Cluster."""

from dibs.stores.redis.store import RedisStore

__all__ = ["RedisStore"]
