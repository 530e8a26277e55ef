"""The Open Inference Protocol over gRPC: each request becomes one of HTTP, for the same application."""
