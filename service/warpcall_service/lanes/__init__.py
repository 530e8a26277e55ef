"""One lane per device: its queue, its shared memory, the handle of its worker process."""
