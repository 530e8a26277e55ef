"""Boards: who leads in the cases of an op on a device."""
