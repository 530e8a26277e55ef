"""Implementations that run in other processes, because their code was uploaded."""
