"""``python -m motley``, or ``motley`` where the package is installed: the commands of the program of that name, in this process,
``launch``, ``run`` and ``export``.
"""

import signal
import sys

from . import _launch, _motley, _run


def main() -> int:
    """Runs the command that was typed; its exit code: 0 done, 1 failed, 2 wrong usage or input, 130 interrupted."""
    words = sys.argv[1:]
    if words[:1] == ["launch"]:
        return _launch.main(words[1:], fork=True)
    if words[:1] == ["run"]:
        return _run.main(words[1:])
    if words[:1] == ["export"]:
        from . import _export  # which imports more of PyTorch than the other commands need

        return _export.main(words[1:])
    for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):  # of which Python has made something else
        signal.signal(number, signal.SIG_DFL)
    return _motley.run_command(words)


if __name__ == "__main__":
    sys.exit(main())
