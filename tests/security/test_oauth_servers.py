"""OAUTHBEARER on a real broker with short sessions, in the client, the daemon, the commands and Spark."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from allocator import Consumer
from allocator.cli.commands import main
from allocator.core.client.client import KafkaClient
from allocator.core.offsets.group_offsets import GroupOffsets
from allocator.errors import ConfigError
from allocator.producer import RecordWriter
from allocator.testing import LocalCluster, wait_until
from allocator.types import TopicPartition
from tests.client.providers_under_test import Provider
from tests.client.token_endpoint import CLIENT_ID, CLIENT_SECRET, TokenEndpoint, granted, unsecured_token
from tests.daemon.daemon_processes import Setup, make, stopped
from tests.joining import joined
from tests.security.secured import Secured, secrets_in

Topics = Callable[..., str]
COMMAND = [sys.executable, "-m", "allocator.cli"]
SECRET = "ALLOCATOR_KAFKA_SASL_OAUTH_CLIENT_SECRET"
__all__ = ["make"]


@pytest.fixture
def endpoint() -> Iterator[TokenEndpoint]:
    with TokenEndpoint() as served:
        yield served


@pytest.fixture
def service(secured: Secured, endpoint: TokenEndpoint, make: Callable[..., Setup]) -> tuple[Setup, Path]:
    """A topic with 300 records, and a settings file without the secret, which comes from the environment."""
    setup = make(partitions=3, cluster=secured.cluster)
    setup.fill(300)
    kafka = {**secured.oauth(endpoint), "sasl_oauth_client_secret": None, "brokers": [secured.brokers("SASL_SSL")]}
    group = {"membership": "kafka", "session_timeout_s": 15}
    file = setup.config(kafka=kafka, group=group, zookeeper={"hosts": None}, web={"port": 0})
    assert CLIENT_SECRET not in file.read_text()
    return setup, file


def run(*words: object, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, words)], env={**os.environ, **environ}, capture_output=True, text=True, timeout=300
    )


def reauthentications(caplog: pytest.LogCaptureFixture) -> int:
    """The number of authentications on open connections, from the log of requests."""
    texts = [record.getMessage() for record in caplog.records]
    handshakes = sum("SaslHandshakeRequest" in text for text in texts)
    return handshakes - sum("request 1: ApiVersionsRequest" in text for text in texts)


async def read_while_written(
    secured: Secured, topic: str, group: str, security: dict[str, Any], enough: Callable[[], bool], **membership: Any
) -> int:
    """A member reads and commits while a producer writes until `enough`.

    Each record is delivered once, in order, and committed. Returns the number of records.
    """
    brokers, written, finished = secured.brokers("SASL_SSL"), 0, False
    read: dict[TopicPartition, list[tuple[int, int]]] = {}

    async def write() -> None:
        nonlocal written, finished
        async with KafkaClient(brokers, security=security) as client, RecordWriter(client, linger_s=0.0) as writer:
            while not enough():
                sent = [await writer.append(topic, None, b"%d" % (written + n)) for n in range(40)]
                written += len(sent)
                await asyncio.gather(*sent)
        finished = True

    settings = {"brokers": brokers, "group": group, "security": security, "session_timeout_s": 30, **membership}
    async with Consumer(topic, **joined(auto_commit_interval_s=0.2, **settings)) as consumer:
        writing = asyncio.create_task(write())
        while not finished or sum(map(len, read.values())) < written:
            for tp, records in (await consumer.getmany(timeout_s=0.1)).items():
                read.setdefault(tp, []).extend((record.offset, int(record.value)) for record in records)
            if writing.done():
                await writing
        await consumer.commit()
    assert sorted(value for rows in read.values() for _, value in rows) == list(range(written))
    for rows in read.values():
        assert [offset for offset, _ in rows] == list(range(len(rows)))
    async with KafkaClient(secured.cluster.bootstrap) as client:
        committed = await GroupOffsets(client, group).fetch(list(read))
    assert {tp: found.offset for tp, found in committed.items()} == {tp: len(rows) for tp, rows in read.items()}
    return written


@pytest.mark.parametrize("membership", ["kafka", pytest.param("zookeeper", marks=pytest.mark.long)])
async def test_sessions_that_end_lose_no_record_and_show_no_error(
    secured: Secured,
    topic_factory: Topics,
    group: str,
    endpoint: TokenEndpoint,
    caplog: pytest.LogCaptureFixture,
    membership: str,
) -> None:
    """Over ten re-authentications of the connections, and several tokens."""
    caplog.set_level(logging.DEBUG, "allocator.core.client.connection")
    topic = await asyncio.to_thread(topic_factory, 4, 1, None, secured.cluster)
    endpoint.respond = lambda: granted(8)
    chosen = {}
    if membership == "zookeeper":  # the usual root has the ACLs of tests with credentials
        chosen = {"zookeeper": secured.cluster.zookeeper, "root": f"/{group}"}

    def enough() -> bool:
        return reauthentications(caplog) >= 10 and len(endpoint.requests) >= 2

    security = secured.oauth(endpoint)
    await read_while_written(secured, topic, group, security, enough, membership=membership, **chosen)
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert not [record for record in warnings if "authentication" in record.getMessage()]
    assert not [record for record in warnings if record.levelno >= logging.ERROR]


async def test_a_provider_that_fails_until_sessions_end_delays_records_and_loses_none(
    secured: Secured, topic_factory: Topics, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = await asyncio.to_thread(topic_factory, 2, 1, None, secured.cluster)
    provider, failures = Provider(), 0

    def make() -> str:
        nonlocal failures
        if provider.calls > 6 and failures < 12:
            failures += 1
            raise LookupError("the vault is away")
        return unsecured_token()

    provider.make = make
    security = {"security_protocol": "SASL_SSL", "ssl_cafile": str(secured.certificates.ca)}
    security |= {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": provider}
    assert await read_while_written(secured, topic, group, security, lambda: failures == 12, membership="kafka")
    assert (
        "no credentials for OAUTHBEARER from token provider Provider: LookupError('the vault is away')" in caplog.text
    )


@pytest.mark.deadline(240)
async def test_the_daemon_its_page_and_the_commands(
    service: tuple[Setup, Path], secured: Secured, endpoint: TokenEndpoint
) -> None:
    setup, config = service
    checked = await asyncio.to_thread(setup.check, config, "--connect", **{SECRET: CLIENT_SECRET})
    assert checked.exit_code == 0, checked.stdout + checked.stderr
    assert 'sasl_oauth_client_secret = "***"' in checked.stdout
    assert not secrets_in(checked.stdout + checked.stderr)
    process = await asyncio.to_thread(setup.run, config, create=False, **{SECRET: CLIENT_SECRET})
    await asyncio.to_thread(setup.wait_done)

    def url() -> str | None:
        lines = (line["message"] for line in setup.logs())
        return next((found[1] for line in lines if (found := re.search(r"(http://[\d.:]+)/ has metrics", line))), None)

    def page_without_lag() -> str:
        with urllib.request.urlopen(f"{url()}/api/groups/{setup.group}", timeout=30) as response:
            page = str(response.read().decode())
        return page if '"lag":0' in page.replace(" ", "") else ""

    await asyncio.to_thread(wait_until, url, 60)
    assert not secrets_in(await asyncio.to_thread(wait_until, page_without_lag, 60))
    for words, text in (
        (("group", "describe", setup.group, "-c", str(config)), setup.topic),
        (("records", setup.topic, "-c", str(config), "--json"), '"begin": 0'),
    ):
        done = await asyncio.to_thread(CliRunner().invoke, main, words, env={SECRET: CLIENT_SECRET})
        assert done.exit_code == 0, done.stdout + done.stderr
        assert text in done.stdout
        assert not secrets_in(done.stdout + done.stderr)
    assert await asyncio.to_thread(stopped, process) == 0
    logs = setup.logs()
    assert [line for line in logs if line["level"] not in ("INFO", "DEBUG", "info", "debug")] == []
    assert not secrets_in(json.dumps(logs))


@pytest.mark.deadline(240)
async def test_the_mirror_takes_credentials_for_both_clusters(
    service: tuple[Setup, Path], kafka_cluster: LocalCluster, secured: Secured, topic_factory: Topics
) -> None:
    setup, config = service
    shared = ["--membership", "kafka", "--once", "--replication", "1", "--quiet"]
    from_secured = [
        "mirror",
        secured.brokers("SASL_SSL"),
        kafka_cluster.bootstrap,
        "--topic",
        setup.topic,
        "-c",
        config,
    ]
    done = await asyncio.to_thread(
        run, *from_secured, *shared, "--group", f"{setup.group}-1", **{SECRET: CLIENT_SECRET}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "300 records mirrored" in done.stdout
    other = await asyncio.to_thread(topic_factory, 1, 1, None, kafka_cluster)
    await asyncio.to_thread(kafka_cluster.produce, other, [b"1", b"2"])
    to_secured = [
        "mirror",
        kafka_cluster.bootstrap,
        secured.brokers("SASL_SSL"),
        "--topic",
        other,
        "--to-config",
        config,
    ]
    options = [*shared, "--group", f"{setup.group}-2"]
    refused = await asyncio.to_thread(run, *to_secured, *options, **{SECRET: CLIENT_SECRET})
    assert refused.returncode == 2
    assert "not set (nor ALLOCATOR_TO_KAFKA_SASL_OAUTH_CLIENT_SECRET)" in refused.stderr
    done = await asyncio.to_thread(
        run, *to_secured, *options, ALLOCATOR_TO_KAFKA_SASL_OAUTH_CLIENT_SECRET=CLIENT_SECRET
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 records mirrored" in done.stdout
    assert not secrets_in(done.stdout + done.stderr + refused.stdout + refused.stderr)


def test_spark_plans_with_a_token_endpoint(secured: Secured, topic_factory: Topics, endpoint: TokenEndpoint) -> None:
    pytest.importorskip("pyspark.sql.datasource", reason="pyspark 4 needs Python 3.10 or newer")
    from allocator.spark.topic import Topic

    topic = topic_factory(1, 1, None, secured.cluster)
    secured.cluster.produce(topic, [b"1", b"2"])
    options = {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.ssl.truststore.location": str(secured.certificates.ca),
        "kafka.sasl.oauthbearer.token.endpoint.url": endpoint.url,
        "kafka.sasl.login.callback.handler.class": "org.apache.kafka...OAuthBearerLoginCallbackHandler",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
        f'clientId="{CLIENT_ID}" clientSecret="{CLIENT_SECRET}" scope="kafka";',
    }
    assert Topic(secured.brokers("SASL_SSL"), topic, options).extent().log == {0: (0, 2)}
    assert endpoint.requests[-1][2]["scope"] == ["kafka"]
    with pytest.raises(ConfigError, match="https://host/path") as caught:
        Topic("h:1", topic, {**options, "kafka.sasl.oauthbearer.token.endpoint.url": f"https://u:{CLIENT_SECRET}@h"})
    assert not secrets_in(str(caught.value))
