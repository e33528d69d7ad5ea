"""fuzz_openapi.py URL SECONDS: requests made from a running server's /openapi.json; none may be answered with a 5xx.

Bodies keep to the schema, or break it, or are good ones with a few fields of the first kind: most requests of the
first two kinds are refused for one field or another, the third kind gets to the engine.
A 503 or 504 that says why (too many requests, a request's own `timeout`) is no defect of the server.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode

MAX_EXAMPLES = 60  # of one kind for one operation
REQUEST_SECONDS = 35.0  # more than the server's --request-timeout
NOT_FUZZED = (  # they write files, stop generation, or free what others need
    *("/start_profile", "/stop_profile", "/pause_generation", "/continue_generation"),
    *("/release_memory_occupation", "/resume_memory_occupation"),
)
ALLOWED = ("deadline_exceeded", "overloaded")
MESSAGES = [{"role": "user", "content": "Hello"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
GOOD_BODIES: Mapping[str, Mapping[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 4},
    "/v1/completions": {"prompt": "Hello", "max_tokens": 4},
    "/generate": {"text": "Hello", "sampling_params": {"max_new_tokens": 4}},
    "/v1/responses": {"input": "Hello", "max_output_tokens": 4},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 4},
    "/invocations": {"messages": MESSAGES, "max_tokens": 4},
    "/v1/tokenize": {"messages": MESSAGES},
    "/v1/detokenize": {"tokens": [5, 6]},
    "/separate_reasoning": {"text": "<think>a</think>b", "reasoning_parser": "qwen3"},
    "/parse_function_call": {
        "text": '<tool_call>{"name": "f"}</tool_call>',
        "tools": TOOLS,
        "tool_call_parser": "qwen25",
    },
}

Change = Callable[[Case, frozenset[int]], None]


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    url, seconds = arguments  # for all operations together
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    operations = [operation for operation in operations if operation.path not in NOT_FUZZED]
    rounds: list[tuple[st.SearchStrategy[Case], Change]] = []
    for operation in operations:
        cases = operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
        rounds.append((cases, leave))
        if operation.path in GOOD_BODIES:
            rounds.append((cases, make_good))
        if len(operation.body) > 0:
            rounds.append((operation.as_strategy(generation_mode=GenerationMode.NEGATIVE), leave))
    deadline = time.monotonic() + float(seconds)
    statuses: list[int] = []
    faults: list[str] = []
    for position, (cases, change) in enumerate(rounds):
        share = (deadline - time.monotonic()) / (len(rounds) - position)
        faults += fuzz(cases, change, time.monotonic() + share, statuses)
    for fault in faults:
        print(f"5xx: {fault}")
    answered = sum(status == 200 for status in statuses)
    print(
        f"{len(statuses)} requests to {len(operations)} operations of /openapi.json, {answered} of them answered with "
        f"a 200: {len(faults)} faults"
    )
    return int(bool(faults) or not answered)


def leave(_case: Case, _chosen: frozenset[int]) -> None:
    pass


def make_good(case: Case, chosen: frozenset[int]) -> None:
    """Keep the body's fields of these numbers, and add good ones."""
    if isinstance(case.body, dict):
        fields = [pair for number, pair in enumerate(sorted(case.body.items())) if number in chosen]
        case.body = dict(fields) | GOOD_BODIES[case.operation.path]


def fuzz(cases: st.SearchStrategy[Case], change: Change, deadline: float, statuses: list[int]) -> list[str]:
    """Send requests until the deadline, and return the first one with a 5xx.

    Args:
        statuses: collects the statuses of all answers.
    """
    fault: list[str] = []

    @seed(0)
    @settings(
        max_examples=MAX_EXAMPLES,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases, chosen=st.frozensets(st.integers(0, 60), max_size=4))
    def send(case: Case, chosen: frozenset[int]) -> None:
        if fault or time.monotonic() > deadline:
            return
        change(case, chosen)
        try:
            answer = case.call(timeout=REQUEST_SECONDS)
        except requests.RequestException as error:
            fault.append(f"{case.as_curl_command()}: {error}")
            return
        statuses.append(answer.status_code)
        if answer.status_code >= 500 and not any(code in answer.text for code in ALLOWED):
            fault.append(f"{case.as_curl_command()}: {answer.status_code} {answer.text[:500]}")

    send()
    return fault


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
