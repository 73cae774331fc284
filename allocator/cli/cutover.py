"""`allocator cutover`."""

from __future__ import annotations

import asyncio
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from allocator.cli.output import print_json
from allocator.cli.progress import Step, progress, quiet_option, say
from allocator.migrate.cutover import NO_RETURN, STEPS, Cutover, Verdict
from allocator.migrate.cutover_plan import Plan, load_plan

__all__ = ["audit_topics", "cutover"]


@click.command()
@click.argument("plan", type=click.Path(exists=True, dir_okay=False))
@click.option("--until", type=click.Choice(STEPS), default=STEPS[-1], show_default=True, help="Stop after this step.")
@click.option("--rollback", is_flag=True, help="Move the groups back to the old cluster.")
@click.option("--status", is_flag=True, help="Only show which steps are done.")
@quiet_option
@click.option("--json", "as_json", is_flag=True, help="Print the status, or an error, as JSON.")
def cutover(plan: str, until: str, rollback: bool, status: bool, quiet: bool, as_json: bool) -> None:
    """Move groups to a new cluster by PLAN (TOML), while services and producers run.

    The mirror must run meanwhile. A state file notes the completed steps: after a failure, run the command again and it
    continues.

    \b
    check      check that everything is there; change nothing
    freeze     the members of the groups finish, commit and leave
    drain      wait until the mirror has copied the records that the groups have read
    offsets    map the committed offsets to the new cluster
    start      the members join again, on the new cluster
    verify     every partition has an owner, and commits continue
    producers  wait until the old topics get no records and are mirrored; move the producers; no rollback from here on
    finish     the audit

    \b
    Exit codes:
      0  done
      1  a step failed: mend what it says and run it again, or roll back
      2  the plan or its state file cannot be used
    """
    loaded = load_plan(Path(plan))
    if status:
        _show(Cutover(loaded).load(), as_json)
        return
    with progress("cutover", quiet) as meter:

        def told(step: str, text: str) -> None:
            say(f"{step:<10} {text}")
            meter.step = Step("cutover", (STEPS.index(step) + 1) if step in STEPS else 0, len(STEPS), "steps")

        def waits(step: str, left: int, unit: str) -> None:
            meter.left(left, f"{step}: waiting for {unit}", unit)

        work = Cutover(loaded, told, waits, audit_topics)
        asyncio.run(work.rollback() if rollback else work.run(until))


def _show(done: dict[str, object], as_json: bool) -> None:
    if as_json:
        print_json({"done": done, "rollback": NO_RETURN not in done and "opened" not in done})
        return
    for step in STEPS:
        click.echo(f"{step:<10} {'done' if step in done else '-'}")
    if NO_RETURN in done or "opened" in done:
        click.echo("\nproducers write to the new cluster: there is no way back")


async def audit_topics(plan: Plan, ends: list[list[Any]]) -> dict[str, Verdict]:
    """Compares each topic on both clusters, up to the ends at which producers changed over.

    `ends` are (topic, partition, old end, new end).
    """
    if find_spec("pyspark") is None:
        remedy = "pip install 'zk-partition-allocator[spark]', and allocator audit"
        return dict.fromkeys(plan.topics, Verdict(f"not done: {remedy}", 0))
    return {topic: await asyncio.to_thread(_audit, plan, topic, ends) for topic in plan.topics}


def _audit(plan: Plan, topic: str, ends: list[list[Any]]) -> Verdict:
    # imported here: a cutover works without Spark
    from allocator.spark.audit import audit
    from allocator.spark.topic import Topic

    old, new = [
        Topic(
            brokers,
            topic,
            {
                "ending_offsets": json.dumps({topic: {str(row[1]): row[at] for row in ends if row[0] == topic}}),
                "isolation_level": "read_committed",  # as the mirror reads
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
