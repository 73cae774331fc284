"""The report of `skew`, as an object, text, JSON and HTML, and loads for allocator functions. No pyspark."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Optional

from tornado.template import Template

from allocator.assignors.lag_aware import lag_aware
from allocator.assignors.sticky import sticky
from allocator.assignors.types import GroupView, Member
from allocator.errors import ConfigError, MissingExtra
from allocator.foreign import readable
from allocator.groups.zookeeper.znodes import to_ranges
from allocator.html import table
from allocator.types import TopicPartition

__all__ = ["HotKey", "PartitionSkew", "SkewReport", "read_loads"]


class PartitionSkew(NamedTuple):
    """One partition. Times are in milliseconds since the epoch; None if no record has one."""

    topic: str
    partition: int
    records: int
    bytes: int
    """Bytes of keys, values and headers."""
    largest: int
    tombstones: int
    """Records without a value."""
    keyless: int
    keys: int
    """Estimated number of distinct keys."""
    first_offset: int
    last_offset: int
    first_ms: Optional[int]
    last_ms: Optional[int]
    late: int
    """Records that are older than an earlier record."""
    latest_ms: int
    """Largest such difference, in milliseconds."""

    @property
    def seconds(self) -> float:
        return 0.0 if self.first_ms is None or self.last_ms is None else (self.last_ms - self.first_ms) / 1000

    @property
    def records_per_s(self) -> Optional[float]:
        """Rate between the oldest and the newest record; None if they have the same time."""
        return self.records / self.seconds if self.seconds else None

    @property
    def bytes_per_s(self) -> Optional[float]:
        return self.bytes / self.seconds if self.seconds else None

    @property
    def holes(self) -> int:
        """Number of offsets without a record (compaction, transactions)."""
        return self.last_offset - self.first_offset + 1 - self.records


class HotKey(NamedTuple):
    """A busy key. `partition` None: it is in several."""

    topic: str
    key: bytes
    records: int
    bytes: int
    partition: Optional[int]

    @property
    def text(self) -> str:
        return readable(self.key, 40)


@dataclass(frozen=True)
class SkewReport:
    """The measurements of one run."""

    source: str
    partitions: tuple[PartitionSkew, ...]
    hot: tuple[HotKey, ...]
    spread: Mapping[str, int]
    """Topic -> number of keys in more than one partition: their records have no order. Partitions were added, or
    producers partition differently."""
    counts: Mapping[str, int]
    """Topic -> number of existing partitions, if known; `partitions` lacks those without a record."""
    members: Optional[int]
    seconds: float

    @property
    def topics(self) -> list[str]:
        return sorted({found.topic for found in self.partitions} | set(self.counts))

    def of(self, topic: str) -> list[PartitionSkew]:
        return [found for found in self.partitions if found.topic == topic]

    def count(self, topic: str) -> int:
        """Number of partitions, including empty ones."""
        return self.counts.get(topic, max((found.partition + 1 for found in self.of(topic)), default=0))

    def empty(self, topic: str) -> list[int]:
        """Partitions without a record."""
        return sorted(set(range(self.count(topic))) - {found.partition for found in self.of(topic)})

    def imbalance(self, topic: str, what: str = "bytes") -> Optional[float]:
        """The busiest partition by "records" or "bytes", relative to the mean (1.0: even). None without records."""
        sizes = [getattr(found, what) for found in self.of(topic)]
        return max(sizes) * self.count(topic) / sum(sizes) if sum(sizes) else None

    def loads(self) -> dict[TopicPartition, float]:
        """The load of each partition for `GroupView.load` and `lag-aware`: its bytes relative to the mean."""
        total, count = sum(found.bytes for found in self.partitions), sum(map(self.count, self.topics))
        found = {TopicPartition(t, p): 0.0 for t in self.topics for p in range(self.count(t))}
        found.update({TopicPartition(f.topic, f.partition): f.bytes * count / (total or 1) for f in self.partitions})
        return {tp: round(load, 4) for tp, load in found.items()}

    def busiest_member(self) -> Optional[dict[str, float]]:
        """The work of the busiest of `members` equal members relative to the mean (1.0: even), by allocator function.

        None if no record has a byte.
        """
        if self.members is None or not any(found.bytes for found in self.partitions):
            return None
        topics = frozenset(self.topics)
        members = tuple(Member(f"m{number}", f"m{number}", topics) for number in range(self.members))
        view = GroupView(members, {topic: self.count(topic) for topic in topics}, load=self.loads())
        found = {}
        for function in (sticky, lag_aware):
            shares = function(view)
            work = [sum(view.load.get(TopicPartition(*tp), 0.0) for tp in shares.get(m.id, ())) for m in members]
            found[function.name] = round(max(work) * len(work) / (sum(work) or 1), 4)
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "topics": [
                {
                    "topic": topic,
                    "partitions": self.count(topic),
                    "empty_partitions": self.empty(topic),
                    "records": sum(found.records for found in self.of(topic)),
                    "bytes": sum(found.bytes for found in self.of(topic)),
                    "imbalance_records": self.imbalance(topic, "records"),
                    "imbalance_bytes": self.imbalance(topic),
                    "late": sum(found.late for found in self.of(topic)),
                    "keys_in_several_partitions": self.spread.get(topic, 0),
                }
                for topic in self.topics
            ],
            "partitions": [
                {
                    **found._asdict(),
                    "records_per_s": found.records_per_s,
                    "bytes_per_s": found.bytes_per_s,
                    "holes": found.holes,
                }
                for found in self.partitions
            ],
            "hot_keys": [{**found._asdict(), "key": found.text} for found in self.hot],
            "loads": _nested(self.loads()),
            "members": self.members,
            "busiest_member": self.busiest_member(),
            "seconds": round(self.seconds, 3),
        }

    def to_text(self) -> str:
        lines = []
        for topic in self.topics:
            found = self.of(topic)
            records = sum(one.records for one in found)
            lines.append(
                f"{topic}: {records} records, {sum(o.bytes for o in found)} bytes in {self.count(topic)} partitions"
            )
            if not records:
                continue
            # tombstones without a key have no bytes
            what = "bytes" if any(one.bytes for one in found) else "records"
            busiest = max(found, key=lambda one: getattr(one, what))
            late = sum(one.late for one in found)
            lines.append(
                f"  busiest partition: {busiest.partition}, {self.imbalance(topic, what):.2f} times the mean in {what}"
                f"; {late} records out of order in time, by up to {max(one.latest_ms for one in found) / 1000:g} s"
            )
            empty = [TopicPartition(topic, number) for number in self.empty(topic)]
            if empty:
                lines.append(f"  {len(empty)} partitions are empty: {to_ranges(empty)[topic]}")
            if self.spread.get(topic):
                lines.append(f"  {self.spread[topic]} keys are in more than one partition: their records have no order")
            for key in [key for key in self.hot if key.topic == topic][:5]:
                where = "several partitions" if key.partition is None else f"partition {key.partition}"
                lines.append(f"  key {key.text!r}: {key.records} records ({key.records / records:.1%}), {where}")
        for name, times in (self.busiest_member() or {}).items():
            lines.append(f"of {self.members} members, {name} gives the busiest {times:.2f} times the mean")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """For notebooks: a row for each topic, the busiest partitions and keys. `to_html` has the charts."""
        heads = ("topic", "partitions", "empty", "records", "bytes", "busiest to mean (bytes)")
        topics = [
            [t["topic"], t["partitions"], len(t["empty_partitions"]), t["records"], t["bytes"], t["imbalance_bytes"]]
            for t in self.to_json()["topics"]
        ]
        busy = sorted(self.partitions, key=lambda found: -found.bytes)
        partitions = [[f"{p.topic}:{p.partition}", p.records, p.bytes] for p in busy]
        keys = [[key.topic, key.text, key.records, key.bytes] for key in self.hot]
        return "".join(
            [
                table(heads, topics, len(topics)),
                table(("partition", "records", "bytes"), partitions, len(partitions)),
                table(("topic", "key", "records", "bytes"), keys, len(keys)),
            ]
        )

    def to_html(self) -> str:
        """A self-contained page with plots. Raises MissingExtra without matplotlib."""
        page: bytes = Template(PAGE).generate(report=self, plots={topic: _plots(self, topic) for topic in self.topics})
        return page.decode()


def read_loads(path: str | Path) -> dict[TopicPartition, float]:
    """The loads in a report of `allocator skew --json`, for your own allocator function.

    Raises ConfigError.
    """
    try:
        loads = json.loads(Path(path).read_text())["loads"]
        return {TopicPartition(t, int(p)): float(load) for t, found in loads.items() for p, load in found.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} is not a report of `allocator skew --json`: {error!r}") from error


def _nested(loads: Mapping[TopicPartition, float]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for tp, load in sorted(loads.items()):
        found.setdefault(tp.topic, {})[str(tp.partition)] = load
    return found


def _plots(report: SkewReport, topic: str) -> list[str]:
    """SVG images: bytes and records by partition; the busiest keys."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
        from matplotlib.ticker import EngFormatter
    except ImportError as error:
        raise MissingExtra("plots need matplotlib: pip install 'zk-partition-allocator[spark]'") from error
    found = report.of(topic)
    if not found:
        return []
    figures = []
    for what in ("bytes", "records"):
        figure = Figure(figsize=(9, 2.6), layout="constrained")
        axes = figure.subplots()
        axes.bar([one.partition for one in found], [getattr(one, what) for one in found], color="#4878a8", width=1.0)
        axes.axhline(sum(getattr(one, what) for one in found) / report.count(topic), color="#a14", linewidth=1)
        axes.set(title=f"{what} by partition; the line is the mean", xlabel="partition", ylabel=what)
        axes.set_xlim(-0.5, report.count(topic) - 0.5)  # empty partitions at the ends, too
        axes.yaxis.set_major_formatter(EngFormatter())
        figures.append(figure)
    keys = [key for key in report.hot if key.topic == topic][::-1]
    if keys:
        figure = Figure(figsize=(9, 0.8 + 0.22 * len(keys)), layout="constrained")
        axes = figure.subplots()
        axes.barh(range(len(keys)), [key.records for key in keys], color="#4878a8")
        # $ begins a formula in matplotlib
        axes.set_yticks(range(len(keys)), [key.text.replace("$", r"\$") or "(empty)" for key in keys], fontsize=7)
        axes.set(title="records of the busiest keys")
        axes.xaxis.set_major_formatter(EngFormatter())
        figures.append(figure)
    texts = []
    for figure in figures:
        out = io.StringIO()
        with rc_context({"svg.fonttype": "none"}), warnings.catch_warnings():
            # text stays text in the SVG, so missing glyphs of matplotlib's font do not matter
            warnings.filterwarnings("ignore", "Glyph", UserWarning)
            figure.savefig(out, format="svg", metadata={"Date": None})
        texts.append(out.getvalue()[out.getvalue().index("<svg") :])
    return texts


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>skew of {{ ', '.join(report.topics) }}</title><style>
body { font: 14px/1.5 sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: 1em 0 } td, th { border: 1px solid #ccc; padding: .2em .6em }
th { text-align: left } td.n { text-align: right; font-variant-numeric: tabular-nums } svg { max-width: 100% }
</style></head><body><h1>Skew of {{ report.source }}</h1><pre>{{ report.to_text() }}</pre>
{% for topic in report.topics %}<h2>{{ topic }}</h2>{% for plot in plots[topic] %}{% raw plot %}{% end %}
{% set keys = [key for key in report.hot if key.topic == topic] %}
{% if keys %}<table><tr><th>key</th><th>records</th><th>bytes</th><th>partition</th></tr>
{% for key in keys %}<tr><td><code>{{ key.text or '(empty)' }}</code></td>
<td class="n">{{ '{:,}'.format(key.records) }}</td>
<td class="n">{{ '{:,}'.format(key.bytes) }}</td>
<td class="n">{{ 'several' if key.partition is None else key.partition }}</td></tr>{% end %}</table>{% end %}
<table><tr><th>partition</th><th>records</th><th>bytes</th><th>records/s</th><th>bytes/s</th><th>largest</th>
<th>keys, about</th><th>without key</th><th>without value</th><th>holes</th><th>late</th><th>by up to, s</th></tr>
{% for p in report.of(topic) %}<tr><td class="n">{{ p.partition }}</td><td class="n">{{ '{:,}'.format(p.records) }}</td>
<td class="n">{{ '{:,}'.format(p.bytes) }}</td>
<td class="n">{{ '' if p.records_per_s is None else '{:,.1f}'.format(p.records_per_s) }}</td>
<td class="n">{{ '' if p.bytes_per_s is None else '{:,.0f}'.format(p.bytes_per_s) }}</td>
<td class="n">{{ p.largest }}</td><td class="n">{{ p.keys }}</td><td class="n">{{ p.keyless }}</td>
<td class="n">{{ p.tombstones }}</td><td class="n">{{ p.holes }}</td><td class="n">{{ p.late }}</td>
<td class="n">{{ p.latest_ms / 1000 }}</td></tr>{% end %}
{% for number in report.empty(topic) %}<tr><td class="n">{{ number }}</td><td class="n">0</td><td class="n">0</td>
<td colspan="9">empty</td></tr>{% end %}</table>{% end %}
</body></html>
"""
