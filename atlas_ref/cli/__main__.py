"""`python -m atlas_ref.cli`."""

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    # python -m puts the current folder first on the path, where any file may stand in for a
    # library; a clone that runs its own code needs it
    clone = Path(__file__).resolve().parents[2]
    if not sys.flags.safe_path and sys.path[0] == os.getcwd() and clone != Path.cwd().resolve():
        del sys.path[0]

    from atlas_ref.cli.main import main

    main()
