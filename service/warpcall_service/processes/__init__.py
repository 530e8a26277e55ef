"""Code for the processes that the server starts: their log, and their end with the server."""
