"""A cluster whose listeners require credentials, with recognisable secrets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from allocator.testing import LocalCluster
from tests.client.token_endpoint import CLIENT_SECRET, TokenEndpoint
from tests.security.certificates import Certificates

__all__ = [
    "DIGEST",
    "DIGEST_OPTIONS",
    "KEY_PASSWORD",
    "PASSWORDS",
    "REAUTH_S",
    "SCRAM_NAME",
    "SECRETS",
    "Secured",
    "secrets_in",
]

KEY_PASSWORD = "key-Xq7tLrVz0"
PASSWORDS = {"PLAIN": "plain-Zk4wPb9e1", "SCRAM-SHA-256": "scram256-Hn8sQm2d5", "SCRAM-SHA-512": "scram512-Rt3yJc6f7"}
SCRAM_NAME = "CN=svc,OU=x=2C"  # has the same passwords as alice
DIGEST = "digest-Wv5uGa0k9"
SECRETS = (KEY_PASSWORD, DIGEST, CLIENT_SECRET, *PASSWORDS.values())
REAUTH_S = 2.5  # lifetime of a session with OAUTHBEARER
DIGEST_OPTIONS = {"auth_data": [("digest", f"allocator:{DIGEST}")]}


def secrets_in(text: str) -> list[str]:
    """Returns the secrets that the text has, plain or in hexadecimal."""
    return [secret for secret in SECRETS if secret in text or secret.encode().hex() in text]


@dataclass
class Secured:
    """The cluster, and settings for each of its listeners."""

    cluster: LocalCluster
    certificates: Certificates

    def brokers(self, listener: str) -> str:
        """`listener`: "PLAINTEXT", "SSL" (with a client's certificate), "SASL_SSL" or "SASL_PLAINTEXT"."""
        if listener == "PLAINTEXT":
            return self.cluster.bootstrap
        (node,) = self.cluster.brokers
        return f"127.0.0.1:{node.more_ports[('SSL', 'SASL_SSL', 'SASL_PLAINTEXT').index(listener)]}"

    def kafka(self, listener: str, mechanism: str = "PLAIN") -> dict[str, Any]:
        settings: dict[str, Any] = {"security_protocol": listener}
        if listener.endswith("SSL"):
            settings["ssl_cafile"] = str(self.certificates.ca)
        if listener == "SSL":
            settings["ssl_certfile"] = str(self.certificates.certificate("client"))
            settings["ssl_keyfile"] = str(self.certificates.key("client"))
            settings["ssl_password"] = KEY_PASSWORD
        else:
            settings["sasl_mechanism"] = mechanism
            settings["sasl_plain_username"] = "alice"
            settings["sasl_plain_password"] = PASSWORDS[mechanism]
        return settings

    def oauth(self, endpoint: TokenEndpoint) -> dict[str, Any]:
        """For the listener "SASL_SSL", whose sessions last `REAUTH_S`."""
        tls = {"security_protocol": "SASL_SSL", "ssl_cafile": str(self.certificates.ca)}
        return {**tls, **endpoint.settings()}

    @property
    def zookeeper(self) -> str:
        """The port that requires TLS and a client's certificate."""
        (node,) = self.cluster.zookeepers
        return f"127.0.0.1:{node.more_ports[0]}"

    def zookeeper_options(self) -> dict[str, Any]:
        return {
            "use_ssl": True,
            "ca": str(self.certificates.ca),
            "certfile": str(self.certificates.certificate("client")),
            "keyfile": str(self.certificates.key("client")),
            "keyfile_password": KEY_PASSWORD,
            "check_hostname": True,
        }
