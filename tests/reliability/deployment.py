"""A federation as it is deployed, on this machine: a SuperLink and SuperNodes with TLS and keys of their own."""

import contextlib
import datetime
import ipaddress
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import psutil
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.app_folder import PROJECT, copy_app

BIN = Path(sys.executable).parent
HOST = "127.0.0.1"


def free_port() -> int:
    with socket.socket() as one:
        one.bind((HOST, 0))
        port: int = one.getsockname()[1]
        return port


def certificates(folder: Path) -> None:
    """ca.crt, and server.key and server.pem that it has signed for this machine."""
    authority, server = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    named = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in ("test authority", "localhost")]
    now = datetime.datetime.now(datetime.UTC)

    def signed(name: x509.Name, key: ec.EllipticCurvePrivateKey, extension: x509.ExtensionType) -> bytes:
        builder = x509.CertificateBuilder().subject_name(name).issuer_name(named[0]).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number()).add_extension(extension, critical=True)
        until = now + datetime.timedelta(days=1)
        builder = builder.not_valid_before(now - datetime.timedelta(minutes=5)).not_valid_after(until)
        return builder.sign(authority, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    (folder / "ca.crt").write_bytes(signed(named[0], authority, x509.BasicConstraints(ca=True, path_length=None)))
    here = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(HOST))])
    (folder / "server.pem").write_bytes(signed(named[1], server, here))
    (folder / "server.key").write_bytes(
        server.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )


def node_key(path: Path) -> None:
    """A SuperNode's private key, and beside it, `.pub`, the public one."""
    key = ec.generate_private_key(ec.SECP384R1())
    openssh = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    path.with_suffix(".pub").write_bytes(key.public_key().public_bytes(*openssh))
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
    )
    path.chmod(0o600)


@dataclass
class Deployment:
    """folder: of keys, logs, Flower's home and the app. nodes: the processes of the SuperNodes, by partition."""

    folder: Path
    nodes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @cached_property
    def app(self) -> Path:
        return copy_app(self.folder / "app")

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(PROJECT),
            "FLWR_HOME": str(self.folder),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FEDSPILL_ALLOW_CODE": "all",
            "OMP_NUM_THREADS": "1",
        }

    def start(self, name: str, *arguments: object) -> subprocess.Popen[bytes]:
        """A daemon, whose folder holds no code that could stand in for ours; its log is there."""
        (self.folder / name).mkdir()
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [BIN / str(arguments[0]), *map(str, arguments[1:])],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
                cwd=self.folder / name,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def flower(self, *arguments: object, patience: float = 900) -> subprocess.CompletedProcess[str]:
        """Its command line. patience: seconds after which it is given up."""
        command = [str(BIN / "flwr"), *map(str, arguments)]
        return subprocess.run(
            command, capture_output=True, text=True, env=self.environment, cwd=self.app, timeout=patience, check=False
        )

    def superlink(self) -> None:
        certificates(self.folder)
        authority = self.folder / "ca.crt"
        (self.folder / "config.toml").write_text(
            f'[superlink.test]\naddress = "{HOST}:{self.port}"\nroot-certificates = "{authority}"\n'
        )
        self.start(
            "superlink", "flower-superlink", "--host", HOST, "--port", self.port, "--ssl-ca-certfile", authority,
            "--ssl-certfile", self.folder / "server.pem", "--ssl-keyfile", self.folder / "server.key",
            "--enable-supernode-auth", "--disable-runtime-dependency-installation",
        )  # fmt: skip
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection((HOST, self.port), timeout=1):
                return
            time.sleep(0.1)
        raise AssertionError((self.folder / "superlink.log").read_text())

    def register(self, partition: int) -> None:
        key = self.folder / f"node{partition}"
        node_key(key)
        said = self.flower("supernode", "register", key.with_suffix(".pub"), "test")
        assert said.returncode == 0, said.stdout + said.stderr

    def supernode(self, partition: int, of: int, *, key: Path | None = None) -> subprocess.Popen[bytes]:
        node = self.start(
            f"supernode{partition}", "flower-supernode", "--superlink", f"{HOST}:{self.port}",
            "--root-certificates", self.folder / "ca.crt", "--port", free_port(),
            "--auth-supernode-private-key", key or self.folder / f"node{partition}",
            "--node-config", f"partition-id={partition} num-partitions={of}",
        )  # fmt: skip
        self.nodes[partition] = node
        return node

    def lose(self, partition: int) -> None:
        """As where a machine is switched off: nothing of it says good-bye."""
        end(self.nodes[partition].pid)

    def stop(self) -> None:
        for process in self.started:
            end(process.pid)
            process.wait()


def end(pid: int) -> None:
    """Kill a process and all that it has started."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for one in [*process.children(recursive=True), process]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.send_signal(signal.SIGKILL)


@contextlib.contextmanager
def deployed(folder: Path, nodes: int) -> Iterator[Deployment]:
    """A SuperLink that knows the keys of so many SuperNodes, which are up."""
    deployment = Deployment(folder)
    try:
        deployment.superlink()
        for partition in range(nodes):
            deployment.register(partition)
            deployment.supernode(partition, nodes)
        yield deployment
    finally:
        deployment.stop()
