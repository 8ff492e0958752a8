"""HTTP/1.1 connections in an event loop, for every store that is reached over HTTP."""
