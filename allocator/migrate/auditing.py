"""The audit at the end of a cutover, by the Spark pipeline where that is installed."""

from __future__ import annotations

import asyncio
import json
from importlib.util import find_spec
from typing import Any, NamedTuple

from allocator.migrate.plan import Plan

__all__ = ["Verdict", "audit_topics"]


class Verdict(NamedTuple):
    """What is to be shown, and how many records of the old cluster the new one lacks or has with other content."""

    text: str
    lost: int


async def audit_topics(plan: Plan, ends: list[list[Any]]) -> dict[str, Verdict]:
    """What both clusters held of each topic when producers changed over.

    `ends` are (topic, partition, old end, new end).
    """
    if find_spec("pyspark") is None:
        remedy = "pip install 'zk-partition-allocator[spark]', and allocator audit"
        return dict.fromkeys(plan.topics, Verdict(f"not done: {remedy}", 0))
    return {topic: await asyncio.to_thread(_audit, plan, topic, ends) for topic in plan.topics}


def _audit(plan: Plan, topic: str, ends: list[list[Any]]) -> Verdict:
    # Spark is loaded here and nowhere sooner: a cutover does without it
    from allocator.spark.audit import audit
    from allocator.spark.topic import Topic

    old, new = [
        Topic(
            brokers,
            topic,
            {
                "ending_offsets": json.dumps({topic: {str(row[1]): row[at] for row in ends if row[0] == topic}}),
                **{f"security.{key}": str(value) for key, value in (security or {}).items()},
            },
        )
        for brokers, security, at in (
            (plan.old_brokers, plan.old_security, 2),
            (plan.new_brokers, plan.new_security, 3),
        )
    ]
    report = audit(old, new)
    return Verdict(
        f"{report.verdict()} ({report.left.records} and {report.right.records} records)",
        sum(map(report.count, ("missing", "truncated", "altered"))),
    )
