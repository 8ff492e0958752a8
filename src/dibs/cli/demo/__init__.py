"""`dibs demo`: a lock service to look at, with workers that use it as real ones do."""
