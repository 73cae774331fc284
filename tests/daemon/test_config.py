"""Settings files: every fault is reported with its place, value and allowed values; secrets are masked."""

from __future__ import annotations

import dataclasses
import itertools
import re
from pathlib import Path

import pytest

from allocator import Consumer, Kafka, ZooKeeper
from allocator.daemon import load_with_code
from allocator.daemon.config import SECTIONS, Config, load
from allocator.errors import ConfigError

GOOD = """
[kafka]
brokers = ["kafka1:9092", "[::1]:9093"]

[zookeeper]
hosts = "zk1:2181,zk2:2181/chroot"

[group]
name = "billing"
topics = ["orders", "returns"]

[handler]
target = "billing.handlers:handle"
"""


class Files:
    def __init__(self, directory: Path) -> None:
        self.path = directory / "config.toml"

    def load(self, text: str, **environ: str) -> Config:
        self.path.write_text(text)
        return load(self.path, environ)

    def faults(self, text: str, **environ: str) -> list[str]:
        """The lines of the error, with FILE for the path of the file."""
        with pytest.raises(ConfigError) as caught:
            self.load(text, **environ)
        first, *lines = str(caught.value).replace(str(self.path), "FILE").split("\n  ")
        assert first == f"the settings have {f'{len(lines)} faults' if len(lines) > 1 else 'a fault'}:"
        return lines


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def edited(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


def test_a_short_file_suffices_and_the_consumer_never_commits_by_itself(files: Files) -> None:
    options = files.load(GOOD + "\n[consume]\nauto_offset_reset = 1700000000000\n").consumer_options()
    assert options["brokers"] == "kafka1:9092,[::1]:9093"
    assert options["auto_commit_interval_s"] is None
    assert options["auto_offset_reset"] == 1700000000000


def test_a_group_of_kafkas_own_needs_no_zookeeper(files: Files) -> None:
    kafka = '[group]\nmembership = "kafka"\nsession_timeout_s = 30\ninstance_id = "billing-7"'
    text = edited("[group]", kafka).replace('[zookeeper]\nhosts = "zk1:2181,zk2:2181/chroot"', "")
    assert files.load(text).membership == Kafka(session_timeout_s=30, instance_id="billing-7")
    assert files.load(GOOD).membership == ZooKeeper("zk1:2181,zk2:2181/chroot", session_timeout_s=10)


def test_the_environment_wins_over_the_file(files: Files) -> None:
    config = files.load(
        GOOD,
        ALLOCATOR_KAFKA_BROKERS="other:1, more:2",
        ALLOCATOR_HANDLER_CONCURRENCY="3",
        ALLOCATOR_COMMIT_INTERVAL_S="0.25",
        ALLOCATOR_ZOOKEEPER_TLS="true",
        ALLOCATOR_CONSUME_AUTO_OFFSET_RESET="latest",
        ALLOCATOR_GROUP_NAME="",
    )
    assert config.kafka.brokers == ("other:1", "more:2")
    assert config.handler.concurrency == 3
    assert config.commit.interval_s == 0.25
    assert config.zookeeper.tls is True
    assert config.consume.auto_offset_reset == "latest"
    assert config.group.name == "billing"  # an empty variable counts as not set


def test_all_faults_are_reported_at_once(files: Files) -> None:
    assert files.faults(
        """
        [kafka]
        broker = "x:1"
        [zookeeper]
        hosts = 2181
        [group]
        name = "a/b"
        topics = ["t"]
        [handler]
        target = "nothing"
        concurrency = "8"
        """
    ) == [
        "FILE: kafka.broker is not a setting; did you mean kafka.brokers?",
        'FILE: kafka.brokers is missing: must be "host:port,host:port", or a list of "host:port" '
        "(or set ALLOCATOR_KAFKA_BROKERS)",
        'FILE: zookeeper.hosts = 2181: must be "host:port,host:port/chroot"',
        'FILE: handler.target = "nothing": must be "package.module:function"; '
        "write a colon between the module and the function",
        'FILE: handler.concurrency = "8": must be a whole number from 1 to 1024',
        'FILE: group.name = "a/b" with group.membership = "zookeeper": group name \'a/b\' cannot be a znode: it must '
        "have 1 to 249 characters, no '/', no control character, no character above U+FFFF such as an emoji, and be "
        "neither '.' nor '..'",
    ]


@pytest.mark.parametrize("hosts", ["a:b:c", "zk1:2181,1:2:3/chroot", "[a:b]:2181", "[::1::]:2181"])
def test_text_with_colons_that_is_no_ipv6_address_is_refused_as_a_host(files: Files, hosts: str) -> None:
    (fault,) = files.faults(
        f"""
        [kafka]
        brokers = "x:1"
        [zookeeper]
        hosts = "{hosts}"
        [group]
        name = "g"
        topics = ["t"]
        [handler]
        target = "tests.daemon.handlers_under_test:handle"
        """
    )
    assert fault.endswith("is not an address; write host or host:port")


def test_an_empty_name_is_called_empty(files: Files) -> None:
    (fault,) = files.faults(
        """
        [kafka]
        brokers = "x:1"
        [zookeeper]
        hosts = "[::1]:2181,fe80::1%eth0,zk1"
        [group]
        name = ""
        topics = ["t"]
        [handler]
        target = "tests.daemon.handlers_under_test:handle"
        """
    )
    assert fault == 'FILE: group.name = "": must be text; it is empty'


def test_wrong_names_of_code_are_reported_at_once_with_the_other_faults(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("allocator.daemon.process.load", lambda path, also: load(path, {}, also=also))
    files.path.write_text(
        """
        [kafka]
        brokers = "x:1"
        [group]
        name = "a"
        topics = ["t"]
        membership = "kafka"
        assignor = ["no_such_module:function", "naive"]
        [handler]
        target = "no_such_module:handle"
        sink = "json:nothing"
        skip_on = ["ValueError", "NoSuchError"]
        dead_letter_on = ["json.NoSuchError"]
        dead_letter_topic = "t.dead"
        concurrency = "8"
        """
    )
    with pytest.raises(ConfigError) as caught:
        load_with_code(str(files.path))
    first, *lines = str(caught.value).replace(str(files.path), "FILE").split("\n  ")
    assert first == f"the settings have {len(lines)} faults:"
    for start in (
        'FILE: handler.concurrency = "8": must be',
        "FILE: handler.target = \"no_such_module:handle\": handler 'no_such_module:handle': module 'no_such_module'",
        "FILE: handler.sink = \"json:nothing\": sink 'json:nothing': 'json' has no 'nothing'",
        'FILE: handler.skip_on = ["ValueError", "NoSuchError"]: handler.skip_on: \'NoSuchError\' is not',
        "FILE: handler.dead_letter_on = [\"json.NoSuchError\"]: handler.dead_letter_on: 'json.NoSuchError'",
        'FILE: group.assignor = ["no_such_module:function", "naive"]: ',
    ):
        assert [line for line in lines if line.startswith(start)], (start, lines)


@pytest.mark.parametrize("sink", ["json:loads", "json:JSONDecoder", "json:__doc__"])
def test_a_sink_that_is_none_is_a_fault(files: Files, sink: str) -> None:
    files.path.write_text(edited("[handler]", f'[handler]\nsink = "{sink}"'))
    with pytest.raises(ConfigError, match=f'handler.sink = "{sink}": sink takes an SqliteSink or an SqlSink'):
        load_with_code(str(files.path))


def with_section(addition: str) -> str:
    """Returns GOOD with further lines in a section."""
    section = addition.split("\n")[0]
    return edited(section, addition) if section in GOOD else f"{GOOD}\n{addition}\n"


# values of every kind: empty, out of range, not a number, a missing path, a directory
WRONG = r""""" | "x y" | -1 | 1e300 | nan | inf | "5s" | [] | [""] | [1] | ["a", "a"] | {} | 1979-05-27 | "/no" | "/"
| "\u0000" | 9223372036854775807 | true | [[]]""".replace("\n", " ").split(" | ")


def with_setting(section: str, key: str, value: str) -> str:
    """GOOD with this setting added or replaced."""
    text = re.sub(rf"(?m)^{key} = .*\n", "", GOOD)
    text = text if f"[{section}]" in text else f"{text}\n[{section}]\n"
    return text.replace(f"[{section}]\n", f"[{section}]\n{key} = {value}\n")


@pytest.mark.parametrize("section", SECTIONS)
def test_any_value_of_a_setting_is_accepted_or_rejected_by_name(files: Files, section: str) -> None:
    names = [field.name for field in dataclasses.fields(SECTIONS[section])]
    refused = 0
    for key, value in itertools.product(names, WRONG):
        try:
            files.load(with_setting(section, key, value))
        except ConfigError as error:
            refused += 1
            _, *lines = str(error).splitlines()
            assert any(f"{section}.{key}" in line for line in lines), (key, value, lines)
            assert all(len(line) < 500 for line in lines), (key, value)
    assert refused > len(WRONG) * len(names) / 2


@pytest.mark.parametrize("section", SECTIONS)
def test_a_mistyped_name_gets_a_suggestion(files: Files, section: str) -> None:
    assert f"did you mean [{section}]?" in files.faults(f"{GOOD}\n[{section.upper()}]\n")[0]
    for field in dataclasses.fields(SECTIONS[section]):
        (line,) = files.faults(with_setting(section, field.name.upper(), "1"))
        assert f"did you mean {section}.{field.name}?" in line
        variable = f"ALLOCATOR_{section}_{field.name}".upper()
        assert f"did you mean {variable}?" in files.faults(GOOD, **{f"{variable}S": "1"})[0]


@pytest.mark.parametrize(
    ("addition", "fault"),
    [
        ('[handler]\ndead_letter_topic = "orders"', "dead letters would be consumed again"),
        ("[handler]\nretry_backoff_s = 60", "with handler.retry_backoff_max_s = 30.0: the first delay exceeds"),
        ("[consume]\nmin_bytes = 60000000", "with consume.prefetch_bytes = 33554432: the first is more than"),
        ('[handler]\nretry_topics = ["1m"]', 'handler.retry_topics = ["1m"]: a dead-letter topic is needed'),
        (
            '[handler]\nsink = "shop:sink"\nworkers = "processes"',
            'handler.sink = "shop:sink" with handler.workers = "processes": each process would have a sink of its own',
        ),
        ('[kafka]\nsecurity_protocol = "SASL_SSL"', "with kafka.sasl_mechanism not set: SASL needs a mechanism"),
        (
            '[kafka]\nsecurity_protocol = "SASL_PLAINTEXT"\nsasl_mechanism = "PLAIN"\nsasl_plain_username = "u"',
            "sasl_plain_password not set (nor ALLOCATOR_KAFKA_SASL_PLAIN_PASSWORD): the mechanism needs it",
        ),
        ('[group]\npattern = "ord.*"', 'with group.pattern = "ord.*": set exactly one of them'),
        ('[group]\nmembership = "kiel"\noffsets = "kafka"', "this membership stores them in one of: zookeeper, both"),
        ('[group]\nfollow_load = "reported"', "only a program of your own can call report_load"),
        ("[group]\nrestart_grace_s = 60", "group.instance_id not set"),
        ("[commit]\ninterval_s = 1" + "0" * 400, "commit.interval_s = "),
        ("[comit]\ninterval_s = 1", "[comit] is not a section; did you mean [commit]?"),
    ],
)
def test_invalid_and_contradicting_settings_are_rejected(files: Files, addition: str, fault: str) -> None:
    (line,) = files.faults(with_section(addition))
    assert fault in line


def test_a_pattern_that_matches_the_dead_letters_or_needs_lookaround_is_rejected(files: Files) -> None:
    topics = 'topics = ["orders", "returns"]'
    (line,) = files.faults(edited(topics, 'pattern = "orders"') + 'dead_letter_topic = "orders.dead"\n')
    assert "dead letters would be consumed again" in line
    text = edited(topics, 'pattern = "(?!dead)"')
    (line,) = files.faults(text)
    assert line.startswith('FILE: group.pattern = "(?!dead)" with group.membership = "zookeeper"')
    assert files.load(text.replace("[group]", '[group]\nmembership = "kafka"')).group.pattern == "(?!dead)"


def test_faults_in_the_environment_name_the_variable(files: Files) -> None:
    assert files.faults(GOOD, ALLOCATOR_HANDLER_RETRIES="many", ALLOCATOR_KAFKA_BROKRES="x:1") == [
        "environment: ALLOCATOR_KAFKA_BROKRES is not a setting; did you mean ALLOCATOR_KAFKA_BROKERS?",
        'environment: ALLOCATOR_HANDLER_RETRIES: (handler.retries) = "many": must be a whole number from 0 to 1000000',
    ]


def test_variables_that_a_platform_sets_are_left_alone(files: Files) -> None:
    files.load(GOOD, ALLOCATOR_KAFKA_PORT_9092_TCP_ADDR="10.0.0.1", ALLOCATOR_CACHE="/x", PATH="/bin")


def test_secrets_are_never_shown(files: Files) -> None:
    text = edited(
        "[kafka]", '[kafka]\nsecurity_protocol = "SASL_SSL"\nsasl_mechanism = "PLAIN"\nsasl_plain_username = "user"'
    )
    environ = {"ALLOCATOR_KAFKA_SASL_PLAIN_PASSWORD": "hunter2"}
    config = files.load(text, **environ)
    assert config.kafka.security()["sasl_plain_password"] == "hunter2"
    assert config.shown()["kafka"]["sasl_plain_password"] == "***"
    assert "hunter2" not in repr(config)
    assert "hunter2" not in repr(config.shown())
    lines = files.faults(text.replace("SASL_SSL", "PLAINTEXT"), **environ)
    assert any("sasl_plain_password = *** (from ALLOCATOR_KAFKA_SASL_PLAIN_PASSWORD)" in line for line in lines)
    lines += files.faults(text.replace('"PLAIN"', '"PLAIN"\nsasl_plain_password = ["hunter2"]'))
    for section in ('kafka = "sasl_plain_password=hunter2"\n', '[[kafka]]\nsasl_plain_password = "hunter2"\n'):
        lines += files.faults(section)
    assert any("kafka must be a table, written [kafka]" in line for line in lines)
    assert "hunter2" not in "".join(lines)


TOKEN_ENDPOINT = edited(
    "[kafka]",
    '[kafka]\nsecurity_protocol = "SASL_SSL"\nsasl_mechanism = "OAUTHBEARER"\nsasl_oauth_client_id = "a"\n'
    'sasl_oauth_client_secret = "b"\nsasl_oauth_token_endpoint = "URL"',
)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://h/t?key=hunter2", "https://h/***"),
        ("https://h?key=hunter2", "https://h/***"),
        ("https://h/hunter2", "https://h/***"),
        ("https://h:8443", "https://h/***"),
        ("https://h.example", "https://h.example"),
        ("https://[::1]:1/t", "https://[::1]/***"),
        ("HTTPS://h/t?key=hunter2", "HTTPS://h/***"),
        ("https://h/t?a=1 hunter2", "https://h/***"),
        ("https://h/t?a=b@hunter2", "***"),
        ("https://u:1/hunter2@h/t", "***"),
        (" https://h/t?key=hunter2", "***"),
    ],
)
def test_of_a_token_endpoint_only_scheme_and_host_are_shown(files: Files, url: str, shown: str) -> None:
    config = files.load(TOKEN_ENDPOINT.replace("URL", url))
    assert config.kafka.security()["sasl_oauth_token_endpoint"] == url
    assert config.shown()["kafka"]["sasl_oauth_token_endpoint"] == shown
    assert "hunter2" not in repr(config)


@pytest.mark.parametrize(
    "url",
    [
        "http://h/t?key=hunter2",
        "HTTP://h/t?key=hunter2",
        "h/t?key=hunter2",
        "https:/h/t?key=hunter2",
        "https//h/t?key=hunter2",
        "ftp://h/t?key=hunter2",
        "https://hunter2@h/t",
        "https://u:hunter2@h/t",
        "https://u:p/hunter2@h/t",
        "https://u:p#hunter2@h/t",
        "https://u:p@hunter2@h/t",
        "https://h:x/t#hunter2",
        "https://h/t#hunter2",
        "https://hunter2%40h:x/t",
        "hunter2",
    ],
)
def test_a_refused_token_endpoint_shows_no_secret(files: Files, url: str) -> None:
    text = TOKEN_ENDPOINT.replace("URL", url)
    lines = files.faults(text) + files.faults(TOKEN_ENDPOINT, ALLOCATOR_KAFKA_SASL_OAUTH_TOKEN_ENDPOINT=url)
    lines += files.faults(text.replace(f'"{url}"', f'["{url}"]'))
    assert sum("sasl_oauth_token_endpoint" in line and "an https URL" in line for line in lines) == 3
    assert "hunter2" not in "".join(lines)


def test_security_settings_reach_kafka_and_kazoo_under_their_names(files: Files, tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_text("-")
    config = files.load(
        edited(
            "[kafka]", f'[kafka]\nsecurity_protocol = "SSL"\nssl_cafile = "{ca}"\nssl_check_hostname = false'
        ).replace(
            "[zookeeper]",
            f'[zookeeper]\ntls = true\nca = "{ca}"\ndigest_username = "u"\ndigest_password = "p:q"\n'
            'sasl_mechanism = "DIGEST-MD5"\nsasl_username = "su"\nsasl_password = "sp"',
        )
    )
    assert config.kafka.security() == {"security_protocol": "SSL", "ssl_cafile": str(ca), "ssl_check_hostname": False}
    assert config.zookeeper.options() == {
        "use_ssl": True,
        "ca": str(ca),
        "auth_data": [("digest", "u:p:q")],
        "sasl_options": {"mechanism": "DIGEST-MD5", "username": "su", "password": "sp"},
    }


def test_a_missing_file_and_bad_toml_are_config_errors(files: Files) -> None:
    with pytest.raises(ConfigError, match=r"config\.toml: cannot be read: No such file"):
        load(files.path)
    with pytest.raises(ConfigError, match=r"config\.toml: is not TOML: .*line 1"):
        files.load("kafka = \n")
    files.path.write_bytes(b"\xef\xbb\xbf" + GOOD.encode())  # as editors on Windows begin
    assert load(files.path).zookeeper.hosts == "zk1:2181,zk2:2181/chroot"
    files.path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not TOML"):
        load(files.path)
    for value in ("9" * 5000, "[" * 5000 + "]" * 5000):
        with pytest.raises(ConfigError, match="is not TOML"):
            files.load(f"number = {value}\n")


def test_a_member_has_the_same_id_after_a_restart(files: Files) -> None:
    config = files.load(edited("[group]", '[group]\ninstance_id = "a"\nrestart_grace_s = 60'))
    assert Consumer("orders", **config.consumer_options()).client_id == "allocator-a"
