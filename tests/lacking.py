"""What skipped tests leave unproven and what to install for them, printed at the end of a run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

__all__ = ["NEEDS", "Need", "summary"]


class Need(NamedTuple):
    reason: str
    """A pattern to search for in the reason of the skip."""
    unproven: str
    brings: str


NEEDS = (
    Need(
        "compiled|C compiler|Python\\.h|compiler has no", "the compiled decoder and encoder", "Debian: gcc python3-dev"
    ),
    Need("chromium|selenium", "the status page in a browser", "Debian: chromium-driver"),
    Need("promtool", "the alert rules", "Debian: prometheus"),
    Need("\\bnode\\b", "the JavaScript modules of the page", "Debian: nodejs"),
    Need("openssl", "TLS with certificates of their own", "Debian: openssl"),
    Need("PostgreSQL", "sinks in PostgreSQL", "Debian: postgresql"),
    Need("javac", "records of Java's producer, field by field", "Debian: default-jdk-headless"),
    Need("`go`|modules of .* could not be fetched", "groups shared with clients in Go", "Debian: golang-go"),
    Need("needs Python [\\d{]|could not be installed", "groups shared with old clients", "pyenv: that Python"),
    Need("[Dd]ocker|cannot be pulled", "the image, the compose files and servers in containers", "Debian: docker.io"),
    Need("debootstrap", "a first hour on a bare machine", "Debian: debootstrap, as root"),
    Need("only root", "what needs another file system or user", "root"),
    Need("this interpreter has a lock", "the decoder without the interpreter's lock", "a free-threaded Python"),
    Need("pyspark|an archive of its classes", "Spark", "Python 3.10 or newer, and the extra `spark`"),
    Need(
        "is not installed|could not import|pip install|xdist|hadolint|fetch`",
        "what the missing packages do",
        "make test, which installs the extra `dev`",
    ),
)


def summary(reasons: Iterable[str]) -> Iterator[str]:
    """Yields a line with the number of tests for each need, and for each reason without a need."""
    counts: dict[str, int] = {}
    for reason in reasons:
        need = next((need for need in NEEDS if re.search(need.reason, reason)), None)
        line = f"{need.unproven} ({need.brings})" if need else reason
        counts[line] = counts.get(line, 0) + 1
    for line, count in sorted(counts.items(), key=lambda each: -each[1]):
        yield f"{count:4} skipped: {line}"
