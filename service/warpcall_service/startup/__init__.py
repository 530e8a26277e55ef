"""How the server starts: it listens at once, and serves when its lanes are ready."""
