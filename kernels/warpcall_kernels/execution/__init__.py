"""Calls implementations of an op, in this process or in another one: inputs, outputs, clocks."""
