"""A real server with every secret that it can have, asked for everything: none of them is to be read anywhere."""

import os
import re
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from palladio.utils import _descendants, launch_server_cmd, terminate_process
from tests.integration.serving import BODIES, CHAT, COMPLETIONS, LIMITS, START_SECONDS, _stdout_to, launch_command

SECRETS = {
    "flag": "sk-flag-6b1f0c",
    "second": "sk-second-77aa01",
    "file": "sk-file-91ffe2",
    "admin": "sk-admin-0ddba1",
    "password": "pass-word-5ca1ab1e",
    "wrong": "sk-wrong-badbad",  # what clients send in vain is theirs all the same
}
KEYS = ("flag", "second", "file", "admin")


class SecretServer:
    """Attributes:
    client: trusts the server's certificate, and brings no key.
    """

    def __init__(self, command: str, folder: Path, authority: trustme.CA) -> None:
        self.log = folder / "log"
        with self.log.open("w") as file, _stdout_to(file.fileno()):
            self.process, port = launch_server_cmd(command, host="127.0.0.1")
        trust = folder / "ca.pem"
        authority.cert_pem.write_to_path(str(trust))
        self.client = httpx.Client(
            base_url=f"https://127.0.0.1:{port}", verify=ssl.create_default_context(cafile=str(trust)), timeout=60
        )
        self.port = port

    def wait_ready(self, seconds: float = START_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while True:
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            try:
                if self.client.get("/health").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.2)


@pytest.fixture(scope="module")
def server(checkpoint: Path, environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecretServer]:
    folder = tmp_path_factory.mktemp("secrets")
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    locked = serialization.BestAvailableEncryption(SECRETS["password"].encode())
    form = serialization.PrivateFormat.PKCS8
    (folder / "key.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, form, locked))
    (folder / "keys").write_text(SECRETS["file"] + "\n")
    flags = (
        f"{LIMITS} --compile lazy --api-key {SECRETS['flag']} {SECRETS['second']} --api-key-file {folder / 'keys'} "
        f"--admin-api-key {SECRETS['admin']} --ssl-certfile {folder / 'cert.pem'} --ssl-keyfile {folder / 'key.pem'} "
        f"--ssl-keyfile-password {SECRETS['password']} --log-requests --log-requests-level 3 --log-level-http trace "
        f"--crash-dump-folder {folder / 'dumps'} --file-storage-path {folder / 'storage'} "
        "--max-engine-restarts 0"
    )
    command = launch_command(checkpoint, flags.replace("--fail-on-recompile", ""))
    server = SecretServer(command, folder, authority)
    try:
        server.wait_ready()
        yield server
    finally:
        server.client.close()
        terminate_process(server.process)


def ways(key: str) -> list[dict[str, str]]:
    return [{"authorization": f"Bearer {key}"}, {"x-api-key": key}]


def test_no_secret_is_told(server: SecretServer) -> None:
    answers: list[httpx.Response] = []

    def ask(method: str, path: str, **options: object) -> httpx.Response:
        answers.append(server.client.request(method, path, **options))
        return answers[-1]

    for name in ("flag", "second", "file"):
        for headers in ways(SECRETS[name]):
            assert ask("POST", COMPLETIONS, json=BODIES[COMPLETIONS], headers=headers).status_code == 200
            assert ask("POST", "/flush_cache", headers=headers).status_code == 401
    for headers in ways(SECRETS["admin"]):
        assert ask("POST", CHAT, json=BODIES[CHAT], headers=headers).status_code == 200
        assert ask("POST", "/flush_cache", headers=headers).status_code == 200
    for headers in (*ways(SECRETS["wrong"]), *ways(SECRETS["password"]), {}):
        query = "&".join(f"{name}={SECRETS['flag']}" for name in ("api_key", "key", "access_token", "x%2Dapi%2Dkey"))
        assert ask("POST", f"{COMPLETIONS}?{query}", json=BODIES[COMPLETIONS], headers=headers).status_code == 401
    good = ways(SECRETS["flag"])[0]
    faults = [
        ask("POST", COMPLETIONS, content=b"{", headers=good | {"content-type": "application/json"}),
        ask("POST", COMPLETIONS, json={"prompt": "x", "max_tokens": -1}, headers=good),
        ask("POST", COMPLETIONS, json={"prompt": "x", "model": "none"}, headers=good),
        ask("POST", COMPLETIONS, json={"prompt": "x", "unknown": 1}, headers=good),
        ask("POST", COMPLETIONS, content=b"x", headers=good | {"content-type": "text/plain"}),
        ask("GET", "/none", headers=good),
        ask("GET", COMPLETIONS, headers=good),
        ask("POST", COMPLETIONS, json=BODIES[COMPLETIONS], headers=good | {"x-filler": "x" * 100_000}),
        ask("POST", "/flush_cache?timeout=x", headers=ways(SECRETS["admin"])[0]),
        ask("POST", "/v1/messages", json={}, headers=ways(SECRETS["wrong"])[1]),
    ]
    assert {answer.status_code for answer in faults} >= {400, 401, 404, 405, 415, 431}
    for path in ("/server_info", "/get_server_info", "/metrics", "/openapi.json", "/v1/capabilities", "/model_info"):
        assert ask("GET", path, headers=good).status_code == 200
    told = server.client.get("/server_info", headers=good).json()
    assert [told[name] for name in ("api_key", "admin_api_key", "ssl_keyfile_password")] == ["***"] * 3
    crash(server, good)
    texts = [answer.text + str(answer.headers.raw) for answer in answers]
    texts += [server.log.read_text(encoding="utf-8", errors="replace")]
    dumps = list((server.log.parent / "dumps").iterdir())
    assert dumps
    texts += [dump.read_text() for dump in dumps]
    texts += [
        file.read_bytes().decode("latin-1") for file in (server.log.parent / "storage").rglob("*") if file.is_file()
    ]
    for name, secret in SECRETS.items():
        found = [text[max(0, text.find(secret) - 300) :][:400] for text in texts if secret in text]
        assert not found, (name, found[0])
    log = texts[len(answers)]
    assert f"running on https://127.0.0.1:{server.port}" in log
    assert "api_key=***" in log
    names = ", ".join(["key:[0-9a-f]{16}"] * 3)
    assert re.search(f"API keys of {names}: each owner sees only its own files and batches; the admin key", log)


def crash(server: SecretServer, headers: dict[str, str]) -> None:
    """Kills the engine under a running request: the last requests are dumped."""
    body = {"prompt": "x", "max_tokens": 400, "ignore_eos": True, "stream": True}
    with server.client.stream("POST", COMPLETIONS, json=body, headers=headers) as stream:
        lines = stream.iter_lines()
        next(lines)
        for pid in _descendants(server.process.pid):
            if b"palladio.runtime.process.engine_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
        list(lines)
    deadline = time.monotonic() + 60
    while not list((server.log.parent / "dumps").glob("crash-*.json")):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param("--port many", marks=pytest.mark.slow),
        pytest.param("--port 99999", marks=pytest.mark.slow),
        pytest.param("--no-such-flag", marks=pytest.mark.slow),
        pytest.param("--page-size 7 --dtype int3", marks=pytest.mark.slow),
        "--ssl-keyfile-password {password} --port 0",
        pytest.param("--ssl-certfile /none --ssl-keyfile-password {password} --port 0", marks=pytest.mark.slow),
    ],
)
def test_a_start_that_fails_tells_none_either(tmp_path: Path, flags: str) -> None:
    words = [*("--model-path", str(tmp_path), "--api-key", SECRETS["flag"], SECRETS["second"])]
    words += [f"--admin-api-key={SECRETS['admin']}", *flags.format(**SECRETS).split()]
    done = subprocess.run(
        [sys.executable, "-m", "palladio.launch_server", *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    output = done.stdout + done.stderr
    assert output
    assert not [name for name, secret in SECRETS.items() if secret in output], output
