"""The devices on which a worker runs calls: a GPU, or the CPU with the torch references. This folder
and `worker` import torch; no other does."""
