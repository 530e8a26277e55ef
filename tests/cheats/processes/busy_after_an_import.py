"""Cannot be imported, and leaves a process that takes a CPU from others.

Ends: error: ImportError
Case: small
"""

import os

if not os.fork():
    while True:
        pass
raise ImportError("not today")
