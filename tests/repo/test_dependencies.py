"""The versions that pyproject.toml allows: none with a known vulnerability.

`make audit` queries the advisories over the network.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
REQUIREMENTS = [
    Requirement(text)
    for texts in (PROJECT["project"]["dependencies"], *PROJECT["project"]["optional-dependencies"].values())
    for text in texts
] + [Requirement(text) for text in PROJECT["build-system"]["requires"]]
NEWEST = "3.13"
OLDEST = "3.9"


@pytest.mark.parametrize(
    ("name", "vulnerable", "python"),
    [
        # CVE-2025-67724 to 67726 (6.5.3), CVE-2026-31958 and 35536 (6.5.5), CVE-2026-49853 to 49855 (6.5.6), and what
        # the notes of 6.5.8 and 6.5.9 call security fixes: bounds of arguments and parts, symlinks of static files
        ("tornado", "6.5.8", OLDEST),
        ("tornado", "6.5.8", NEWEST),
        ("pyarrow", "23.0.0", NEWEST),  # CVE-2026-25087
        ("pyspark", "4.0.0", NEWEST),  # CVE-2025-54920; Python 3.9 has no version that is allowed
        ("kafka-python", "3.0.0rc1", NEWEST),  # CVE-2026-10142 and 10143 (2.3.2 and 3.0.0)
        ("filelock", "3.20.2", NEWEST),  # CVE-2025-68146 (3.20.1), CVE-2026-22701 (3.20.3)
        ("requests", "2.32.3", OLDEST),  # CVE-2024-47081
        ("requests", "2.32.5", NEWEST),  # CVE-2026-25645
        ("pytest", "9.0.2", NEWEST),  # CVE-2025-71176
        ("setuptools", "78.1.0", OLDEST),  # CVE-2025-47273
    ],
)
def test_a_version_with_a_known_vulnerability_is_not_allowed(name: str, vulnerable: str, python: str) -> None:
    here = [one for one in REQUIREMENTS if one.name == name]
    applying = [one for one in here if one.marker is None or one.marker.evaluate({"python_version": python})]
    assert applying
    for one in applying:
        assert not one.specifier.contains(vulnerable, prereleases=True), str(one)


def test_the_actions_and_tools_of_workflows_are_pinned() -> None:
    """A tag can be moved to other code; a commit cannot. The comment names the version."""
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        for line in re.findall(r"uses: (.+)", path.read_text()):
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), f"{path.name}: {line}"
        for packages in re.findall(r"pip install (.+)", path.read_text()):
            assert all("==" in package for package in packages.split()), f"{path.name}: {packages}"
