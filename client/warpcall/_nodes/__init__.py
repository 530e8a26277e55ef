"""How a client that was given one address, or several, chooses a server for each request."""
