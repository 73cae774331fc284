"""The dashboard and the alerts use existing metrics and labels."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from allocator.cli.access import Access
from allocator.core.telemetry.measures import Measures
from allocator.migrate.lag import Lag, MirrorProgress
from allocator.migrate.mirror import Mirror
from allocator.migrate.mirror_settings import MirrorSettings
from allocator.operate.group_report import GroupState, Logs
from allocator.types import OffsetAndMetadata, TopicPartition
from allocator.web.metrics import ConsumerCollector, GroupCollector
from allocator.web.mirror_metrics import MirrorCollector
from allocator.web.watch import WatchedGroup, Watcher

GRAFANA = Path(__file__).parents[2] / "docs/grafana"
DASHBOARDS = {name: json.loads((GRAFANA / f"{name}.json").read_text()) for name in ("allocator", "mirror")}
PANELS: list[dict[str, Any]] = [panel for dashboard in DASHBOARDS.values() for panel in dashboard["panels"]]
ALERTS = GRAFANA / "alerts.yaml"
PROMTOOL = shutil.which("promtool")
# functions and words of PromQL that the queries use
PROMQL = re.compile("sum|by|rate|increase|deriv|changes|count|or|vector|clamp_min|topk|and|on|max|time")
P = TopicPartition("t", 0)


class Reader:
    """The attributes of a consumer that a scrape reads."""

    group, client_id, generation = "g", "c", 1

    def __init__(self) -> None:
        self.measures = Measures()
        self.measures.last_heartbeat = time.monotonic()
        self._member = self  # a scrape is no question of the reader's

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset({P})

    def may_act(self) -> bool:
        return True

    def lag(self) -> dict[TopicPartition, int]:
        return {P: 1}


class MirrorOfOne(Mirror):
    """A mirror of two partitions, without servers."""

    def progress(self) -> list[MirrorProgress]:
        return [MirrorProgress(P, 1, 3), MirrorProgress(TopicPartition("new", P.partition), 0, None)]

    def lag(self, progress: Sequence[MirrorProgress]) -> Lag:
        return Lag(2, 3.0, 4.0)


def mirror() -> MirrorOfOne:
    found = MirrorOfOne(MirrorSettings("old:9092", "new:9092", topics=("t",), zookeeper="zk:2181", group="m"))
    found.records_of["t"], found.bytes_of["t"] = 5, 500
    found.last_progress_ms, found.errors, found.lost_at_source = 1_767_225_600_500, 2, 7
    return found


def exported() -> dict[str, set[str]]:
    """Name of each sample -> its labels, as the collectors export them."""
    watcher = Watcher(Access("nowhere:1", brokers="nowhere:2"))
    group = watcher.groups.setdefault("g", WatchedGroup("g"))
    group.learn(GroupState("g", {}, {}, None), 1.0)
    group.look(())
    group.measure(Logs({P: OffsetAndMetadata(2, "", -1)}, {P: 0}, {P: 2}), frozenset({P}), 2.0)
    registry = CollectorRegistry()
    registry.register(GroupCollector(watcher))
    registry.register(ConsumerCollector([Reader()]))  # type: ignore[list-item]
    registry.register(MirrorCollector(mirror()))
    families: list[Metric] = list(registry.collect())
    return {sample.name: set(sample.labels) for family in families for sample in family.samples}


def queries() -> list[str]:
    found: list[str] = [target["expr"] for panel in PANELS for target in panel.get("targets", ())]
    return found + [note["expr"] for each in DASHBOARDS.values() for note in each["annotations"]["list"]]


def alerts() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def test_every_query_names_existing_metrics_and_labels() -> None:
    metrics = exported()
    assert len(queries()) > 20
    # dashboards for kafka_exporter work with these
    for name in ("kafka_consumergroup_lag", "kafka_consumergroup_current_offset"):
        assert metrics[name] == {"consumergroup", "topic", "partition"}
    for query in [*queries(), *(alert["expr"] for alert in alerts())]:
        names = re.findall(r"\ballocator_\w+", query)
        assert names, query
        for name in names:
            assert name in metrics, f"{name} in {query!r}"
        for name, inside in re.findall(r"(allocator_\w+)\{([^}]*)\}", query):
            assert set(re.findall(r"(\w+)=~?", inside)) <= metrics[name], query
        for by in re.findall(r"by \(([^)]*)\)", query):
            assert all({each.strip() for each in by.split(",")} <= metrics[name] for name in names), query
        others = re.sub(r"\{[^}]*\}|\[\w+\]|(?:by|on) \([^)]*\)", "", query)
        words = {word for word in re.findall(r"[a-zA-Z_]\w*", others) if not word.startswith("allocator_")}
        assert all(map(PROMQL.fullmatch, words)), query


def test_every_alert_has_a_description_with_existing_labels() -> None:
    metrics = exported()
    assert len({alert["alert"] for alert in alerts()}) == len(alerts()) > 8
    for alert in alerts():
        assert alert["labels"]["severity"] in ("warning", "critical")
        assert set(alert["annotations"]) == {"summary", "description"}
        (name, *_) = re.findall(r"\ballocator_\w+", alert["expr"])
        assert set(re.findall(r"\$labels\.(\w+)", str(alert["annotations"]))) <= metrics[name], alert["alert"]


@pytest.mark.skipif(PROMTOOL is None, reason="no promtool, which evaluates alerts (Debian: prometheus)")
def test_alerts_fire_when_they_should(tmp_path: Path) -> None:
    assert PROMTOOL is not None
    shutil.copy(ALERTS, tmp_path)
    shutil.copy(Path(__file__).with_name("alerts_test.yaml"), tmp_path)
    for arguments in (["check", "rules", "alerts.yaml"], ["test", "rules", "alerts_test.yaml"]):
        done = subprocess.run([PROMTOOL, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
