"""The tools are scripts that import their neighbours, so their folder is on the path, as it is when one is run."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
