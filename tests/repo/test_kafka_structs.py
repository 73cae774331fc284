"""allocator and kafka-python share `TopicPartition`, and each imports as if the other were not there."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

# A fresh process runs each program after `from allocator import TopicPartition, OffsetAndMetadata`.
PROGRAMS = {
    "kafka_is_not_imported": "assert 'kafka' not in sys.modules",
    "a_name_of_the_package": """
        from kafka import KafkaConsumer, TopicPartition as theirs, OffsetAndMetadata as offsets
        assert theirs is TopicPartition and offsets is OffsetAndMetadata
        """,
    "the_package": """
        import kafka
        assert kafka.TopicPartition is kafka.structs.TopicPartition is TopicPartition
        assert kafka.KafkaConsumer and kafka.__version__
        assert kafka.protocol.producer.ProduceRequest and kafka.coordinator.assignors.range
        """,
    "the_submodule": """
        import kafka.structs
        assert kafka.structs.TopicPartition is TopicPartition
        assert sys.modules["kafka.structs"] is kafka.structs
        """,
    "pickles": """
        import pickle
        data = [pickle.dumps((TopicPartition("t", 1), OffsetAndMetadata(5), TopicPartition), n) for n in range(6)]
        code = f"import pickle, sys; print(*(pickle.loads(each) for each in {data!r}), *sorted(sys.modules))"
        import subprocess
        words = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        assert words.count("TopicPartition(topic='t', partition=1)") == 6
        assert "allocator" not in words.split()
        for each in data:
            assert type(pickle.loads(each)[0]) is TopicPartition and pickle.loads(each)[2] is TopicPartition
        """,
    "pickles_by_cloudpickle": """
        from pyspark import cloudpickle
        assert cloudpickle.loads(cloudpickle.dumps(TopicPartition)) is TopicPartition
        assert type(cloudpickle.loads(cloudpickle.dumps(lambda: TopicPartition("t", 1)))()) is TopicPartition
        """,
    "a_patch": """
        from unittest.mock import patch
        with patch("kafka.structs.TopicPartition", 1):
            import kafka
            assert kafka.structs.TopicPartition == 1
        assert kafka.structs.TopicPartition is TopicPartition
        """,
}


def run(program: str, before: str = "from allocator import TopicPartition, OffsetAndMetadata") -> None:
    code = f"import sys\n{before}\n{textwrap.dedent(program)}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("what", PROGRAMS)
def test_kafka_python_imports_as_always_after_allocator(what: str) -> None:
    run(PROGRAMS[what])


@pytest.mark.parametrize("first", ["import kafka", "import kafka.structs", "from kafka.structs import TopicPartition"])
def test_allocator_takes_the_classes_of_an_imported_kafka_python(first: str) -> None:
    run(
        """
        from allocator import TopicPartition, OffsetAndMetadata
        import kafka.structs
        assert TopicPartition is kafka.structs.TopicPartition and OffsetAndMetadata is kafka.OffsetAndMetadata
        """,
        first,
    )


ENTRIES = {
    "a_consumer_of_a_kafka_group": """
        import asyncio
        from allocator import Consumer

        async def create():
            Consumer("t", group="g", brokers="127.0.0.1:1", membership="kafka")

        asyncio.run(create())
        """,
    "a_token_endpoint": """
        from allocator.core.client.security import check_security
        check_security({
            "security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER", "sasl_oauth_client_id": "c",
            "sasl_oauth_client_secret": "s", "sasl_oauth_token_endpoint": "https://localhost/token",
        })
        """,
    "the_names_of_the_package": "import allocator; [getattr(allocator, name) for name in allocator.__all__]",
    "a_producer": "import allocator.producer",
    "a_cutover": "import allocator.migrate",
    "a_connection": "from allocator.core.client import protocol; protocol.load()",
}


WATCH = """
import traceback

class Watch:
    importing = None

    def find_spec(self, name, path=None, target=None):
        if name == "kafka":
            frames = [frame for frame, _ in traceback.walk_stack(None) if frame.f_code.co_name == "_find_and_load"]
            self.importing = [frame.f_locals["name"] for frame in frames]

watch = Watch()
sys.meta_path.insert(0, watch)
"""


QUICK = {"a_consumer_of_a_kafka_group", "a_connection", "the_names_of_the_package"}


@pytest.mark.parametrize(
    "entry", [pytest.param(each, marks=() if each in QUICK else pytest.mark.long) for each in ENTRIES]
)
def test_kafka_python_is_imported_before_its_submodules(entry: str) -> None:
    """A thread that imports a submodule first deadlocks with a thread that imports `kafka`."""
    program = textwrap.dedent(ENTRIES[entry])
    check = (
        "assert 'kafka' in sys.modules and not [n for n in watch.importing if n.startswith('kafka.')], watch.importing"
    )
    run(f"{program}\n{check}", WATCH)


def test_threads_that_import_both_at_once_share_the_classes() -> None:
    """No thread imports a submodule of kafka-python first: Python may find a deadlock then, without allocator too."""
    run(
        """
        import threading
        sys.setswitchinterval(1e-6)
        found, gate = [], threading.Barrier(8)

        def kafka_first():
            gate.wait()
            import kafka
            found.append(kafka.structs.TopicPartition)

        def name_first():
            gate.wait()
            from kafka import TopicPartition
            found.append(TopicPartition)

        def allocator_first():
            gate.wait()
            from allocator import TopicPartition
            found.append(TopicPartition)

        def client_connects():
            gate.wait()
            import allocator
            from allocator.core.client import protocol
            protocol.load()
            found.append(sys.modules["kafka"].structs.TopicPartition)

        kinds = [kafka_first, name_first, allocator_first, client_connects] * 2
        threads = [threading.Thread(target=kind, daemon=True) for kind in kinds]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(found) == len(kinds) and len(set(found)) == 1, found
        import allocator, kafka
        assert allocator.TopicPartition is kafka.structs.TopicPartition is kafka.TopicPartition is found[0]
        """,
        "",
    )
