"""How the server starts a process, what that does first, and how two processes wait for each other."""
