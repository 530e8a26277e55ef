"""The kernels of masked softmax and of its gradient."""
