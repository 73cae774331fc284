"""Options: names, faults, starts and ends, ranges. No broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.errors import ConfigError
from allocator.spark.options import READ, STREAM, WRITE, read_options
from allocator.spark.ranges import Range, StartOrEnd, StreamOffsets, Time, limit_ends, pack, split
from allocator.types import TopicPartition

VALID = {"brokers": "a:9092,b:9092", "topics": "orders"}
SASL = {**VALID, "security.protocol": "SASL_SSL"}


def faults(options: dict[str, Any], use: str | None = READ) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read_options(options, use)
    return str(caught.value).splitlines()[1:]


def test_the_names_of_sparks_connector_are_accepted() -> None:
    pairs = [
        ("brokers", "kafka.bootstrap.servers", "a:9092,b:9092"),
        ("topics", "subscribe", "orders"),
        ("starting_offsets", "startingOffsets", "earliest"),
        ("max_offsets_per_trigger", "maxOffsetsPerTrigger", "100"),
        ("fail_on_data_loss", "failOnDataLoss", "false"),
        ("include_headers", "includeHeaders", "true"),
        ("min_partitions", "minPartitions", "8"),
        ("group", "kafka.group.id", "g"),
        ("isolation_level", "kafka.isolation.level", "read_committed"),
        ("security.security_protocol", "kafka.security.protocol", "SASL_SSL"),
        ("security.sasl_mechanism", "kafka.sasl.mechanism", "PLAIN"),
    ]
    own = {name: value for name, _, value in pairs}
    own |= {"security.sasl_plain_username": "u", "security.sasl_plain_password": "p w"}
    connector = {name: value for _, name, value in pairs}
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    connector["kafka.sasl.jaas.config"] = f'{module} required username="u" password="p w";'
    for name in ("kafka.session.timeout.ms", "kafka.max.request.size", "kafka.retries", "groupIdPrefix"):
        connector[name] = "3"  # for the Java client, without effect here
    connector["kafka.security.protocol"] = "sasl_ssl"  # the Java client ignores its case
    assert read_options(connector, STREAM) == read_options(own, STREAM)


@pytest.mark.parametrize(
    ("wrong", "nearest"), [("brokrs", "brokers"), ("kafka.max.poll.record", "kafka.max.poll.records")]
)
def test_an_unknown_option_is_refused_with_the_nearest_name(wrong: str, nearest: str) -> None:
    assert f'format("allocator"): {wrong} is not an option; did you mean {nearest}?' in "\n".join(
        faults({**VALID, wrong: "1"})
    )


def test_all_faults_are_reported_together() -> None:
    found = faults(
        {
            "topics": "no topic",
            "startingOffsets": "erliest",
            "minPartitions": "-1",
            "failOnDataLoss": "maybe",
            "commit": "always",
            "timeout_s": "nan",
            "colour": "red",
        }
    )
    for text in ("brokers is missing", "topics = no topic", "startingOffsets = erliest", "minPartitions = -1",
                 "failOnDataLoss = maybe", "commit = always", "timeout_s = nan", "colour is not"):  # fmt: skip
        assert any(text in line for line in found), text
    assert len(found) == 8


@pytest.mark.parametrize(
    ("options", "use", "message"),
    [
        ({"brokers": "a:1"}, READ, "nothing to read"),
        ({**VALID, "kafka.auto.offset.reset": "latest"}, READ, "is not an option; starting_offsets sets the start"),
        ({**VALID, "topics_pattern": "o.*"}, READ, "exclude each other"),
        ({**VALID, "max_partitions": "4", "min_partitions": "5"}, READ, "= 5 is more than max_partitions = 4"),
        (
            {**VALID, "group": "g", "membership": "zookeeper", "zookeeper": "z:1", "minOffsetsPerTrigger": "5"},
            STREAM,
            "minOffsetsPerTrigger does not apply to members",
        ),
        ({**VALID, "topics": "a", "subscribe": "b"}, READ, "are the same option and differ"),
        ({**VALID, "starting_offsets": "committed"}, READ, "needs a group"),
        ({**VALID, "commit": "after_batch", "group": "g"}, READ, "is for readStream"),
        ({"brokers": "a:1", "commit": "after_batch", "group": "g"}, WRITE, "is for readStream"),
        ({**VALID, "kafka.ssl.keystore.key": "PEM"}, READ, "is not an option; give a file: security.ssl_keyfile"),
        (
            {"brokers": "a:1", "topic": "t", "kafka.interceptor.classes": "com.acme.MaskingInterceptor"},
            WRITE,
            "is not an option; Python loads no Java class: change the records in the columns of the frame",
        ),
        ({**VALID, "kafka.interceptor.classes": "com.acme.AuditInterceptor"}, READ, "Python loads no Java class"),
        ({**SASL, "kafka.sasl.mechanism": "PALIN"}, READ, "kafka.sasl.mechanism is 'PALIN'; did you mean 'PLAIN'?"),
        ({**SASL, "kafka.sasl.jaas.config": "x.PlainLoginModule required;"}, READ, "needs username and password"),
        ({**SASL, "kafka.sasl.jaas.config": 'x.Krb5LoginModule required keyTab="k";'}, READ, "KRB5_CLIENT_KTNAME"),
        ({**VALID, "ending_offsets": "latest"}, STREAM, "does not apply to readStream"),
        ({**VALID, "max_offsets_per_trigger": "1"}, READ, "does not apply to read"),
        ({**VALID, "starting_offsets": '{"orders": {"0": 1}'}, READ, "not JSON"),
        ({**VALID, "starting_offsets": '{"orders": {"0": 3, "0": 4}}'}, READ, "duplicate name"),
        ({**VALID, "starting_offsets": '{"orders": {"0": 3, "00": 4}}'}, READ, "orders:0 is listed twice"),
        ({**VALID, "starting_offsets": '{"others": {"0": 3}}'}, READ, "others:0, which is not read"),
        ({**VALID, "ending_offsets": '{"orders": {"0": -2}}'}, READ, "cannot be the end"),
        ({"brokers": "a:1", "assign": '{"orders": [0, 0]}'}, READ, "listed twice"),
        ({**VALID, "security.protocol": "TLS"}, READ, "security: security.protocol is 'TLS'"),
        ({**VALID, "membership": "zookeeper", "group": "g"}, STREAM, "zookeeper not set with membership"),
        ({**VALID, "weight": "2"}, STREAM, "applies only to members"),
        ({**VALID, "membership": "zookeeper", "group": "g", "zookeeper": "z:1", "commit": "never"}, STREAM, "always"),
    ],
)
def test_options_that_conflict_or_cannot_be_parsed_are_refused(options: dict[str, str], use: str, message: str) -> None:
    assert message in "\n".join(faults(options, use))


def test_a_password_is_read_as_java_reads_it() -> None:
    text = r'x.PlainLoginModule required username="u" password="p\"w\\ d";'
    plain = {**SASL, "kafka.sasl.mechanism": "PLAIN"}
    assert read_options({**plain, "kafka.sasl.jaas.config": text}).security["sasl_plain_password"] == 'p"w\\ d'
    unquoted = {**plain, "kafka.sasl.jaas.config": "x.PlainLoginModule required username=u password=p-w/1;"}
    assert read_options(unquoted).security["sasl_plain_password"] == "p-w/1"


def test_a_kerberos_login_of_java_names_the_service() -> None:
    text = 'com.sun.security.auth.module.Krb5LoginModule required useTicketCache=true serviceName="kafka";'
    kerberos = {**SASL, "kafka.sasl.mechanism": "GSSAPI", "kafka.sasl.jaas.config": text}
    assert read_options(kerberos).security["sasl_kerberos_service_name"] == "kafka"


def test_a_pattern_that_only_java_knows_is_refused() -> None:
    for pattern in ("[[a-z]&&[^b]]+", r"a\p{Punct}"):
        assert "is not a regular expression" in "\n".join(faults({"brokers": "a:1", "subscribePattern": pattern}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kafka.ssl.truststore.location", "ca.pem"),
        ("kafka.ssl.keystore.location", "ca.pem"),  # of two settings
        ("kafka.ssl.endpoint.identification.algorithm", ""),
        ("security.ssl_cafile", "ca.pem"),
        ("kafka.sasl.mechanism", "PLAIN"),
    ],
)
@pytest.mark.parametrize("protocol", ["kafka.security.protocol", "security.security_protocol", None])
def test_an_error_of_security_names_the_given_options(
    name: str, value: str, protocol: str | None, tmp_path: Path
) -> None:
    (tmp_path / "ca.pem").touch()
    given = {**VALID, name: str(tmp_path / value) if value == "ca.pem" else value}
    if protocol is not None:
        given[protocol] = "PLAINTEXT"
    [found] = faults(given)
    shown = protocol or "security.security_protocol"
    assert found.endswith(f"security: {name} have no effect with {shown} PLAINTEXT")


@pytest.mark.parametrize("password", ["password", "plain", "sasl", "config", "sasl_plain_password-1"])
def test_a_password_does_not_change_the_names_of_options(password: str) -> None:
    module = f'x.PlainLoginModule required username="u" password="{password}";'
    [found] = faults({**VALID, "kafka.sasl.mechanism": "PLAIN", "kafka.sasl.jaas.config": module})
    names = "kafka.sasl.mechanism, kafka.sasl.jaas.config"
    assert found.endswith(f"security: {names} have no effect with security.security_protocol PLAINTEXT")


@pytest.mark.parametrize("password", ["sasl_mechanism-1", "sasl_mechanism", "PLAIN", "x-sasl_mechanism"])
def test_a_password_with_the_name_of_a_setting_is_not_shown(password: str) -> None:
    """The mechanism is the password, as if the user had mixed up the two."""
    found = faults(
        {**VALID, **SASL, "security.sasl_mechanism": f" {password}", "security.sasl_plain_password": password}
    )
    assert password not in "\n".join(found)


def test_no_password_is_ever_shown() -> None:
    options = {**VALID, "security.protocol": "SASL_SLL", "security.sasl_plain_password": "s3cret", "colour": "red"}
    assert "s3cret" not in "\n".join(faults(options))
    right = read_options({**VALID, "security.protocol": "SASL_SSL", "security.sasl_mechanism": "PLAIN",
                          "security.sasl_plain_password": "s3cret"})  # fmt: skip
    assert "s3cret" not in repr(right)
    assert right.security["sasl_plain_password"] == "s3cret"


def test_starts_are_read() -> None:
    def start(text: str, name: str = "starting_offsets") -> StartOrEnd | None:
        return read_options({**VALID, "group": "g", name: text}, READ).start

    tp = TopicPartition("orders", 3)
    assert start("LATEST") == StartOrEnd("latest")
    assert start("2026-01-01T01:00:00+01:00", "starting_timestamps") == StartOrEnd(Time(1767225600000))
    assert start("1767225600000", "startingTimestamp") == StartOrEnd(Time(1767225600000))
    assert start('{"orders": {"3": -2}}') == StartOrEnd(None, {tp: "earliest"})
    assert start('{"orders": {"3": 7}}', "startingOffsetsByTimestamp") == StartOrEnd(None, {tp: Time(7)})


RANGES = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)).map(sorted), min_size=1, max_size=20).map(
    lambda pairs: [Range("t", number, low, high) for number, (low, high) in enumerate(pairs)]
)


@given(RANGES, st.none() | st.integers(1, 200), st.none() | st.integers(1000, 10**6))
def test_a_split_has_the_same_offsets_in_the_requested_number_of_parts(
    ranges: list[Range], at_least: int | None, at_most_each: int | None
) -> None:
    parts = split(ranges, at_least, at_most_each)
    rebuilt: dict[int, list[int]] = {}
    for part in parts:
        assert part.size > 0
        assert at_most_each is None or part.size <= at_most_each
        edges = rebuilt.setdefault(part.partition, [part.start, part.start])
        assert edges[1] == part.start
        edges[1] = part.end
    assert rebuilt == {each.partition: [each.start, each.end] for each in ranges if each.size}
    total = sum(each.size for each in ranges)
    fewest = sum(1 if at_most_each is None else -(-each.size // at_most_each) for each in ranges if each.size)
    assert len(parts) == max(fewest, min(at_least or 0, total))


@given(RANGES, st.integers(1, 25))
def test_packs_hold_each_range_once_and_are_as_even_as_they_can_be(ranges: list[Range], at_most: int) -> None:
    packs = pack(ranges, at_most)
    assert len(packs) == min(at_most, len(ranges))
    assert sorted(each for packed in packs for each in packed) == sorted(ranges)
    assert all(packed == sorted(packed, key=ranges.index) for packed in packs)
    # the bound of the largest-first rule (Graham 1969), with the larger of its two lower bounds of the best
    total, largest = sum(each.size for each in ranges), max(each.size for each in ranges)
    heaviest = max(sum(each.size for each in packed) for packed in packs)
    assert heaviest <= total / len(packs) + largest


def test_positions_are_read_from_checkpoints_of_this_source_and_of_the_connector() -> None:
    a, b = TopicPartition("orders", 10), TopicPartition("orders", 9)
    positions = StreamOffsets({a: 5, b: 7}, {b: 2})
    text = json.dumps(positions.to_json())
    assert text == '{"orders": {"9": 7, "10": 5}, "@begin": {"orders": {"9": 2}}}'
    assert StreamOffsets.of_json(json.loads(text)) == positions
    assert StreamOffsets.of_json({"orders": {"9": 7}}) == StreamOffsets({b: 7}, {})


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 1000)), min_size=1, max_size=8), st.integers(1, 500))
def test_a_batch_is_as_large_as_it_may_be_and_leaves_no_partition_waiting(
    partitions: list[tuple[int, int]], most: int
) -> None:
    at = {TopicPartition("t", number): start for number, (start, _) in enumerate(partitions)}
    end = {TopicPartition("t", number): start + size for number, (start, size) in enumerate(partitions)}
    sizes = {tp: end[tp] - at[tp] for tp in at if end[tp] > at[tp]}
    found = limit_ends(at, end, most)
    shares = {tp: found[tp] - at[tp] for tp in at}
    assert sum(shares.values()) == min(most, sum(sizes.values()))
    assert all(0 <= shares[tp] <= sizes.get(tp, 0) for tp in at)
    # however fast the logs grow, each waiting partition is read within a few batches
    waiting, start = set(sizes), at
    for _ in range(-(-len(sizes) // most)):
        found = limit_ends(start, end, most)
        waiting -= {tp for tp in at if found[tp] > start[tp]}
        end = {tp: end[tp] + 1000 * (found[tp] - start[tp]) for tp in at}
        start = found
    assert not waiting
