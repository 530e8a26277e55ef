"""Verified kernels: only the compiled kernels of an author meet the clock, none of their host code.

A process in the sandbox without a GPU runs the author's code, compiles the kernels and describes the
launches of one case as a `Plan`. A second process, which runs our code only, carries the plan out on our
buffers. docs/verified-kernels.md says what this proves.
"""
