"""A Redis server with TLS, and certificates of an authority made for the test run."""

import shutil
import subprocess
from pathlib import Path

import redis

from redis_replay.embedded import EmbeddedServer
from tests._server import find, missing


class Authority:
    """Signs certificates with the openssl program; all files lie in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = shutil.which("openssl") or missing("openssl")
        self.certificate = self._make("authority", "-addext", "basicConstraints=critical,CA:TRUE")

    def sign(self, name: str, hosts: str = "") -> str:
        """The file of a new certificate, for hosts such as "DNS:localhost". Its key lies beside it, as `.key`."""
        hosts_too = ["-addext", f"subjectAltName={hosts}"] if hosts else []
        return self._make(name, "-CA", self.certificate, "-CAkey", key_of(self.certificate), *hosts_too)

    def _make(self, name: str, *options: str) -> str:
        made = str(self.folder / f"{name}.crt")
        words = [self.program, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
        words += ["-subj", f"/CN={name}", "-keyout", key_of(made), "-out", made, *options]
        subprocess.run(words, check=True, capture_output=True, timeout=20)
        return made


def key_of(certificate: str) -> str:
    """The file of the certificate's key."""
    return certificate.removesuffix(".crt") + ".key"


class TlsServer:
    """Debian's Redis on a TLS port, with a certificate for `localhost` and no other host; and on a plain port."""

    def __init__(self, folder: Path, plain_port: int, port: int) -> None:
        self.authority = Authority(folder)
        self.plain_port, self.port = plain_port, port
        certificate = self.authority.sign("server", "DNS:localhost")
        self._server = EmbeddedServer(binary=find("redis") or missing("redis"), port=self.plain_port)
        self.client = redis.Redis(port=self.plain_port)
        try:
            self.set("tls-cert-file", certificate, "tls-key-file", key_of(certificate))
            self.set("tls-ca-cert-file", self.authority.certificate, "tls-auth-clients", "no", "tls-port", self.port)
        except redis.ResponseError:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The server's process."""
        return self._server.pid

    def set(self, *settings: str | int) -> None:
        """Sets the server's configuration, names and values in turn."""
        self.client.execute_command("CONFIG", "SET", *settings)

    def url(self, host: str = "localhost", login: str = "", **options: str) -> str:
        """An address with TLS; trusts the authority unless told otherwise."""
        options = {"ssl_ca_certs": self.authority.certificate} | options
        query = "&".join(f"{name}={value}" for name, value in options.items() if value)
        return f"rediss://{login}{host}:{self.port}/0?{query}"

    def close(self) -> None:
        self.client.close()
        self._server.close()
