"""OpenStack Swift with its S3 API, in processes of this host: an object store that is run in production."""

import base64
import contextlib
import email.utils
import getpass
import hmac
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from obstore.store import S3Store

KEY, SECRET = "test:tester", "testing"
READER, READER_SECRET = "test:reader", "reading"
_KINDS = ("account", "container", "object")

_PROXY = """
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
user = {user}
swift_dir = {folder}
[pipeline:main]
pipeline = catch_errors cache listing_formats s3api tempauth copy slo dlo proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:1
[filter:listing_formats]
use = egg:swift#listing_formats
[filter:s3api]
use = egg:swift#s3api
location = us-east-1
[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = {secret} {rights}
user_test_reader = {reader_secret}
[filter:copy]
use = egg:swift#copy
[filter:slo]
use = egg:swift#slo
[filter:dlo]
use = egg:swift#dlo
"""
_SERVER = """
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
user = {user}
swift_dir = {folder}
devices = {folder}/devices
mount_check = false
disable_fallocate = true
[pipeline:main]
pipeline = {kind}-server
[app:{kind}-server]
use = egg:swift#{kind}
"""


class Swift:
    """
    Args:
        python: of an environment that has the package swift.
        folder: for its configuration and its objects.

    Attributes:
        url: of its S3 API.
    """

    def __init__(self, python: Path, folder: Path) -> None:
        self._python = python
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ports = ports = dict(zip((*_KINDS, "proxy"), _free_ports(4), strict=True))
        self.url = f"http://127.0.0.1:{ports['proxy']}"
        (folder / "devices" / "sda").mkdir(parents=True)
        (folder / "swift.conf").write_text("[swift-hash]\nswift_hash_path_suffix = of-tests\n")
        known = {"user": getpass.getuser(), "folder": folder, "secret": SECRET, "reader_secret": READER_SECRET}
        self._proxy = _PROXY.format(port=ports["proxy"], rights="{rights}", **known)
        self._allow(".admin")
        for kind in _KINDS:
            (folder / f"{kind}.conf").write_text(_SERVER.format(kind=kind, port=ports[kind], **known))
            builder = str(folder / f"{kind}.builder")
            for words in (("create", "2", "1", "1"), ("add", f"r1z1-127.0.0.1:{ports[kind]}/sda", "1"), ("rebalance",)):
                command = [self._program("swift-ring-builder"), builder, *words]
                subprocess.run(command, check=words != ("rebalance",), capture_output=True)  # which warns by its status

    def _program(self, name: str) -> str:
        return str(self._python.with_name(name))

    def start(self) -> None:
        """Raises TimeoutError if it does not answer within a minute."""
        for kind in (*_KINDS, "proxy"):
            if kind not in self._processes:
                with (self._folder / f"{kind}.log").open("ab") as log:
                    command = [self._program(f"swift-{kind}-server"), str(self._folder / f"{kind}.conf"), "-v"]
                    self._processes[kind] = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + 60
        for kind, port in self._ports.items():
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                except OSError as error:
                    if time.monotonic() > deadline:
                        raise TimeoutError((self._folder / f"{kind}.log").read_text()[-2000:]) from error
                    time.sleep(0.1)

    def stop(self, *kinds: str) -> None:
        """Kills these processes; `start` starts them again."""
        for kind in kinds:
            process = self._processes.pop(kind)
            process.kill()
            process.wait(30)

    @contextlib.contextmanager
    def read_only(self) -> Iterator[None]:
        """All buckets may be read and listed, as their ACL says; writes get a 403."""
        self._allow("")
        try:
            yield
        finally:
            self._allow(".admin")

    def _allow(self, rights: str) -> None:
        """Set the rights of the tests' user in addition to ACLs. The proxy reads them when it starts."""
        (self._folder / "proxy.conf").write_text(self._proxy.replace("{rights}", rights))
        if "proxy" in self._processes:
            self.stop("proxy")
            self.start()

    @property
    def running(self) -> tuple[str, ...]:
        return tuple(self._processes)

    def environment(self, key: str = KEY, secret: str = SECRET) -> dict[str, str]:
        """Return a client's environment variables for it."""
        return {
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_ENDPOINT_URL": self.url,
            "AWS_REGION": "us-east-1",
        }

    def store(self, bucket: str, prefix: str | None = None) -> S3Store:
        return S3Store(
            bucket,
            prefix=prefix,
            endpoint=self.url,
            access_key_id=KEY,
            secret_access_key=SECRET,
            region="us-east-1",
            client_options={"allow_http": True},
        )

    def make_bucket(self, name: str) -> S3Store:
        """Its owner may write it, and everybody read it."""
        date, acl = email.utils.formatdate(usegmt=True), "public-read"
        text = f"PUT\n\n\n{date}\nx-amz-acl:{acl}\n/{name}"  # obstore signs no headers
        signature = base64.b64encode(hmac.digest(SECRET.encode(), text.encode(), "sha1")).decode()
        headers = {"Date": date, "x-amz-acl": acl, "Authorization": f"AWS {KEY}:{signature}"}
        request = urllib.request.Request(f"{self.url}/{name}", headers=headers, method="PUT")
        with urllib.request.urlopen(request, timeout=30):
            return self.store(name)

    def num_stored(self) -> int:
        """Objects and parts that are on its disk."""
        return len(list((self._folder / "devices").glob("sda/objects/**/*.data")))


@contextlib.contextmanager
def running_swift(folder: Path) -> Iterator[Swift]:
    """The environment variable OBJECT_STORE_PYTHON names the interpreter that has the package swift."""
    swift = Swift(Path(os.environ["OBJECT_STORE_PYTHON"]), folder)
    try:
        swift.start()
        yield swift
    finally:
        swift.stop(*swift.running)


def _free_ports(number: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)]
        return [one.getsockname()[1] for one in sockets]


if __name__ == "__main__":
    with running_swift(Path(sys.argv[1])) as found:
        found.make_bucket("palladio")
        print(f"{found.url}, bucket palladio, {KEY} {SECRET}")
        time.sleep(3600)
