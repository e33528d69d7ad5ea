"""The attacks of attacks.py: what is sent, and how its answer is told."""

import concurrent.futures
import contextlib
import dataclasses
import http.client
import json
import random
import socket
import time
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

KEYS = ("sk-first-9d81", "sk-second-4c07")
EVIL = "https://evil.example"
GUARD = "no answer"  # within the time of an attack

_JSON = {"Content-Type": "application/json"}
_REFUSED = (400, 401, 403, 404, 413, 415, 421)


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """Attributes:
    status: None: there was none.
    seconds: until it was there, or until it was given up.
    """

    status: int | None
    seconds: float
    body: bytes = b""
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        return f"{GUARD if self.status is None else self.status} in {self.seconds:.2f} s"


class Target:
    """The server under attack, for one attack.

    Args:
        url: its address.
        limit: seconds for all of its requests together.
    """

    def __init__(self, url: str, limit: float) -> None:
        self._address = urlsplit(url).netloc
        self._deadline = time.monotonic() + limit

    @property
    def left(self) -> float:
        """Seconds."""
        return max(0.05, self._deadline - time.monotonic())

    def send(self, method: str, path: str, body: bytes | object = None, headers: Mapping[str, str] = _JSON) -> Answer:
        """Send a request.

        Args:
            body: bytes, or any other value, which is sent as JSON.
        """
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection = http.client.HTTPConnection(self._address, timeout=self.left)
        begun = time.perf_counter()
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has answered before all was sent
                connection.request(method, path, data, dict(headers))
            response = connection.getresponse()
            read = response.read()
            return Answer(response.status, time.perf_counter() - begun, read, dict(response.headers))
        except (OSError, http.client.HTTPException):
            return Answer(None, time.perf_counter() - begun)
        finally:
            connection.close()

    def connect(self, receive_buffer: int) -> socket.socket:
        """Open a connection with a small receive buffer, which the client does not read."""
        host, _, port = self._address.rpartition(":")
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        raw.settimeout(self.left)
        raw.connect((host, int(port)))
        return raw


@dataclasses.dataclass(frozen=True, slots=True)
class Attack:
    """Attributes:
    run: does it, and says what came of it.
    prepare: makes what it sends; outside of the time that is measured.
    flags: of the server.
    is_quick: it is part of --quick.
    is_last: of its server: what it left to do would be felt by the next one.
    """

    name: str
    run: Callable[[Target, bytes], str]
    prepare: Callable[[], bytes] = lambda: b""
    flags: tuple[str, ...] = ()
    key: str | None = None
    is_quick: bool = False
    is_last: bool = False


def nested(size: int) -> bytes:
    """Make a JSON list of about `size` bytes: lists in lists, not deeper than the servers' limit."""
    unit = b"[" * 60 + b"]" * 60
    return b"[" + b",".join([unit] * (size // (len(unit) + 1))) + b"]"


def chat_body(size: int) -> bytes:
    head = b'{"messages":[{"role":"user","content":"a"}],"max_tokens":4,"chat_template_kwargs":{"a":'
    return head + nested(size) + b"}}"


def batch_form(size: int) -> bytes:
    """An upload of one line."""
    line = b'{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":' + chat_body(size) + b"}\n"
    return multipart({"purpose": b"batch"}, line)


def multipart(fields: Mapping[str, bytes], file: bytes) -> bytes:
    parts = [
        b'--x\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (k.encode(), v) for k, v in fields.items()
    ]
    head = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n'
    return b"".join(parts) + head + file + b"\r\n--x--\r\n"


def text_of(size: int) -> str:
    """Words that a tokenizer cannot take whole."""
    dice = random.Random(0)
    words = ["".join(dice.choices("abcdefghijklmnopqrstuvwxyz", k=dice.randint(2, 9))) for _ in range(5000)]
    return " ".join(dice.choices(words, k=size // 6))[:size]


def _tokenize_body(size: int) -> bytes:
    return json.dumps({"prompt": text_of(size)}).encode()


def _ids_body(count: int) -> bytes:
    return b'{"tokens":[' + b",".join([b"%d" % (i % 10) for i in range(1000)] * (count // 1000)) + b"]}"


def _post(path: str) -> Callable[[Target, bytes], str]:
    return lambda target, body: str(target.send("POST", path, body))


def _profile(target: Target, _: bytes) -> str:
    started = target.send("POST", "/start_profile", {})
    if started.status == 200:
        time.sleep(min(8.0, target.left / 3))
    return f"start {started}, stop {target.send('POST', '/stop_profile')}"


def _batch(target: Target, form: bytes) -> str:
    upload = target.send("POST", "/v1/files", form, {"Content-Type": "multipart/form-data; boundary=x"})
    if upload.status != 200:
        return f"upload {upload}"
    made = {
        "input_file_id": json.loads(upload.body)["id"],
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }
    batch = target.send("POST", "/v1/batches", made)
    if batch.status != 200:
        return f"upload {upload}, batch {batch}"
    name, begun = json.loads(batch.body)["id"], time.perf_counter()
    status = "validating"
    while status in ("validating", "in_progress", "finalizing") and target.left > 0.5:
        time.sleep(0.1)
        answer = target.send("GET", f"/v1/batches/{name}")
        status = json.loads(answer.body)["status"] if answer.status == 200 else status
    return f"upload {upload}, batch {status} after {time.perf_counter() - begun:.2f} s"


def _grammar(target: Target, fields: Mapping[str, object]) -> Answer:
    return target.send("POST", "/v1/completions", {"prompt": "a", "max_tokens": 4, **fields})


def _slow_grammars(target: Target, _: bytes) -> str:
    """Four at once, and a second later a plain regex."""
    schemas = [{"json_schema": {"type": "integer", "multipleOf": 4_999_999 + 2 * i}} for i in range(4)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(_grammar, target, schema) for schema in schemas]
        time.sleep(1)
        plain = _grammar(target, {"regex": "[a-z]{3}"})
        first = asked[0].result()
    return f"plain regex {plain}; the first of the four {first}"


def _big_grammars(target: Target, _: bytes) -> str:
    """56 grammars of tens of MB each, four at a time."""
    schemas = [{"json_schema": {"type": "integer", "multipleOf": 70_001 + 2 * i}} for i in range(56)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda schema: _grammar(target, schema), schemas))
    return f"{_counted(answers)}, the slowest {max(answers, key=lambda answer: answer.seconds)}"


def _flush(target: Target, _: bytes) -> str:
    return str(target.send("POST", "/flush_cache"))


def _deaf_client(target: Target, _: bytes) -> str:
    """Asks for many samples with log-probabilities, and reads nothing."""
    fields = {"prompt": "a", "max_tokens": 2000, "n": 32, "logprobs": 5, "stream": True, "ignore_eos": True}
    body = json.dumps(fields).encode()
    with target.connect(4096) as raw:
        raw.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
        raw.sendall(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        time.sleep(target.left - 1)
    return "never read"


def _reads_files_from_elsewhere(target: Target, _: bytes) -> str:
    answer = target.send("GET", "/v1/files", None, {"Origin": EVIL})
    allowed = {name.lower(): value for name, value in answer.headers.items()}.get("access-control-allow-origin")
    told = "the page may read it" if allowed in ("*", EVIL) else "the browser keeps it from the page"
    return f"{answer}; {told}"


def _aborts_from_elsewhere(target: Target, _: bytes) -> str:
    answer = target.send("POST", "/abort_request", b'{"abort_all":true}', {"Origin": EVIL})
    return f"{answer}; {_verdict(answer)}"


def _foreign_host(target: Target, _: bytes) -> str:
    answer = target.send("GET", "/v1/files", None, {"Host": "evil.example"})
    return f"{answer}; {_verdict(answer)}"


def _other_keys_file(target: Target, _: bytes) -> str:
    first, second = ({"Authorization": f"Bearer {key}"} for key in KEYS)
    form = multipart({"purpose": b"batch"}, b"secret\n")
    upload = target.send("POST", "/v1/files", form, first | {"Content-Type": "multipart/form-data; boundary=x"})
    if upload.status != 200:
        return f"upload {upload}"
    name = json.loads(upload.body)["id"]
    read = target.send("GET", f"/v1/files/{name}/content", None, second)
    return f"read {read.status}{', and it is the content' if b'secret' in read.body else ''}; {_verdict(read)}"


def _verdict(answer: Answer) -> str:
    return "refused" if answer.status in _REFUSED else "not refused"


def _counted(answers: list[Answer]) -> str:
    counts: dict[str, int] = {}
    for answer in answers:
        name = GUARD if answer.status is None else str(answer.status)
        counts[name] = counts.get(name, 0) + 1
    return ", ".join(f"{count} × {name}" for name, count in sorted(counts.items()))


def _wait(target: Target, _: bytes) -> str:
    time.sleep(min(10.0, target.left))
    return "-"


MB = 1_000_000
_CHAT = "/v1/chat/completions"
ATTACKS = (
    Attack("no attack, for comparison", _wait, is_quick=True),
    Attack("a page of another origin reads /v1/files", _reads_files_from_elsewhere, is_quick=True),
    Attack("Host: evil.example", _foreign_host, is_quick=True),
    Attack("a page of another origin aborts all, no content type", _aborts_from_elsewhere, is_quick=True),
    Attack("nested lists, 6 MB, to chat", _post(_CHAT), lambda: chat_body(6 * MB), is_quick=True),
    Attack("nested lists, 60 MB, to chat", _post(_CHAT), lambda: chat_body(60 * MB)),
    Attack("a batch file of one line, 6 MB of nested lists", _batch, lambda: batch_form(6 * MB), is_quick=True),
    Attack("a batch file of one line, 60 MB of nested lists", _batch, lambda: batch_form(60 * MB)),
    Attack("/tokenize, 1 MB of text", _post("/tokenize"), lambda: _tokenize_body(MB), is_quick=True),
    Attack("/tokenize, 10 MB of text", _post("/tokenize"), lambda: _tokenize_body(10 * MB)),
    Attack("/detokenize, 20 million ids", _post("/detokenize"), lambda: _ids_body(20 * MB), is_last=True),
    Attack("4 × multipleOf 4999999, then a plain regex", _slow_grammars, is_quick=True, is_last=True),
    Attack("56 grammars of tens of MB", _big_grammars),
    Attack("/flush_cache after them (RSS: what it gave back)", _flush, is_last=True),
    Attack("a client that never reads", _deaf_client, is_last=True),
    Attack("start_profile {} under two streams", _profile, is_last=True),
    Attack(
        "one key reads another key's file", _other_keys_file, flags=("--api-key", *KEYS), key=KEYS[0], is_quick=True
    ),
)
