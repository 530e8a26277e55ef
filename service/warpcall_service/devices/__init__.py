"""How a worker runs calls on a GPU, or on the CPU with the torch references.

This folder and `worker` import torch; no other does.
"""
