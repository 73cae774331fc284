"""A Spark application on brokers with passwords: a read, a stream, an archive and a write. Saves all that Spark shows.

spark_job.py BROKERS TOPIC TARGET DIRECTORY, with the options of the source as JSON in the environment.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from pathlib import Path

from allocator.spark import session
from allocator.spark.archive import archive
from allocator.spark.topic import Topic

PAGES = ("environment", "jobs", "stages", "storage", "executors", "SQL", "StreamingQuery")
REST = ("environment", "jobs", "stages", "allexecutors", "sql?details=true&planDescription=true&length=1000")


def main(brokers: str, topic: str, target: str, place: str) -> None:
    directory = Path(place)
    events = directory / "events"
    events.mkdir()
    spark = session(
        "secrets",
        "local[1]",
        {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.ui.port": "0",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": events.as_uri(),
            "spark.eventLog.compress": "false",
            "spark.sql.shuffle.partitions": "1",
        },
    )
    options = json.loads(os.environ["OPTIONS"])
    ours = {"brokers": brokers, **options}
    rows = spark.read.format("allocator").options(**ours, topics=topic).load()
    plans = spark._jvm.PythonSQLUtils  # what `explain` prints
    shown = [plans.explainString(rows._jdf.queryExecution(), mode) for mode in ("extended", "formatted", "cost")]
    assert rows.count() == 20
    pairs = ", ".join(f"`{name}` '{value}'" for name, value in {**ours, "topics": topic}.items())
    spark.sql(f"create temporary view read using allocator options ({pairs})")
    spark.sql("select count(*) from read where partition = 0").collect()
    rows.select("value").write.format("allocator").options(**ours, topic=target).mode("append").save()

    stream = spark.readStream.format("allocator").options(**ours, topics=topic, starting_offsets="earliest").load()
    shown.append(plans.explainString(stream._jdf.queryExecution(), "extended"))
    for name, writer in (
        ("copy", stream.writeStream.format("parquet").option("path", str(directory / "copy"))),
        ("sink", stream.select("value").writeStream.format("allocator").options(**ours, topic=target)),
    ):
        query = writer.option("checkpointLocation", str(directory / f"checkpoint-{name}")).trigger(availableNow=True)
        query = query.queryName(name).start()
        query.awaitTermination()
        shown += [query._jsq.explainInternal(True), json.dumps(query.lastProgress, default=str)]

    archive(Topic(brokers, topic, options), directory / "archive", spark=spark)
    wrong = {**ours, **{name: "wrong-" + text for name, text in options.items() if "sasl" in name}}
    try:
        spark.read.format("allocator").options(**wrong, topics=topic, timeout_s="5").load().count()
    except Exception as error:  # noqa: BLE001 - whatever Spark makes of the refused password
        shown.append(str(error))
    (directory / "shown.txt").write_text("\n".join(shown))

    base = spark.sparkContext.uiWebUrl
    rest = f"{base}/api/v1/applications/{spark.sparkContext.applicationId}"
    executions = [each["id"] for each in json.loads(_get(f"{rest}/sql?length=1000"))]
    assert len(executions) > 5
    urls = [f"{rest}/{path}" for path in REST]
    urls += [f"{base}/{page}/" for page in PAGES]
    urls += [f"{base}/SQL/execution/?id={number}" for number in executions]
    for number, url in enumerate(urls):
        (directory / f"page-{number}").write_text(f"{url}\n{_get(url)}")
    spark.stop()


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as response:
        return str(response.read().decode())


if __name__ == "__main__":
    main(*sys.argv[1:])
