"""Leasehold as a service: an HTTP front without state of its own, over any store."""
