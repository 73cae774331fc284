"""The report of an audit, as an object, text, JSON and HTML. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Optional

from tornado.template import Template

from allocator.html import paragraph, table

__all__ = ["KINDS", "Difference", "PartitionDifference", "Report", "Side"]

# in the order of the report
KINDS: Mapping[str, str] = {
    "missing": "on the left only",
    "truncated": "on the left only, after the last record of the partition on the right",
    "duplicated": "once more on the right than on the left",
    "extra": "on the right only",
    "altered": "on both sides, with different content",
    "moved": "on both sides, at different places",
    "reordered": "on both sides; a later one comes before it on the right",
}


@dataclass(frozen=True)
class PartitionDifference:
    """One partition of one side. `checksum` is of all its records, independent of the order."""

    topic: str
    partition: int
    records: int
    first: int
    last: int
    checksum: str


_UNSIGNED = (1 << 64) - 1


class Side:
    """The name and the partitions of one side."""

    def __init__(self, name: str, rows: list[Any]) -> None:
        self.name = name
        self.partitions = tuple(
            PartitionDifference(
                row.t,
                row.p,
                row.records,
                row.first,
                row.last,
                f"{row.total:016x}{row.parity & _UNSIGNED:016x}",
            )
            for row in sorted(rows, key=lambda row: (row.t, row.p))
        )

    @property
    def records(self) -> int:
        return sum(partition.records for partition in self.partitions)

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "records": self.records, "partitions": [asdict(p) for p in self.partitions]}


@dataclass(frozen=True)
class Difference:
    """One difference. `partition` and `offset` are the left's, `other_...` the right's; None if it is missing there."""

    kind: str
    topic: str
    partition: Optional[int]
    offset: Optional[int]
    other_partition: Optional[int]
    other_offset: Optional[int]
    fields: tuple[str, ...] = ()
    """The altered fields."""
    passed: Optional[int] = None
    """For "reordered": the first offset on the right of a record that should come after it."""
    left: Optional[Mapping[str, Any]] = None
    right: Optional[Mapping[str, Any]] = None

    def __str__(self) -> str:
        here = None if self.offset is None else f"{self.topic}:{self.partition} offset {self.offset}"
        there = None if self.other_offset is None else f"{self.other_partition}:{self.other_offset} on the right"
        text = f"{self.kind} " + " is ".join(filter(None, (here, there)))
        if self.fields:
            text += f", {' and '.join(self.fields)} differ"
            text += "".join(
                f"; {name}: {self.left.get(name)!r} is {self.right.get(name)!r}"
                for name in self.fields
                if self.left is not None and self.right is not None
            )
        elif self.passed is not None:
            text += f", after {self.passed}, which should follow it"
        record = self.left or self.right
        if record is not None and not self.fields:
            text += f" (key {record['key']!r})"
        return text


@dataclass(frozen=True)
class Report:
    """The outcome. `counts` has every difference, `samples` some of each kind."""

    left: Side
    right: Side
    by: str
    ignored: tuple[str, ...]
    counts: Mapping[tuple[str, str, int, str], int]
    """(kind, topic, partition, altered fields with commas) -> number of differences."""
    samples: tuple[Difference, ...]
    notes: tuple[str, ...]
    started: datetime
    seconds: float

    @property
    def equal(self) -> bool:
        return not self.counts

    def count(self, kind: str | None = None, topic: str | None = None) -> int:
        """Differences of a kind (None: of all) in a topic (None: in all)."""
        return sum(
            number
            for (found, where, _, _), number in self.counts.items()
            if kind in (None, found) and topic in (None, where)
        )

    @property
    def kinds(self) -> dict[str, int]:
        """Kind -> number of differences, for all kinds."""
        return {kind: self.count(kind) for kind in KINDS}

    def verdict(self) -> str:
        if self.equal:
            return "equal" + (" but for what was ignored" if self.ignored else "")
        return "different: " + ", ".join(f"{number} {kind}" for kind, number in self.kinds.items() if number)

    def to_json(self) -> dict[str, Any]:
        return {
            "equal": self.equal,
            "by": self.by,
            "ignored": list(self.ignored),
            "left": self.left.to_json(),
            "right": self.right.to_json(),
            "differences": self.kinds,
            "by_partition": [
                {"kind": kind, "topic": topic, "partition": partition, "fields": fields, "records": number}
                for (kind, topic, partition, fields), number in sorted(self.counts.items())
            ],
            "samples": [asdict(sample) for sample in self.samples],
            "notes": list(self.notes),
            "started": self.started.isoformat(timespec="seconds"),
            "seconds": round(self.seconds, 3),
        }

    def to_text(self) -> str:
        lines = [
            self.verdict(),
            f"left:  {self.left.records} records in {len(self.left.partitions)} partitions, {self.left.name}",
            f"right: {self.right.records} records in {len(self.right.partitions)} partitions, {self.right.name}",
            f"compared by {self.by}" + (f", without {' and '.join(self.ignored)}" if self.ignored else ""),
        ]
        lines += [f"note: {note}" for note in self.notes]
        lines += [f"  {sample}" for sample in self.samples]
        untold = self.count() - len(self.samples)
        if self.samples and untold:
            lines.append(f"  and {untold} more")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """For notebooks: the verdict, both sides, counts and samples. `to_html` is a page of its own."""
        sides = [
            [name, s.name, s.records, len(s.partitions)] for name, s in (("left", self.left), ("right", self.right))
        ]
        counts = [[kind, number] for kind, number in self.kinds.items() if number]
        samples = [[str(sample)] for sample in self.samples]
        return "".join(
            [
                paragraph(self.verdict()),
                *map(paragraph, self.notes),
                table(("side", "source", "records", "partitions"), sides, len(sides)),
                table(("difference", "records"), counts, len(counts)) if counts else "",
                table(("sample",), samples, len(samples)) if samples else "",
            ]
        )

    def to_html(self) -> str:
        """A self-contained page: the verdict, both sides with their checksums, counts and samples."""
        rows: dict[tuple[str, int], list[Optional[PartitionDifference]]] = {}
        for place, side in enumerate((self.left, self.right)):
            for found in side.partitions:
                rows.setdefault((found.topic, found.partition), [None, None])[place] = found
        page: bytes = Template(PAGE).generate(report=self, rows=sorted(rows.items()), kinds=KINDS)
        return page.decode()


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>audit: {{ report.verdict() }}</title><style>
body { font: 14px/1.5 sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: 1em 0 } td, th { border: 1px solid #ccc; padding: .2em .6em }
th { text-align: left } td.n { text-align: right; font-variant-numeric: tabular-nums } code { font-size: 12px }
.equal { color: #176b2c } .different { color: #a11 } .off { background: #fdd }
</style></head><body>
<h1 class="{{ 'equal' if report.equal else 'different' }}">{{ report.verdict() }}</h1>
<p>Begun {{ report.started.isoformat(sep=' ', timespec='seconds') }}, took {{ '%.1f' % report.seconds }} s. Compared by
{{ report.by }}{% if report.ignored %}, without {{ ' and '.join(report.ignored) }}{% end %}.</p>
<table><tr><th></th><th>side</th><th>records</th><th>partitions</th></tr>
{% for name, side in (('left', report.left), ('right', report.right)) %}<tr><td>{{ name }}</td><td>{{ side.name }}</td>
<td class="n">{{ '{:,}'.format(side.records) }}</td><td class="n">{{ len(side.partitions) }}</td></tr>{% end %}</table>
{% for note in report.notes %}<p>Note: {{ note }}.</p>{% end %}
<h2>Differences</h2>
<table><tr><th>kind</th><th>records</th><th>meaning</th></tr>
{% for kind, meaning in kinds.items() %}<tr><td>{{ kind }}</td>
<td class="n{{ ' off' if report.count(kind) else '' }}">{{ '{:,}'.format(report.count(kind)) }}</td>
<td>{{ meaning }}</td></tr>{% end %}</table>
{% if report.samples %}<h2>Samples</h2><ul>
{% for sample in report.samples %}<li><code>{{ str(sample) }}</code></li>{% end %}</ul>{% end %}
<h2>Partitions</h2>
<p>A checksum is of all records of a partition, independent of their order.</p>
<table><tr><th>topic</th><th>partition</th><th>left records</th><th>offsets</th><th>checksum</th>
<th>right records</th><th>offsets</th><th>checksum</th></tr>
{% for (topic, partition), sides in rows %}
<tr{% if len({side and side.checksum for side in sides}) > 1 %} class="off"{% end %}><td>{{ topic }}</td>
<td class="n">{{ partition }}</td>
{% for found in sides %}{% if found is None %}<td class="n">0</td><td></td><td></td>{% else %}
<td class="n">{{ '{:,}'.format(found.records) }}</td><td>{{ found.first }} to {{ found.last }}</td>
<td><code>{{ found.checksum }}</code></td>{% end %}{% end %}</tr>{% end %}</table>
</body></html>
"""
