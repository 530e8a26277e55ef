"""How requests reach a server: plain sockets, or httpcore for TLS and proxies."""
