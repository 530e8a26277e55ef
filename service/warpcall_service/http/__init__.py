"""HTTP connections: receive requests, identify callers, send responses, bound the time of each."""
