"""What runs in the worker processes, beside a device."""
