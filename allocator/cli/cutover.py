"""`allocator cutover`."""

from __future__ import annotations

import asyncio
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Optional

import click

from allocator.cli.output import print_json
from allocator.cli.progress import Step, progress, quiet_option, say
from allocator.documents import write_file
from allocator.errors import ConfigError
from allocator.migrate import Cutover

STEPS = Cutover.STEPS


@click.command()
@click.argument("plan", type=click.Path(exists=True, dir_okay=False))
@click.option("--until", type=click.Choice(STEPS), default=STEPS[-1], help="Stop after this step.")
@click.option("--rollback", is_flag=True, help="Move the groups back to the old cluster.")
@click.option(
    "--fail-back", is_flag=True, help="After step `producers`: move groups and producers back, by the same steps."
)
@click.option("--clear", is_flag=True, help="After the end: let services use the brokers in their own settings again.")
@click.option("--reports", type=click.Path(file_okay=False), help="Directory for a page (HTML) of each topic's audit.")
@click.option("--status", is_flag=True, help="Only show which steps are done.")
@quiet_option
@click.option("--json", "as_json", is_flag=True, help="Print the status, or an error, as JSON.")
def cutover(
    plan: str,
    until: str,
    rollback: bool,
    fail_back: bool,
    clear: bool,
    reports: Optional[str],
    status: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Move groups to a new cluster, following PLAN (TOML), while services and producers run.

    The mirror must run at the same time; with --fail-back, the mirror back (`allocator mirror --back-of`). A state file
    stores which steps are done: after a failure, run the command again to continue.

    \b
    check      check topics, groups and mirror; change nothing
    freeze     the members of the groups finish their records, commit and leave
    drain      wait until the mirror has copied the records that the groups have read
    offsets    map the committed offsets to the new cluster
    start      the members join again, on the new cluster
    verify     wait until every partition has an owner and commits continue
    producers  wait until the old topics get no records and are mirrored; move the producers; no rollback after this
    finish     audit the topics

    \b
    Exit codes:
      0  done
      1  a step failed: correct the cause and run the command again, or roll back
      2  the plan or its state file is not valid
    """
    if status:
        _show(Cutover(plan, fail_back=fail_back), as_json)
        return
    if reports is not None:
        try:
            Path(reports).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--reports {reports}: {error.strerror}") from None
    with progress("cutover", quiet) as meter:

        def show_step(step: str, text: str) -> None:
            say(f"{step:<10} {text}")
            meter.step = Step("cutover", (STEPS.index(step) + 1) if step in STEPS else 0, len(STEPS), "steps")

        def show_rest(step: str, left: int, unit: str) -> None:
            meter.left(left, f"{step}: waiting for {unit}", unit)

        work = Cutover(plan, show_step, show_rest, partial(audit_topic, reports=reports), fail_back=fail_back)
        asyncio.run(work.rollback() if rollback else work.clear() if clear else work.run(until))


def _show(work: Cutover, as_json: bool) -> None:
    done = work.load()
    if as_json:
        print_json({"done": done, "rollback": work.may_roll_back()})
        return
    for step in STEPS:
        click.echo(f"{step:<10} {'done' if step in done else '-'}")
    if not work.may_roll_back():
        click.echo("\nproducers write to the new cluster, so a rollback is not possible; see --fail-back")


def audit_topic(topic: str, sides: list[tuple[str, dict[str, str]]], reports: Optional[str] = None) -> tuple[str, int]:
    """Compares a topic on both clusters, each given as (brokers, options). Writes a page to the directory `reports`.

    Returns the verdict, and the number of lost or altered records.
    """
    if find_spec("pyspark") is None:  # a cutover works without Spark
        return "not done: it needs pip install 'zk-partition-allocator[spark]'; then run allocator audit", 0
    from allocator.spark import Topic
    from allocator.spark.audit import audit

    old, new = [Topic(brokers, topic, options) for brokers, options in sides]
    report = audit(old, new)
    if reports is not None:
        write_file(str(Path(reports) / f"{topic}.html"), report.to_html())
    return (
        f"{report.verdict()} ({report.left.records} and {report.right.records} records)",
        sum(map(report.count, ("missing", "truncated", "altered"))),
    )
