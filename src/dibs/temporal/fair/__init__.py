"""Fair mode: the workflow's side of a broker."""
