"""The Kubernetes store: `kubernetes://`, in Lease objects."""

from dibs.stores.kubernetes.store import KubernetesStore

__all__ = ["KubernetesStore"]
