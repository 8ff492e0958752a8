"""redis:// keeps leases in Redis or Valkey: one server, Sentinel, or a Cluster."""

from dibs.backends.redis.store import RedisStore

__all__ = ["RedisStore"]
