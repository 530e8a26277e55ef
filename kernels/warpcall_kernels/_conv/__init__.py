"""The kernels of lightweight convolution and of its gradients."""
