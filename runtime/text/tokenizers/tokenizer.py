"""Text to token ids and back: a thin, typed wrapper over a Hugging Face tokenizer."""

import functools
import importlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from jinja2 import TemplateError

from palladio.model.gguf.gguf_file import is_gguf
from palladio.runtime.interface.errors import ConfigError, InvalidRequestError, RenderLimitError
from palladio.runtime.interface.native_panics import PanicGuard
from palladio.runtime.interface.request.pooling_params import EncodedText, types_of
from palladio.runtime.text.templates.chat_renderer import MAX_SECONDS, render_template
from palladio.runtime.text.templates.template_check import check_stored_template
from palladio.runtime.text.templates.template_meter import RenderLimitExceededError
from palladio.runtime.text.tokenizers.detokenizer import (
    ByteDetokenizer,
    IncrementalDetokenizer,
    TokenBytes,
    TokenKind,
    WindowDetokenizer,
    has_strip,
    token_kind,
)
from palladio.runtime.text.tokenizers.gguf_tokenizer import read_tokenizer
from palladio.runtime.text.tokenizers.stored_tokenizers import read_stored_tokenizer
from palladio.runtime.text.tokenizers.tokenizer_files import check_tokenizer_files, why_unusable
from palladio.runtime.text.tokenizers.tokenizer_probe import check_divides, panics_as_errors

MANY = 4096  # characters or tokens: what is longer is left to calls that let other threads run
STREAM_CONTEXT = 8  # prompt tokens that prime a stream of text, as SGLang and vLLM do (they take 5)
_HARMONY_ENDS = ("<|return|>", "<|call|>")
_HARMONY = ("<|start|>", "<|channel|>", "<|message|>", *_HARMONY_ENDS)
_RESERVED_TEMPLATE_KWARGS = frozenset(  # arguments of transformers' apply_chat_template: not the template's business
    (
        *("conversation", "documents", "chat_template", "tokenize", "sanitize_control_tokens", "padding"),
        *("truncation", "max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask"),
        "tokenizer_kwargs",
    )
)
_TEMPLATE_FAULTS = (  # what a template's code raises with values that do not fit it
    *(TemplateError, TypeError, ValueError, LookupError, AttributeError),
    *(ArithmeticError, RecursionError, MemoryError, SyntaxError),
)
_guarded = PanicGuard("the model's tokenizer")


class Tokenizer:
    """A model's tokenizer and chat template. Safe to use from several threads.

    Attributes:
        vocab_size: number of tokens, added ones included.
        added_texts: how all added tokens, special or not, are written.
        chat_template: the checkpoint's template, several by name, or None.
        response_template: how the checkpoint says that its answers are read, not checked; None: it does not.
        tekken_version: the version of Mistral's prompt format, if the checkpoint has it.
    """

    def __init__(self, hf_tokenizer: Any, tekken_version: int | None = None) -> None:
        self._hf = hf_tokenizer
        self._fast = getattr(hf_tokenizer, "backend_tokenizer", None)
        if self._fast is not None:  # tokenizer.json may bring truncation and padding, which a server must not do
            self._fast.no_truncation()
            self._fast.no_padding()
        stored = None if self._fast is None else self._fast.decoder
        decoder = None if stored is None else json.loads(stored.__getstate__())
        self._kind: TokenKind = token_kind(decoder)
        self._strips_first_space = self._kind == "byte_fallback" and has_strip(decoder)
        added = hf_tokenizer.added_tokens_decoder
        self._added: dict[int, str] = {token_id: token.content for token_id, token in added.items()}
        self._added_ids = {text: token_id for token_id, text in reversed(self._added.items())}
        self.added_texts = tuple(self._added_ids)
        self._special = frozenset(i for i, token in added.items() if token.special) | set(hf_tokenizer.all_special_ids)
        self.vocab_size: int = len(hf_tokenizer)
        self._bytes = TokenBytes(
            self._kind, self._added, self._token_of, lambda one: self.decode([one], skip_special_tokens=False)
        )
        self.chat_template: str | dict[str, str] | None = hf_tokenizer.chat_template
        self.response_template: object = getattr(hf_tokenizer, "response_template", None)
        self.tekken_version = tekken_version

    @classmethod
    def load(cls, path: str | Path, *, trust_remote_code: bool = False, revision: str | None = None) -> Self:
        """Reads a tokenizer from a model directory, or from a GGUF file.

        Raises:
            ConfigError: there is none, or it cannot be read.
        """
        logging.getLogger("transformers").addFilter(_is_not_about_torch)
        transformers = _import_transformers()
        place, tekken_version = Path(path), None
        try:
            with panics_as_errors("its tokenizer is malformed"):
                if place.is_dir():
                    check_tokenizer_files(place)
                if is_gguf(place):
                    backend, settings = read_tokenizer(place)
                    hf_tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **settings)
                elif (stored := read_stored_tokenizer(place, may_run_code=trust_remote_code)) is not None:
                    hf_tokenizer = transformers.PreTrainedTokenizerFast(
                        tokenizer_object=stored.backend, **stored.settings
                    )
                    tekken_version = stored.tekken_version
                else:
                    hf_tokenizer = transformers.AutoTokenizer.from_pretrained(
                        str(path), trust_remote_code=trust_remote_code, revision=revision
                    )
                if len(hf_tokenizer.get_vocab()) <= len(hf_tokenizer.added_tokens_decoder):
                    # transformers makes an empty tokenizer of the model's class where it finds no vocabulary
                    raise ValueError("its vocabulary is empty")
                found = cls(hf_tokenizer, tekken_version)
            if found._fast is not None:
                check_divides(found._fast)
        except Exception as error:  # tokenizers raises bare Exception for a malformed tokenizer.json
            reason = why_unusable(place, error)
            raise ConfigError(
                f"no usable tokenizer in {path} ({reason}); give its directory with --tokenizer-path, or pass "
                "--skip-tokenizer-init to send and receive token ids only"
            ) from error
        check_stored_template(found.chat_template, str(path))
        return found

    def save(self, folder: Path) -> None:
        """Writes tokenizer.json and tokenizer_config.json, with the template."""
        self._hf.save_pretrained(str(folder))

    @property
    def bos_token(self) -> str | None:
        value = self._hf.bos_token
        return None if value is None else str(value)

    @property
    def bos_token_id(self) -> int | None:
        return self._token_id("bos_token_id")

    @property
    def eos_token_id(self) -> int | None:
        return self._token_id("eos_token_id")

    @functools.cached_property
    def is_harmony(self) -> bool:
        """Whether it has the special tokens of gpt-oss's messages."""
        return all(self.special_id(text) is not None for text in _HARMONY)

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Tokens that end an answer, whatever the model's config says: its end of sequence, and Harmony's of an answer
        and of a call."""
        ends = [self.special_id(text) for text in _HARMONY_ENDS] if self.is_harmony else []
        return tuple(token_id for token_id in (self.eos_token_id, *ends) if token_id is not None)

    def special_id(self, text: str) -> int | None:
        """The id of the special token that is written exactly like this, if there is one."""
        token_id = self._added_ids.get(text)
        return token_id if token_id in self._special else None

    def added_id(self, text: str) -> int | None:
        """The id of the added token, special or not, that is written exactly like this, if there is one."""
        return self._added_ids.get(text)

    def to_json(self) -> str:
        """What its tokenizer.json holds, or would hold.

        Raises:
            InvalidRequestError: it is not one of the tokenizers that have such a form.
        """
        if self._fast is None:
            raise InvalidRequestError("this model's tokenizer has no tokenizer.json form", param="grammar")
        text: str = self._fast.to_str()
        return text

    @_guarded
    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text; a text that starts with the BOS token (a rendered chat template) gets no second one.

        Raises:
            InvalidRequestError: the text has lone surrogates.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequestError(
                f"the text is not valid Unicode: lone surrogate at character {error.start}", param="prompt"
            ) from None
        if self._fast is not None and len(text) > MANY:
            ids: list[int] = self._fast.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        elif self._fast is not None:
            ids = self._fast.encode(text, add_special_tokens=add_special_tokens).ids
        else:
            ids = self._hf.encode(text, add_special_tokens=add_special_tokens)
        bos = self.bos_token
        if add_special_tokens and bos and text.startswith(bos) and ids[:2] == [self.bos_token_id] * 2:
            return ids[1:]
        return ids

    @_guarded
    def spans(self, text: str, add_special_tokens: bool = True) -> list[tuple[int, int]] | None:
        """The characters of each of `encode`'s tokens, first and past the last; None: the tokenizer cannot say."""
        if self._fast is None:
            return None
        found: list[tuple[int, int]] = self._fast.encode(text, add_special_tokens=add_special_tokens).offsets
        return found[len(found) - len(self.encode(text, add_special_tokens)) :]

    @_guarded
    def encode_pair(
        self, first: str, second: str, add_special_tokens: bool = True, limit: int | None = None
    ) -> EncodedText:
        """Token ids of two texts, each divided by itself, with the tokenizer's special tokens for a pair, and which of
        the texts each token belongs to.

        Args:
            limit: most tokens in all: the second text loses its end, and then the first one.

        Raises:
            InvalidRequestError: a text has lone surrogates.
        """
        parts = [self.encode(text, False) for text in (first, second)]
        if self._fast is None:
            special = self._hf.num_special_tokens_to_add(pair=True) if add_special_tokens else 0
            _cut_pair(parts, limit, special)
            ids: list[int] = self._hf.build_inputs_with_special_tokens(*parts) if special else parts[0] + parts[1]
            return EncodedText(ids)
        _cut_pair(parts, limit, self._fast.num_special_tokens_to_add(True) if add_special_tokens else 0)
        whole = [self._fast.encode(text, add_special_tokens=False) for text in (first, second)]
        for encoding, part in zip(whole, parts, strict=True):
            encoding.truncate(len(part))
        found = self._fast.post_process(*whole, add_special_tokens)
        return EncodedText(list(found.ids), types_of(found.type_ids))

    @_guarded
    def decode(
        self, ids: Sequence[int], skip_special_tokens: bool = True, spaces_between_special_tokens: bool = True
    ) -> str:
        if self._fast is not None and len(ids) > MANY:  # what the call below comes to
            return str(self._fast.decode_batch([list(ids)], skip_special_tokens=skip_special_tokens)[0])
        text: str = self._hf.decode(
            list(ids),
            skip_special_tokens=skip_special_tokens,
            spaces_between_special_tokens=spaces_between_special_tokens,
            clean_up_tokenization_spaces=False,
        )
        return text

    def token_bytes(self, token_id: int) -> bytes:
        """The UTF-8 bytes that this token stands for (a part of a code point too); b"" for an unused id."""
        return self._bytes.of(token_id)

    @property
    def settings(self) -> dict[str, Any]:
        """What transformers has read of tokenizer_config.json, and the tokenizer's class."""
        return {**self._hf.init_kwargs, "tokenizer_class": type(self._hf).__name__}

    def token_text(self, token_id: int) -> str:
        """One token as text, on its own: its leading space is kept, parts of a code point show as U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def new_stream(
        self,
        prompt_ids: Sequence[int] = (),
        *,
        skip_special_tokens: bool = True,
        visible_special_ids: Sequence[int] = (),
        spaces_between_special_tokens: bool = True,
    ) -> IncrementalDetokenizer:
        """Starts to turn a sample's tokens into text.

        Args:
            prompt_ids: what precedes the sample; only the last few matter.
            skip_special_tokens: leave special tokens out.
            visible_special_ids: special tokens that are shown all the same.
            spaces_between_special_tokens: as the tokenizer does it; only some tokenizers without bytes do.
        """
        context = list(prompt_ids[-STREAM_CONTEXT:])
        hidden = self._special.difference(visible_special_ids) if visible_special_ids else self._special

        def decode(ids: list[int]) -> str:
            if skip_special_tokens and visible_special_ids:
                shown = [token_id for token_id in ids if token_id not in hidden]
                return self.decode(shown, False, spaces_between_special_tokens)
            return self.decode(ids, skip_special_tokens, spaces_between_special_tokens)

        if self._kind == "other":
            return WindowDetokenizer(decode, context)
        return ByteDetokenizer(
            self.token_bytes,
            self._bytes.known,
            hidden if skip_special_tokens else (),
            strip_leading_space=self._strips_first_space and not decode(context),
        )

    def render_chat(
        self,
        messages: list[dict[str, Any]],
        *,
        template: str | None = None,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        seconds: float = MAX_SECONDS,
        **kwargs: Any,
    ) -> str:
        """Renders a conversation with the chat template, in a sandbox that bounds time and memory.

        Args:
            messages: OpenAI messages.
            template: a template to use instead of the checkpoint's, or the name of one of its templates.
            tools: OpenAI tool definitions.
            add_generation_prompt: end with the start of an assistant message.
            continue_final_message: leave the last message open, so that the model goes on with it.
            seconds: that rendering may take.
            kwargs: variables for the template (`chat_template_kwargs`).

        Raises:
            RenderLimitError: it takes longer, or makes far too much text.
            InvalidRequestError: no template, or the template refuses the messages.
        """
        if reserved := _RESERVED_TEMPLATE_KWARGS & kwargs.keys():
            raise InvalidRequestError(
                f"chat_template_kwargs must not contain {', '.join(sorted(reserved))}", param="chat_template_kwargs"
            )
        if not messages:
            raise InvalidRequestError("a chat needs at least one message", param="messages")
        if template is None and not self.chat_template:
            raise InvalidRequestError(
                "this model has no chat template: start the server with --chat-template, or use /v1/completions",
                param="messages",
            )
        try:
            return render_template(
                self._hf.get_chat_template(template, tools),
                messages,
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                seconds=seconds,
                **(self._hf.special_tokens_map | kwargs),
            )
        except RenderLimitExceededError as error:
            raise RenderLimitError(
                f"the chat template cannot be used for these messages: {error}; send fewer or shorter ones",
                param="messages",
            ) from None
        except _TEMPLATE_FAULTS as error:
            raise InvalidRequestError(
                f"the chat template does not accept these messages: {error}", param="messages"
            ) from error

    def _token_of(self, token_id: int) -> str | None:
        """A token as the vocabulary has it; None: no such id."""
        token: str | None = self._hf.convert_ids_to_tokens(token_id) if 0 <= token_id < self.vocab_size else None
        return token

    def _token_id(self, name: str) -> int | None:
        value = getattr(self._hf, name)
        return None if value is None else int(value)


def _import_transformers() -> Any:
    """Takes seconds, and is not needed without a tokenizer. transformers replaces its module while it is imported: a
    `from transformers import` that waits for another thread's would look into the first one, where nothing is."""
    return importlib.import_module("transformers")


def _is_not_about_torch(record: logging.LogRecord) -> bool:
    """False for the notice that transformers logs on import without torch; only its tokenizers are used here."""
    return "PyTorch was not found" not in record.getMessage()


def _cut_pair(parts: list[list[int]], limit: int | None, num_special: int) -> None:
    """Shortens the second one, and if that does not do, the first one; a token stays of each."""
    for place in (1, 0):
        if limit is not None and (excess := sum(map(len, parts)) + num_special - limit) > 0:
            del parts[place][max(1, len(parts[place]) - excess) :]
