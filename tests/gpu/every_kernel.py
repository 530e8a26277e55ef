"""Runs each op's small cases once, and nothing else: what compute-sanitizer watches.

    compute-sanitizer --tool memcheck --error-exitcode 1 python -m tests.gpu.every_kernel

Set PYTORCH_NO_CUDA_MEMORY_CACHING=1, so that each tensor is an allocation of its own.
"""

from __future__ import annotations

import torch

from warpcall_kernels import ops


def main() -> None:
    """Call, wait, and say how many calls there were."""
    calls = 0
    for op in ops().values():
        for case in op.cases:
            if case.size == "small":
                op.function(**case.tensors("cuda"), **op.check_params(case.params))
                calls += 1
    torch.cuda.synchronize()
    print(f"{calls} calls of {len(ops())} ops")  # noqa: T201  # a script


if __name__ == "__main__":
    main()
