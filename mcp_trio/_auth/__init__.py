"""Authorization (OAuth 2.1) of clients, protected servers and authorization servers."""
