"""Prints `name==version` of the oldest versions that pyproject.toml allows on this Python, for `make audit`.

Needs `packaging`, and `tomli` before Python 3.11. Where the lower bounds have a known vulnerability, so may a service
that was installed by them.
"""

from __future__ import annotations

import sys
from pathlib import Path

from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
extras = project["optional-dependencies"]
# what users install; the tools of developers are audited as they are installed
names = [name for name in extras if name not in ("dev", "docs")]
for text in sorted({*project["dependencies"], *(text for name in names for text in extras[name])}):
    requirement = Requirement(text)
    if requirement.marker is None or requirement.marker.evaluate():
        lowest = [one.version for one in requirement.specifier if one.operator == ">="]
        if lowest:
            print(f"{requirement.name}=={lowest[0]}")
