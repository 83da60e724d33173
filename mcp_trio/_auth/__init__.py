"""Authorization (OAuth 2.1): what clients, protected servers and authorization servers share."""
