"""The trained network is the served one, and held-out data stays out."""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers import Tokenizer

from palladio.flags.default_model import default_model_path
from palladio.model.config.config import ModelConfig
from palladio.model.functional import flatten_model
from palladio.runtime.text.templates.chat_renderer import render_template
from tests.model.driver import Driver
from tests.tiny_tokenizer import build_tiny_tokenizer
from training import batches, checkpoints, checks, corpus, export, network
from training.chat import Chat
from training.source import Source, is_held_out

pytestmark = pytest.mark.slow  # of a script that the server does not need

HERE = Path(corpus.__file__).resolve().parent
SKILLS = [name for name in corpus.SKILLS if name != "plain text"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return Tokenizer.from_file(str(build_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")) / "tokenizer.json"))


@pytest.fixture(scope="module")
def model():
    network_config = network.hf_config(0, 2) | {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 384}
    return network.new_model(ModelConfig.from_hf(network_config), 0)


@pytest.fixture(scope="module")
def template():
    return (HERE / "chat_template.jinja").read_text(encoding="utf-8")


@pytest.mark.parametrize("skill", SKILLS)
def test_samples_are_written_as_the_template_writes_them(skill, template):
    for number in range(40):
        chat = corpus.make(skill, Source(f"test/{number}"))
        assert isinstance(chat, Chat)
        messages = [_as_sent(message) for message in chat.messages()]
        settings = {"tools": chat.tools, "add_generation_prompt": True, "enable_thinking": chat.thinking}
        prompt = render_template(template, messages, continue_final_message=False, **settings)
        pieces = chat.pieces()
        assert prompt == "".join(text for text, _ in pieces[:-1])
        assert pieces[-1][1]
        assert pieces[-1][0].endswith("<|im_end|>")


def _as_sent(message):
    """Calls and results of tools, which a sample has as text, as a client sends them."""
    content = message["content"]
    if message["role"] == "assistant" and content.startswith("<tool_call>\n"):
        call = json.loads(content.split("\n")[1])
        return {"role": "assistant", "content": None, "tool_calls": [{"function": call}]}
    if message["role"] == "user" and content.startswith("<tool_response>\n"):
        return {"role": "tool", "content": content.split("\n")[1]}
    return message


@pytest.mark.parametrize("skill", checks.CHECKS)
def test_a_right_answer_passes_its_check(skill):
    for number in range(20):
        chat = corpus.make(skill, Source(f"held out/{number}", held_out=True))
        answer = chat.turns[0 if skill == "tool calls" else -1].answer
        call = None
        if answer.startswith("<tool_call>"):
            written = json.loads(answer.split("\n")[1])
            call, answer = (written["name"], written["arguments"]), ""
        assert checks.CHECKS[skill](chat, checks.Answer(answer, "stop", None, call))
        assert not checks.CHECKS[skill](chat, checks.Answer("Nonsense", "stop", None, None))


def test_what_is_held_out_is_never_trained():
    asked = {}
    for held_out in (False, True):
        sources = [Source(f"{number}", held_out=held_out) for number in range(400)]
        asked[held_out] = {source.phrase([str(i) for i in range(9)]) for source in sources}
        names = {source.name() for source in sources}
        assert {is_held_out(name) for name in names} == {held_out}
    assert asked == {False: {str(i) for i in range(8)}, True: {"8"}}


def test_a_sample_follows_from_its_number_alone():
    assert corpus.training_sample(1, 7) == corpus.training_sample(1, 7)
    assert corpus.training_sample(1, 7) != corpus.training_sample(1, 8)
    assert corpus.training_sample(1, 7) != corpus.training_sample(2, 7)


def test_a_batch_holds_each_sample_once_and_teaches_only_answers(tokenizer):
    made = batches.batch(tokenizer, 1, 0)
    ids = np.concatenate([part.token_ids.reshape(-1) for part in made.rows])
    documents = np.concatenate(
        [(part.documents + 100 * np.arange(len(part.documents))[:, None]).reshape(-1) for part in made.rows]
    )
    taught = made.places[made.weights > 0]
    assert (ids[taught + 1] == made.next_ids[made.weights > 0]).all()
    assert (documents[taught] == documents[taught + 1]).all()
    assert len(set(taught.tolist())) == len(taught) > 500
    starts = ids[taught][:3]
    assert (starts != tokenizer.token_to_id("<|im_start|>")).all()
    again = batches.batch(tokenizer, 1, 0)
    np.testing.assert_array_equal(again.rows[0].token_ids, made.rows[0].token_ids)
    np.testing.assert_array_equal(again.rows[1].positions, made.rows[1].positions)


def test_the_trained_network_is_the_served_one(model):
    """Dense rows with several documents, and the paged decoder: the same states."""
    random = np.random.RandomState(0)
    first, second = random.randint(3, 384, 30), random.randint(3, 384, 50)
    token_ids = np.concatenate([first, second, np.zeros(16, np.int64)])[None]
    positions = np.concatenate([np.arange(30), np.arange(50), np.zeros(16, np.int64)])[None]
    documents = np.repeat([1, 2, 0], [30, 50, 16])[None]
    hidden = network.hidden_states(model, *(jnp.asarray(a, jnp.int32) for a in (token_ids, positions, documents)))
    dense = np.asarray(model.logits(hidden))
    paged = Driver(model.config, model, 2).step([list(first), list(second)])
    np.testing.assert_allclose(dense[:30], paged[0], atol=2e-5, rtol=0)
    np.testing.assert_allclose(dense[30:80], paged[1], atol=2e-5, rtol=0)


def test_a_state_comes_back_from_disk(model, tmp_path):
    _, leaves = flatten_model(model)
    state = checkpoints.State(5, leaves, (jnp.arange(3),), goal=9)
    checkpoints.save(tmp_path / "stable.npz", state)
    read = checkpoints.load(tmp_path / "stable.npz", state)
    assert (read.step, read.goal) == (5, 9)
    for ours, theirs in zip(read.leaves, leaves, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    other = network.new_model(ModelConfig.from_hf(network.hf_config(0, 2)), 0)
    with pytest.raises(ValueError, match="of another network"):
        checkpoints.load(tmp_path / "stable.npz", checkpoints.State(0, flatten_model(other)[1][:2], None))


@pytest.mark.parametrize(("name", "shipped"), export.COPIED.items())
def test_the_shipped_model_has_the_recipes_own_files(name, shipped):
    assert (default_model_path() / shipped).read_bytes() == (HERE / name).read_bytes()


def test_a_run_that_was_broken_off_gives_the_same_weights(tmp_path, tokenizer, monkeypatch):
    pytest.importorskip("optax")
    from training import train

    monkeypatch.setitem(network.SHAPE, "vocab_size", 384)
    for name, size in (("hidden_size", 32), ("intermediate_size", 32), ("num_hidden_layers", 1)):
        monkeypatch.setitem(network.SHAPE, name, size)
    monkeypatch.setattr(batches, "ROWS", ((2, 256),))
    monkeypatch.setattr(batches, "SAMPLES_PER_STEP", 4)
    finals = []
    for name, goals in (("whole", (4,)), ("broken", (3, 4))):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "tokenizer.json").write_text(tokenizer.to_str())
        for steps in goals:
            train.run(folder, steps, decay=1)
        with np.load(folder / "final.npz") as file:
            assert int(file["step"]) == 4
            finals.append({name: file[name] for name in file.files})
    for name in finals[0]:
        np.testing.assert_array_equal(finals[0][name], finals[1][name])
