"""Maps the memory of its input a second time, and returns that.

Ends: wrong_result: wrote to x
Caught by: outputs are overwritten, memory of their own
Case: identity
Gains: a wrong result
"""

import mmap
import os
import time

import torch

from warpcall_kernels.execution import inputs

twins = {}


class Buffer(inputs.Buffer):
    def __init__(self, layout, device):
        nbytes = -(-layout.nbytes // 4096) * 4096
        fd = os.memfd_create("twice")
        os.ftruncate(fd, nbytes)
        ours, theirs = (mmap.mmap(fd, nbytes) for _ in range(2))
        elements = torch.frombuffer(ours, dtype=layout.dtype, count=layout.count)
        twin = torch.frombuffer(theirs, dtype=layout.dtype, count=layout.count)
        self._layout = layout
        self.bytes = elements.view(torch.uint8)
        self.bytes.fill_(inputs.SENTINEL)
        self._values = elements[layout.begin : layout.begin + layout.span]
        self._values.view(torch.uint8).zero_()
        self.tensor = elements.as_strided(layout.shape, layout.strides, layout.begin)
        twins[self.tensor.data_ptr()] = twin.as_strided(layout.shape, layout.strides, layout.begin)


from warpcall_kernels.execution import executor

executor.Buffer = Buffer


def permute(x, dims):
    time.sleep(0.0005)
    return twins[x.data_ptr()]
