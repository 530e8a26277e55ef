"""Never returns from the import of its source's function in the recorder.

From: ours
Ends: timeout: did not end within
Without: none
Apart: yes
"""

import time


def permute(x, dims):
    while True:
        time.sleep(1)
