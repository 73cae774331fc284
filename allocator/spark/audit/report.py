"""The report of an audit, as an object, text, JSON and HTML. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Optional

from allocator.core.settings import MASK
from allocator.core.text import table
from allocator.handlers.schemas import Masks
from allocator.spark.report_html import badge, code, grid, item_list, page, paragraph, section

# in the order of the report
KINDS: Mapping[str, str] = {
    "missing": "on the left only",
    "truncated": "on the left only, after the last record of the partition on the right",
    "duplicated": "one time more on the right than on the left",
    "extra": "on the right only",
    "altered": "on both sides, with different content",
    "moved": "on both sides, in different partitions or at different offsets",
    "reordered": "on both sides; a later one comes before it on the right",
}


@dataclass(frozen=True)
class PartitionDifference:
    """The records of one partition on one side. `checksum` does not depend on their order."""

    topic: str
    partition: int
    records: int
    first: int
    last: int
    checksum: str


_UNSIGNED = (1 << 64) - 1


class Side:
    """The name and the partitions of one side."""

    def __init__(self, name: str, rows: list[Any], deleted_offsets: int = 0) -> None:
        self.name = name
        self.deleted_offsets = deleted_offsets
        """Number of offsets that retention deleted before the audit read them."""
        self.partitions = tuple(
            PartitionDifference(
                row.t, row.p, row.records, row.first, row.last, f"{row.total:016x}{row.parity & _UNSIGNED:016x}"
            )
            for row in sorted(rows, key=lambda row: (row.t, row.p))
        )

    @property
    def records(self) -> int:
        return sum(partition.records for partition in self.partitions)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "records": self.records,
            "deleted_offsets": self.deleted_offsets,
            "partitions": [asdict(p) for p in self.partitions],
        }


@dataclass(frozen=True)
class Difference:
    """One difference. `partition` and `offset` are on the left, `other_...` on the right; None: the side lacks it."""

    kind: str
    topic: str
    partition: Optional[int]
    offset: Optional[int]
    other_partition: Optional[int]
    other_offset: Optional[int]
    fields: tuple[str, ...] = ()
    """For "altered": the names of the fields that differ."""
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
    """The outcome of an audit. `counts` has every difference, `samples` some of each kind."""

    left: Side
    right: Side
    by: str
    ignored: tuple[str, ...]
    counts: Mapping[tuple[str, str, int, str], int]
    """(kind, topic, partition, altered fields separated by commas) -> number of differences."""
    samples: tuple[Difference, ...]
    notes: tuple[str, ...]
    started: datetime
    seconds: float

    def masked(self, masks: Masks) -> Report:
        """Returns the report with the masked keys, values and headers of the samples as ***."""
        samples = (
            replace(each, left=_masked(each.left, masks), right=_masked(each.right, masks)) for each in self.samples
        )
        return replace(self, samples=tuple(samples))

    @property
    def equal(self) -> bool:
        return not self.counts

    def count(self, kind: str | None = None, topic: str | None = None) -> int:
        """Returns the number of differences of a kind (None: of all kinds) in a topic (None: in all topics)."""
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
        hidden = self.count() - len(self.samples)
        if self.samples and hidden:
            lines.append(f"  and {hidden} more")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Returns the verdict, both sides, counts and samples, for notebooks."""
        sides = [
            [name, s.name, s.records, len(s.partitions)] for name, s in (("left", self.left), ("right", self.right))
        ]
        counts = [[kind, number] for kind, number in self.kinds.items() if number]
        samples = [[str(sample)] for sample in self.samples]
        heads = ("side", "source", "records", "partitions")
        return "".join(
            [
                table(heads, sides, len(sides), self.verdict(), *self.notes),
                table(("difference", "records"), counts, len(counts)) if counts else "",
                table(("sample",), samples, len(samples)) if samples else "",
            ]
        )

    def to_html(self) -> str:
        """Returns a self-contained page: the verdict, both sides with their checksums, counts and samples."""
        verdict = badge("equal" if self.equal else "different", "good" if self.equal else "bad")
        ignored = f", without {' and '.join(self.ignored)}" if self.ignored else ""
        begun = self.started.isoformat(sep=" ", timespec="seconds")
        sides = [(name, side.name, side.records, len(side.partitions)) for name, side in self._sides()]
        kinds = [
            (kind, badge(f"{self.count(kind):,}", "bad" if self.count(kind) else "quiet"), meaning)
            for kind, meaning in KINDS.items()
        ]
        samples = [section("Samples", item_list(code(str(sample)) for sample in self.samples))] if self.samples else []
        return page(
            f"Audit: {self.verdict()}",
            section(
                "Verdict",
                f"<p>{verdict}</p>",
                paragraph(f"Begun {begun}, took {self.seconds:.1f} s. Compared by {self.by}{ignored}."),
                grid("Sides", ("side", "source", "records", "partitions"), sides),
                *(paragraph(f"Note: {note}.") for note in self.notes),
            ),
            section("Differences", grid("Differences", ("kind", "records", "meaning"), kinds)),
            *samples,
            section(
                "Partitions",
                paragraph("A checksum covers all records of a partition and does not depend on their order."),
                grid("Partitions", PARTITION_HEADS, self._rows()),
            ),
        )

    def _sides(self) -> tuple[tuple[str, Side], tuple[str, Side]]:
        return ("left", self.left), ("right", self.right)

    def _rows(self) -> list[list[object]]:
        """Returns the topic and number of each partition, whether the checksums are equal, and three cells for each
        side."""
        left, right = ({(each.topic, each.partition): each for each in side.partitions} for _, side in self._sides())
        rows = []
        for place in sorted({*left, *right}):
            pair = left.get(place), right.get(place)
            equal = len({each and each.checksum for each in pair}) == 1
            verdict = badge("equal", "good") if equal else badge("different", "bad")
            rows.append([*place, verdict, *(cell for each in pair for cell in _cells(each))])
        return rows


def _masked(record: Optional[Mapping[str, Any]], masks: Masks) -> Optional[Mapping[str, Any]]:
    """The texts are cut, so they cannot be decoded, and a mask of a field hides the whole key or value."""
    if record is None:
        return None
    headers = [
        [name, MASK if masks.hides_header(name, (text or "").encode()) else text] for name, text in record["headers"]
    ]
    return {**record, **{part: masks.apply(part, record[part]) for part in ("key", "value")}, "headers": headers}


def _cells(found: Optional[PartitionDifference]) -> tuple[object, object, object]:
    return (0, "", "") if found is None else (found.records, f"{found.first} to {found.last}", code(found.checksum))


PARTITION_HEADS = (
    *("topic", "partition", "checksums"),
    *(f"{side} {head}" for side in ("left", "right") for head in ("records", "offsets", "checksum")),
)
