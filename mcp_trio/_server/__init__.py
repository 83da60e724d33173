"""The server role: tools, resources and prompts, and serving them over every transport."""
