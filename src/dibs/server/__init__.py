"""Dibs as a service: an HTTP front over any store, or several; no lease depends on one server of it."""
