"""The etcd store: `etcd://`, over its JSON gateway."""

from dibs.stores.etcd.store import EtcdStore

__all__ = ["EtcdStore"]
