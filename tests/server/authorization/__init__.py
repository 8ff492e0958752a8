"""Who may call what: a matrix over the server's own table of routes, so that no route can be left out.

Each route is asked for without a key, with keys that are good for nothing (bad, revoked, expired, and tokens
of those), and with a key of each scope for each of several directories. What comes of it is held against
what the route says that it needs, and what no answer may tell is looked for in every answer.
"""
