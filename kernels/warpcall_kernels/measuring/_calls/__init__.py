"""Calls of an implementation: their inputs, what their outputs must be, and how they are compared."""
