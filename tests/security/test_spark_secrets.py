"""Nothing that Spark shows or stores has a secret of a job's brokers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from allocator.testing import produce
from allocator.testing.java import find_java
from tests.security.secured import PASSWORDS, Secured, secrets_in

pytest.importorskip("pyspark.sql.datasource", reason="pyspark 4.2 needs Python 3.10 or newer")

JOB = Path(__file__).with_name("spark_job.py")


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("names", ["ours", "java"])
def test_no_page_event_plan_or_checkpoint_of_spark_has_a_secret(names: str, secured: Secured, tmp_path: Path) -> None:
    topic, target = f"secret-{names}", f"secret-{names}-copy"
    for name in (topic, target):
        secured.cluster.create_topic(name, 2)
    produce(secured.cluster.bootstrap, topic, [(None, b"x", n % 2) for n in range(20)])
    settings = secured.kafka("SASL_SSL", "SCRAM-SHA-512")
    options = {f"security.{name}": value for name, value in settings.items()}
    if names == "java":
        login = f'username="alice" password="{PASSWORDS["SCRAM-SHA-512"]}"'
        options = {
            "kafka.security.protocol": "SASL_SSL",
            "kafka.ssl.truststore.location": settings["ssl_cafile"],
            "kafka.ssl.truststore.type": "PEM",
            "kafka.sasl.mechanism": "SCRAM-SHA-512",
            "kafka.sasl.jaas.config": f"org.apache.kafka.common.security.scram.ScramLoginModule required {login};",
        }
    environment = {
        **os.environ,
        "JAVA_HOME": find_java(oldest=17).home,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "OPTIONS": json.dumps(options),
    }
    command = [sys.executable, str(JOB), secured.brokers("SASL_SSL"), topic, target, str(tmp_path)]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    (tmp_path / "log").write_text(done.stdout + done.stderr)
    assert done.returncode == 0, done.stderr[-5000:]
    found = {path: path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file()}
    for place in ("shown.txt", "page-4", "events"):  # Spark shows the options there, without what it takes for a secret
        assert any("(redacted)" in text for path, text in found.items() if place in path.parts), place
    assert {"metadata", "offsets", "archive", "log"} <= {part for path in found for part in path.parts}
    leaks = {str(path.relative_to(tmp_path)): secrets_in(text) for path, text in found.items()}
    assert not {path: secrets for path, secrets in leaks.items() if secrets}
