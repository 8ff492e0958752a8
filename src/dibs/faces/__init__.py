"""The public classes of both worlds: one-line faces over the primitives."""
