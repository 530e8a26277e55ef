"""What runs in the worker processes, beside a device. Only this folder imports torch."""
