"""A cluster behind proxies that delay plain, TLS and SASL connections."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allocator.testing import FaultProxy, LocalCluster
from tests.security.certificates import Certificates

KEYSTORE, USER, PASSWORD = "keystore-pw", "alice", "alice-pw"
# name of a delayed listener -> its protocol
PROTOCOLS = {"plain": "PLAINTEXT", "TLS": "SSL", "SASL": "SASL_SSL"}


@dataclass
class SlowListeners:
    """A proxy before each listener of a cluster. From 0.10.2 on, `cluster.bootstrap` bypasses the proxies."""

    cluster: LocalCluster
    proxies: dict[str, FaultProxy]
    ca: Path

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.proxies)

    def delay(self, seconds: float, direction: Any = "to_client") -> None:
        for proxy in self.proxies.values():
            proxy.latency(0.0)
            proxy.latency(seconds, direction=direction)

    def reset(self) -> None:
        """Ends all present connections."""
        for proxy in self.proxies.values():
            proxy.reset()

    def settings(self, listener: str) -> dict[str, Any]:
        """Returns the arguments of a client for this listener."""
        security: dict[str, Any] = {"security_protocol": PROTOCOLS[listener]}
        if listener != "plain":
            security["ssl_cafile"] = str(self.ca)
        if listener == "SASL":
            security.update(sasl_mechanism="PLAIN", sasl_plain_username=USER, sasl_plain_password=PASSWORD)
        return {"brokers": self.proxies[listener].address, "security": security}


@contextlib.contextmanager
def slow_listeners(kafka: str, directory: Path) -> Iterator[SlowListeners]:
    """Starts a cluster of one broker, with the listeners that this version has."""
    number = tuple(map(int, kafka.split(".")))[:3]
    listeners = ["plain"]
    if number >= (0, 9) and shutil.which("openssl") is not None:
        listeners.append("TLS")
        if number >= (0, 10):
            listeners.append("SASL")
    with contextlib.ExitStack() as stack:
        proxies = {listener: stack.enter_context(FaultProxy(0)) for listener in listeners}
        certificates = Certificates(directory)
        cluster = LocalCluster(
            kafka,
            broker_config=_settings(number, proxies, _keystore(certificates)),
            jvm_options=[f"-Djava.security.auth.login.config={_jaas(directory)}"],
        )
        stack.callback(cluster.stop)
        cluster.start()
        (broker,) = cluster.brokers
        ports = broker.more_ports if number >= (0, 10, 2) else (broker.port, *broker.more_ports)
        for proxy, port in zip(proxies.values(), ports):
            proxy.server_port = port
        yield SlowListeners(cluster, proxies, certificates.ca)


def _settings(number: tuple[int, ...], proxies: dict[str, FaultProxy], keystore: Path) -> dict[str, object]:
    if number < (0, 9):
        return {"advertised.host.name": "127.0.0.1", "advertised.port": proxies["plain"].port}
    if number < (0, 10, 2):  # listeners have no names, so nothing bypasses the proxies
        names, ports = {listener: PROTOCOLS[listener] for listener in proxies}, iter(("port", "port2", "port3"))
        listeners, advertised = [], []
    else:
        names, ports = {listener: listener.upper() for listener in proxies}, iter(("port2", "port3", "port4"))
        listeners, advertised = ["PLAINTEXT://127.0.0.1:{port}"], ["PLAINTEXT://127.0.0.1:{port}"]
    for listener, proxy in proxies.items():
        listeners.append(f"{names[listener]}://127.0.0.1:{{{next(ports)}}}")
        advertised.append(f"{names[listener]}://127.0.0.1:{proxy.port}")
    settings: dict[str, object] = {
        "listeners": ",".join(listeners),
        "advertised.listeners": ",".join(advertised),
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": keystore,
        "ssl.keystore.password": KEYSTORE,
        "ssl.key.password": KEYSTORE,
    }
    if number >= (0, 10):
        settings["sasl.enabled.mechanisms"] = "PLAIN"
    if number >= (0, 10, 2):
        protocols = [f"{names[listener]}:{PROTOCOLS[listener]}" for listener in proxies]
        settings["listener.security.protocol.map"] = ",".join(
            ["PLAINTEXT:PLAINTEXT", "CONTROLLER:PLAINTEXT", *protocols]
        )
    return settings


def _keystore(certificates: Certificates) -> Path:
    """PKCS12, which brokers of all versions read."""
    certificates.make("server")
    store = certificates.directory / "server.p12"
    command = f"openssl pkcs12 -export -name server -inkey server.key -in server.crt -out {store} -passout"
    subprocess.run([*command.split(), f"pass:{KEYSTORE}"], cwd=certificates.directory, check=True, capture_output=True)
    return store


def _jaas(directory: Path) -> Path:
    path = directory / "jaas.conf"
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    path.write_text(
        f'KafkaServer {{\n  {module} required username="{USER}" password="{PASSWORD}" user_{USER}="{PASSWORD}";\n}};\n'
    )
    return path
