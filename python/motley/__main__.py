"""``python -m motley``: the commands of the package."""

import sys

from . import _launch

_USAGE = """usage: motley launch [--workers N] [--emulated-speeds S,S,...] SCRIPT [ARGUMENT...]"""


def main() -> int:
    """Runs the command that was typed; the exit code."""
    words = sys.argv[1:]
    if words[:1] == ["launch"]:
        return _launch.main(words[1:])
    print(_USAGE, file=sys.stdout if words[:1] in (["-h"], ["--help"]) else sys.stderr)
    return 0 if words[:1] in (["-h"], ["--help"]) else 2


if __name__ == "__main__":
    sys.exit(main())
