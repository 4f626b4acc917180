"""A rank of ``motley.launch``: says that it has imported PyTorch, waits until all have, and runs the script.

    python -m motley._rank READY WAIT SCRIPT [ARGUMENT...]      with two pipes: what it writes to, and what it waits for the end of
"""

from __future__ import annotations

import ctypes
import signal
import sys

from ._start import PR_SET_PDEATHSIG, run_script, wait_for_the_others


def main() -> None:
    """Runs the script in place of this module."""
    # Ends with its launcher, which alone could let it go on where it is stopped.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    import torch._dynamo  # noqa: F401  (an optimizer's first step imports it otherwise)

    wait_for_the_others(int(sys.argv[1]), int(sys.argv[2]))
    run_script(sys.argv[3:])


if __name__ == "__main__":
    main()
