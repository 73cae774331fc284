"""A cluster with listeners for TLS and SASL."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest

from allocator.testing import LocalCluster
from tests.security.certificates import Certificates
from tests.security.secured import KEY_PASSWORD, PASSWORDS, REAUTH_S, SCRAM_NAME, Secured


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command to create certificates")
    certificates = Certificates(tmp_path_factory.mktemp("tls"))
    certificates.make("server")
    certificates.make("client", KEY_PASSWORD)
    return certificates


@pytest.fixture(scope="session")
def secured(cluster_factory: Callable[..., LocalCluster], certificates: Certificates) -> Secured:
    module = "org.apache.kafka.common.security"
    scram = f"{module}.scram.ScramLoginModule required;"
    plain = f'{module}.plain.PlainLoginModule required user_alice="{PASSWORDS["PLAIN"]}";'
    broker: dict[str, Any] = {
        "listeners": "PLAINTEXT://127.0.0.1:{port},SSL://127.0.0.1:{port2},SASL_SSL://127.0.0.1:{port3},"
        "SASL_PLAINTEXT://127.0.0.1:{port4}",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": certificates.pem("server"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": certificates.ca,
        "listener.name.ssl.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": ",".join([*PASSWORDS, "OAUTHBEARER"]),
    }
    oauth = f"{module}.oauthbearer.OAuthBearerLoginModule required;"
    for listener in ("sasl_ssl", "sasl_plaintext"):
        name = f"listener.name.{listener}"
        broker[f"{name}.plain.sasl.jaas.config"] = plain
        broker[f"{name}.oauthbearer.sasl.jaas.config"] = oauth
        broker[f"{name}.oauthbearer.connections.max.reauth.ms"] = int(REAUTH_S * 1000)
        for mechanism in ("scram-sha-256", "scram-sha-512"):
            broker[f"{name}.{mechanism}.sasl.jaas.config"] = scram
    keeper = {
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "secureClientPort": "{port2}",
        "secureClientPortAddress": "127.0.0.1",
        "ssl.keyStore.location": certificates.pem("server"),
        "ssl.trustStore.location": certificates.ca,
        "ssl.clientAuth": "need",
        "ssl.hostnameVerification": "false",
    }
    cluster = cluster_factory("3.9.1", broker_config=broker, zookeeper_config=keeper)
    create_scram_users(cluster.bootstrap)
    return Secured(cluster, certificates)


def create_scram_users(bootstrap: str) -> None:
    from kafka.admin import KafkaAdminClient, ScramMechanism, UserScramCredentialUpsertion

    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        users = [
            UserScramCredentialUpsertion(name, ScramMechanism[mechanism.replace("-", "_")], PASSWORDS[mechanism])
            for name in ("alice", SCRAM_NAME)
            for mechanism in PASSWORDS
            if mechanism != "PLAIN"
        ]
        errors = admin.alter_user_scram_credentials(users)
        assert not any(errors.values()), errors
    finally:
        admin.close()
