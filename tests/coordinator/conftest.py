from __future__ import annotations

import sys
from pathlib import Path

# the scripted broker belongs to the tests of the wire
sys.path.append(str(Path(__file__).parent.parent / "wire"))
