"""A rank of ``motley launch``: says that it has imported PyTorch, waits until all have, and runs the script.

    python -m motley._rank READY WAIT SCRIPT [ARGUMENT...]      with two pipes: what it writes to, and what it waits for the end of
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Runs the script in place of this module."""
    # Ends with its launcher, which alone could let it go on where it is stopped.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    import torch._dynamo  # noqa: F401  (an optimizer's first step imports it otherwise)

    ready, wait = int(sys.argv[1]), int(sys.argv[2])
    os.write(ready, b".")
    os.read(wait, 1)  # ends when the launcher closes it
    os.close(ready)
    os.close(wait)
    sys.argv = sys.argv[3:]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
