"""Transposition of tiles, shared by permute and transpose-add."""
