"""Write pictures: python -m docs.pictures [NAME ...] [--out FOLDER]; without a name all of them, to
build/pictures.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from docs.pictures import PICTURES, write

parser = argparse.ArgumentParser(
    prog="python -m docs.pictures", description="Draw pictures of the docs as SVG."
)
parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PICTURES))
parser.add_argument("--out", type=Path, default=Path("build/pictures"))
options = parser.parse_args()
if unknown := next((name for name in options.names if name not in PICTURES), None):
    parser.error(f"{unknown!r} is none of {', '.join(PICTURES)}")
for name in options.names or PICTURES:
    print(write(name, options.out))
