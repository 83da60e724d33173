"""A server over HTTP: the sessions, the application, and the ways to serve it."""
