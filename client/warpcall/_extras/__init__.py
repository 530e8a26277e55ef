"""What connects the SDK to other libraries: autograd of torch, pandas and notebooks."""
