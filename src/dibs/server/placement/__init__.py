"""Several stores behind one service: which directories live where, and how they move."""
