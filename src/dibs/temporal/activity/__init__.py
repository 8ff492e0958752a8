"""`@needs_lock`: a lease for an activity, taken where it runs."""
