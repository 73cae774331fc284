"""A certificate authority for a test, created with the openssl command, as PEM files."""

from __future__ import annotations

import subprocess
from pathlib import Path

__all__ = ["Certificates"]


class Certificates:
    """Has `ca`, and for each name a certificate, its key, and `pem` with both, for Kafka and ZooKeeper."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ca = directory / "ca.pem"
        # Python 3.13 and newer refuse an authority without key usage
        usage = "-addext keyUsage=critical,keyCertSign,cRLSign"
        self._run(f"req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2 -subj /CN=authority {usage}")

    def make(self, name: str, password: str = "") -> None:
        """Creates a certificate for 127.0.0.1 and localhost. `password` encrypts its key."""
        self._run(f"req -newkey rsa:2048 -nodes -keyout {name}.key -out {name}.csr -subj /CN={name}")
        (self.directory / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        self._run(
            f"x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out {name}.crt"
        )
        (self.directory / f"{name}.pem").write_text(self.key(name).read_text() + self.certificate(name).read_text())
        if password:
            self._run(f"pkcs8 -topk8 -v2 aes256 -in {name}.key -out {name}.locked -passout pass:{password}")
            self.key(name).write_bytes((self.directory / f"{name}.locked").read_bytes())

    def certificate(self, name: str) -> Path:
        return self.directory / f"{name}.crt"

    def key(self, name: str) -> Path:
        return self.directory / f"{name}.key"

    def pem(self, name: str) -> Path:
        return self.directory / f"{name}.pem"

    def _run(self, arguments: str) -> None:
        subprocess.run(["openssl", *arguments.split()], cwd=self.directory, check=True, capture_output=True)
