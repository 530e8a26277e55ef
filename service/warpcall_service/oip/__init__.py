"""The Open Inference Protocol: each op is a model."""
