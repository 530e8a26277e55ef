"""Compile reports in the SDK and on the command line."""
