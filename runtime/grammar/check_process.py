"""The process that checks grammars: measures what compiling one takes, where it can be ended.

An engine starts it. It loads the tokenizer once, and forks for each grammar: the child compiles it under limits of CPU
time and memory, walks a few tokens, sends the result, and ends. It imports no jax, and has no other thread, so that
it can fork. It ends when the engine closes the control socket.
"""

import gc
import os
import resource
import signal
import socket
import time

import numpy as np

from palladio.runtime.grammar.backend import BackendSettings, JsonFormat
from palladio.runtime.grammar.check_protocol import CheckLimits, receive_frame, send_frame
from palladio.runtime.grammar.llguidance_backend import SLOW_SECONDS, LlguidanceBackend, LlguidanceGrammar
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.request.grammar_spec import Grammar
from palladio.runtime.telemetry.process_memory import give_back, private_bytes, reserved_bytes

_WALK_TOKENS = 24
_WALK_SECONDS = 0.05  # of CPU, after which the walk goes on no further
_NICE = 10  # steps of the engine go first
_SPARE = 1 << 28  # bytes of address space, over twice the limit of memory: what is reserved is not used


def main(control_fd: int) -> None:
    """Serves the engine on the other end of the socket until it closes it."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the children are not waited for: their sockets show their end
    os.nice(_NICE)
    control = socket.socket(fileno=control_fd)
    values = receive_frame(control)
    json_format = JsonFormat(**values.pop("json_format"))
    backend = LlguidanceBackend(BackendSettings(**values, json_format=json_format))
    gc.freeze()
    give_back()  # else a grammar would find room in what loading has freed, and seem smaller than it is
    while True:
        _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not descriptors:
            return
        if os.fork() == 0:
            control.close()
            _check_in_child(backend, descriptors[0])
        os.close(descriptors[0])


def _check_in_child(backend: LlguidanceBackend, descriptor: int) -> None:
    """Never returns: what goes wrong ends the child, and the engine sees its socket close."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the library's last words when memory runs out
        with socket.socket(fileno=descriptor) as connection:
            kind, text, parts, limits = receive_frame(connection)
            send_frame(connection, "begun")
            grammar = Grammar(kind, text, tuple((name, part) for name, part in parts))
            send_frame(connection, _check(backend, grammar, CheckLimits(*limits)))
    finally:
        os._exit(0)


def _check(backend: LlguidanceBackend, grammar: Grammar, limits: CheckLimits) -> dict[str, object]:
    before = private_bytes()
    _limit(limits)
    try:
        compiled = backend.compile(grammar)
        num_bytes = private_bytes() - before
        complaint = _walk(compiled)
    except InvalidRequestError as error:
        return {"error": error.message.parts, "param": error.param}
    if complaint is not None:
        return {"error": ("the ", "grammar", f" ({grammar.kind}) {complaint}"), "param": "grammar"}
    return {"num_bytes": max(num_bytes, 0)}


def _limit(limits: CheckLimits) -> None:
    """From here on the kernel ends this process when it takes too much."""
    space = reserved_bytes() + 2 * limits.num_bytes + _SPARE
    resource.setrlimit(resource.RLIMIT_AS, (space, space))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    seconds = int(limits.cpu_seconds) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, limits.cpu_seconds)


def _walk(compiled: LlguidanceGrammar) -> str | None:
    """Why outputs of the grammar would end with an error, or keep others waiting; None: the first tokens do not."""
    matcher, random = compiled.new_matcher(), np.random.default_rng(0)
    begun = time.thread_time()
    for count in range(_WALK_TOKENS):
        start = time.thread_time()
        mask = np.frombuffer(matcher.native.compute_bitmask(), np.uint8)
        allowed = np.nonzero(np.unpackbits(mask, bitorder="little"))[0]
        if allowed.size and matcher.error is None:
            matcher.accept(int(random.choice(allowed)))
            matcher.forced()
        end = time.thread_time()
        if end - start > SLOW_SECONDS:
            return f"takes {end - start:.2f} s to say what may come next, over the limit of {SLOW_SECONDS:g} s"
        if (error := matcher.error) is not None:
            return f"cannot be used: within {count + 1} tokens: {error}"
        if matcher.is_stopped or not allowed.size or end - begun > _WALK_SECONDS:
            return None
    return None
