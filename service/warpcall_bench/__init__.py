"""The benchmark platform: an extension of the server that measures kernels, with uploads and pages."""
