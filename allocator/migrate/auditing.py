"""The audit at the end of a cutover, by the Spark pipeline where that is installed."""

from __future__ import annotations

import asyncio
import json
from importlib.util import find_spec
from typing import Any

from allocator.migrate.plan import Plan

__all__ = ["audit_topics"]


async def audit_topics(plan: Plan, ends: list[list[Any]]) -> dict[str, str]:
    """Topic -> the verdict on what both clusters held when producers changed over.

    `ends` are (topic, partition, old end, new end).
    """
    if find_spec("pyspark") is None:
        return dict.fromkeys(plan.topics, "not done: pip install 'allocator[spark]', and allocator audit")
    return {topic: await asyncio.to_thread(_audit, plan, topic, ends) for topic in plan.topics}


def _audit(plan: Plan, topic: str, ends: list[list[Any]]) -> str:
    # Spark is loaded here and nowhere sooner: a cutover does without it
    from allocator.spark.audit import audit
    from allocator.spark.topic import Topic

    old, new = [
        Topic(
            brokers,
            topic,
            {"ending_offsets": json.dumps({topic: {str(row[1]): row[at] for row in ends if row[0] == topic}})},
        )
        for brokers, at in ((plan.old_brokers, 2), (plan.new_brokers, 3))
    ]
    report = audit(old, new)
    return f"{report.verdict()} ({report.left.records} and {report.right.records} records)"
