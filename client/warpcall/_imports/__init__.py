"""The command `import`: problems and implementations of KernelBench and of gpu-mode."""
