"""Several stores behind one service: which directories live where, and how they move.

`rules` and `choice` say where a directory may live, `home` where it does, `mover` moves it while it is idle.
`runtime` is what the rest of the service sees of it.
"""
