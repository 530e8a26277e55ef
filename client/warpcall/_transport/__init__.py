"""Transports: plain sockets for plain HTTP, httpcore for TLS and proxies."""
