"""Faults in what becomes a text's vector: pooling, the steps behind it, prompts, and the types of a pair's tokens."""

from tests.faults.fault import Fault

_POOL = ("tests/model/pooling/test_pool.py",)
_FILES = ("tests/model/pooling/test_pooling_files.py",)
_STEPS = ("tests/runtime/execution/steps/test_pooler.py",)
_KINDS = ("tests/http/routes/test_embedding_kinds.py",)
_WORDPIECE = ("tests/runtime/text/tokenizers/test_wordpiece.py",)

POOLING_FAULTS = (
    Fault(
        "a text's first token stands for the mean of all",
        "model/pooling/pooling_files.py",
        '"pooling_mode_mean_tokens": "mean",',
        '"pooling_mode_mean_tokens": "cls",',
        _FILES,
    ),
    Fault(
        "padding counts in a mean",
        "model/pooling/pool.py",
        "is_member = (token >= self.begins[:, None]) & (token < self.ends[:, None])",
        "is_member = token >= self.begins[:, None]",
        _POOL,
    ),
    Fault(
        "a mean over a text's tokens divides by one too many",
        "model/pooling/pool.py",
        "count = jnp.maximum(stops - first, 1.0)[:, None]",
        "count = jnp.maximum(stops - first + 1, 1.0)[:, None]",
        _POOL,
    ),
    Fault(
        "the largest of each number forgets the chunks before",
        "model/pooling/pool.py",
        "return jnp.where(begins_anew, largest, jnp.maximum(before, largest))",
        "return largest",
        _STEPS,
    ),
    Fault(
        "tokens of a prompt count although they should not",
        "model/pooling/pool.py",
        "return positions, is_member & (positions >= self.first_counted[:, None])",
        "return positions, is_member",
        _POOL,
    ),
    Fault(
        "a Dense behind the pooling has no activation",
        "model/pooling/pool.py",
        "y = _activate(step.activation, y)",
        "y = y + 0",
        _POOL,
    ),
    Fault(
        "a Dense of another model is taken",
        "model/pooling/pooling_files.py",
        'self._agree(file, "in_features", num_inputs)',
        'self._agree(file, "in_features", self.size or num_inputs)',
        _FILES,
    ),
    Fault(
        "SPLADE's weights are summed where the largest counts",
        "model/pooling/sparse.py",
        'if spec.strategy == "max":',
        'if spec.strategy == "sum":',
        _POOL,
    ),
    Fault(
        "the types of a pair's tokens are forgotten",
        "runtime/text/tokenizers/tokenizer.py",
        "return EncodedText(list(found.ids), types_of(found.type_ids))",
        "return EncodedText(list(found.ids))",
        _WORDPIECE,
    ),
    Fault(
        "the types of a pair's tokens do not reach the engine",
        "http/generation/scored_pairs.py",
        "return [one if has_types else EncodedText(one.ids) for one in found]",
        "return [EncodedText(one.ids) for one in found]",
        _KINDS,
    ),
    Fault(
        "the model's prompts are forgotten",
        "http/generation/embedded_texts.py",
        "whole = spec.prepared(texts.prompt + text)",
        "whole = spec.prepared(text)",
        _KINDS,
    ),
    Fault(
        "a passage gets no prompt because it is called a document",
        "runtime/interface/request/embedding.py",
        'return next((self.prompts[other] for other in kind if other in self.prompts), "")',
        'return self.prompts.get(name, "")',
        _KINDS,
    ),
    Fault(
        "MaxSim takes the mean in place of the largest product",
        "runtime/interface/request/embedding.py",
        "(query @ document.T).max(axis=1).sum()",
        "(query @ document.T).mean(axis=1).sum()",
        _KINDS,
    ),
    Fault(
        "a truncated text of an encoder loses its beginning",
        "http/generation/embedded_texts.py",
        'keeps_end=side == "left"',
        'keeps_end=side != "right"',
        _KINDS,
    ),
    Fault(
        "WordPiece of a folder without tokenizer.json keeps upper case",
        "runtime/text/tokenizers/wordpiece.py",
        'lowercase=config.get("do_lower_case") is not False,',
        'lowercase=config.get("do_lower_case") is True,',
        _WORDPIECE,
    ),
)
