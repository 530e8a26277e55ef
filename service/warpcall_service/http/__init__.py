"""The HTTP connection: receive a request, identify its caller, send a response, bound the time of both."""
