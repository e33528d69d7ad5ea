"""SGLang's frontend language: generation, choices by log-probability, regular expressions, streams, forks, batches.

`import sglang` brings torch, which the language never uses: the packages around it are entered without running their
__init__.
"""

import importlib.util
import os
import sys
import types
from typing import Any

from checks import KEY, URL, equal, run_checks, true


def _enter_packages() -> None:
    (root,) = importlib.util.find_spec("sglang").submodule_search_locations
    for name in ("sglang", "sglang.srt", "sglang.srt.utils"):
        package = types.ModuleType(name)
        package.__path__ = [os.path.join(root, *name.split(".")[1:])]
        sys.modules[name] = package


_enter_packages()

from sglang.lang import api as sgl  # noqa: E402
from sglang.lang.backend.runtime_endpoint import RuntimeEndpoint  # noqa: E402


@sgl.function
def conversation(s: Any, question: str) -> None:
    s += sgl.system("You are brief.")
    s += sgl.user(question)
    s += sgl.assistant(sgl.gen("answer", max_tokens=24, temperature=0))
    s += sgl.user("And now?")
    s += sgl.assistant(sgl.gen("second", max_tokens=8, stop=["\n"]))


@sgl.function
def choice(s: Any, question: str) -> None:
    s += question + " "
    s += sgl.gen("city", choices=["Paris", "Rome", "a long way off"])


@sgl.function
def number(s: Any) -> None:
    s += "A year: " + sgl.gen("year", regex=r"[12][0-9]{3}", max_tokens=8)
    s += ". As JSON: " + sgl.gen("json", json_schema='{"type": "boolean"}', max_tokens=8)


@sgl.function
def branches(s: Any) -> None:
    s += "Cities: "
    forks = s.fork(3)
    for fork in forks:
        fork += sgl.gen("name", max_tokens=4, temperature=0)
    s += ", ".join(fork["name"] for fork in forks)
    s += sgl.gen("rest", max_tokens=4, logprob_start_len=0, return_logprob=True)


def check_conversation() -> None:
    state = conversation.run(question="List 3 countries and their capitals.")
    true(state["answer"])
    equal(len(state.messages()), 5)


def check_choices() -> None:
    state = choice.run(question="The capital of France is")
    true(state["city"] in ("Paris", "Rome", "a long way off"))
    equal(len(state.get_meta_info("city")["normalized_prompt_logprobs"]), 3)


def check_regex_and_json() -> None:
    state = number.run()
    true(len(state["year"]) == 4 and state["year"].isdigit(), state["year"])
    true(state["json"].strip() in ("true", "false"), state["json"])


def check_forks() -> None:
    state = branches.run()
    true(state["rest"])
    true(state.get_meta_info("rest")["output_token_logprobs"])


def check_stream() -> None:
    state = conversation.run(question="Hello", stream=True)
    true("".join(state.text_iter("answer")))


def check_batch() -> None:
    states = choice.run_batch([{"question": text} for text in ("France:", "Italy:", "Nowhere:")], num_threads=3)
    equal(len([state["city"] for state in states]), 3)


def check_flush() -> None:
    sgl.flush_cache()
    true(sgl.get_server_info())


if __name__ == "__main__":
    sgl.set_default_backend(RuntimeEndpoint(URL, api_key=KEY))
    run_checks()
