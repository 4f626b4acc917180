"""The script of a rank of ``motley.launch``: calls the function that the folder's file ``call`` has, and leaves what it returned, or its
traceback, in a file named after the rank.
"""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from pathlib import Path

from motley._launch import find_pickler


def main(folder: Path, rank: str) -> None:
    """Calls the function once. Raises what the function raises."""
    sys.path[:], call = pickle.loads((folder / "call").read_bytes())
    try:
        function, args = pickle.loads(call)
        result = function(*args)
        (folder / f"{rank}.result").write_bytes(find_pickler().dumps(result))
    except Exception:
        (folder / f"{rank}.error").write_text(traceback.format_exc())
        raise


if __name__ == "__main__":
    main(Path(sys.argv[1]), os.environ["RANK"])
