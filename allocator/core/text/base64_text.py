"""Finds texts that are encoded as base64 within other text."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator

MIN_CHARACTERS = 8  # in a run of base64. Higher: misses short texts; lower: more CPU
_RUN = re.compile(rf"[A-Za-z0-9+/_-]{{{MIN_CHARACTERS},}}")
_BREAK = re.compile(r"\s+|\\[nrt]")
"""What MIME puts between the lines of base64, also escaped as in JSON."""
_STANDARD = str.maketrans("-_", "+/")


def base64_contents(text: str) -> Iterator[str]:
    """Yields what the runs of base64 in `text` encode, such as the parts of a JWT, the end of "Bearer ..." or of a
    `data:` URL, and lines of MIME.

    A run may begin with characters that are not part of the encoding. So each run is decoded from each of its first
    four characters on; most of these results are meaningless.
    """
    for match in _RUN.finditer(_BREAK.sub("", text)):
        run = match[0].translate(_STANDARD)
        for start in range(4):
            part = run[start:]
            part = part[:-1] if len(part) % 4 == 1 else part  # no encoding ends with a single character
            yield base64.b64decode(part + "=" * (-len(part) % 4)).decode(errors="replace")
