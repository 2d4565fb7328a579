"""A tokenizer that is code of its own: a folder with `auto_map`, made from the toy tokenizer.

It behaves like tiktoken classes of served models do: a Python byte BPE without offsets; `encode`
takes a switch of its own and goes another way when given the library's options; the class's
`apply_chat_template` has other defaults and hands the template the tools as text; eight reserved
control tokens stand in no list but its own. It gives the ids of the toy tokenizer, which is the
reference.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.toy import TOY

RESERVED = 8
_CODE = '''"""Byte BPE in Python."""

import json
from pathlib import Path

from transformers import PreTrainedTokenizer

from .words import RESERVED_NAME


def byte_letters():
    """Return the printable stand-in of each byte, in id order of GPT-2's table."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in shown]
    return {b: chr(b) for b in shown} | {b: chr(256 + i) for i, b in enumerate(hidden)}


class ToyBytePairTokenizer(PreTrainedTokenizer):
    vocab_files_names = {"vocab_file": "ranks.json"}
    model_input_names = ["input_ids", "attention_mask"]

    def __init__(self, vocab_file, added_tokens_decoder=None, **kwargs):
        data = json.loads(Path(vocab_file).read_text(encoding="utf-8"))
        self.vocab_file = vocab_file
        self.letters = byte_letters()
        self.bytes_of = {letter: byte for byte, letter in self.letters.items()}
        self.ranks = {tuple(pair): rank for rank, pair in enumerate(data["merges"])}
        self.encoder = dict(data["vocab"])
        names = {int(i): str(token) for i, token in (added_tokens_decoder or {}).items()}
        first = len(self.encoder)
        self.controls = {
            names.get(i, RESERVED_NAME.format(i)): i for i in range(first, first + data["controls"])
        }
        self.encoder.update(self.controls)
        self.decoder = {i: token for token, i in self.encoder.items()}
        super().__init__(added_tokens_decoder=added_tokens_decoder, **kwargs)

    def encode(self, text, allow_special_tokens=True, **kwargs):
        if kwargs:
            return super().encode(text, **kwargs)
        ids, rest = [], text
        while rest:
            found = self._first_control(rest) if allow_special_tokens else None
            at, name = found or (len(rest), "")
            ids += self._merged(rest[:at]) + ([self.controls[name]] if name else [])
            rest = rest[at + len(name) :]
        return ids

    def decode(self, token_ids, **kwargs):
        if kwargs:
            return super().decode(token_ids, **kwargs)
        ids = [token_ids] if isinstance(token_ids, int) else token_ids
        return self.convert_tokens_to_string([self.decoder[i] for i in ids])

    def apply_chat_template(
        self, conversation, tools=None, tokenize=False, add_generation_prompt=True, **kwargs
    ):
        if tools:
            names = ", ".join(tool["function"]["name"] for tool in tools)
            kwargs["tools_text"] = f"may call: {names}"
        return super().apply_chat_template(
            conversation,
            tools=tools,
            tokenize=tokenize,
            add_generation_prompt=add_generation_prompt,
            **kwargs,
        )

    @property
    def vocab_size(self):
        return len(self.encoder)

    def get_vocab(self):
        return dict(self.encoder)

    def convert_tokens_to_string(self, tokens):
        raw = bytearray()
        for token in tokens:
            known = token in self.controls
            raw += token.encode() if known else bytes(self.bytes_of[letter] for letter in token)
        return raw.decode("utf-8", "replace")

    def _first_control(self, text):
        found = [(text.find(name), -len(name), name) for name in self.controls if name in text]
        return (min(found)[0], min(found)[2]) if found else None

    def _merged(self, text):
        parts = [self.letters[byte] for byte in text.encode()]
        while len(parts) > 1:
            pairs = [self.ranks.get(pair, len(self.ranks)) for pair in zip(parts, parts[1:])]
            best = min(pairs)
            if best == len(self.ranks):
                break
            at = pairs.index(best)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        return [self.encoder[part] for part in parts]

    def _tokenize(self, text, **kwargs):
        return [self.decoder[i] for i in self.encode(text)]

    def _convert_token_to_id(self, token):
        return self.encoder.get(token)

    def _convert_id_to_token(self, index):
        return self.decoder.get(index)
'''
_WORDS = 'RESERVED_NAME = "<|reserved_token_{}|>"\n'


def make_slow_tokenizer(folder: Path, *, code: str = _CODE) -> Path:
    """Write the tokenizer into `folder`, which is created; return it."""
    folder.mkdir(parents=True, exist_ok=True)
    fast = json.loads((TOY / "tokenizer.json").read_text(encoding="utf-8"))
    template = (TOY / "chat_template.jinja").read_text(encoding="utf-8")
    controls = len(fast["added_tokens"]) + RESERVED
    ranks = {key: fast["model"][key] for key in ("vocab", "merges")} | {"controls": controls}
    added = {
        str(token["id"]): {key: value for key, value in token.items() if key != "id"}
        for token in fast["added_tokens"]
    }
    config = {
        "tokenizer_class": "ToyBytePairTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_toy.ToyBytePairTokenizer", None]},
        "added_tokens_decoder": added,
        "bos_token": "[BOS]",
        "eos_token": "<|im_end|>",
        "pad_token": "[PAD]",
        "chat_template": template.replace("(tools | tojson)", "(tools_text or (tools | tojson))"),
    }
    (folder / "tokenization_toy.py").write_text(code, encoding="utf-8")
    (folder / "words.py").write_text(_WORDS, encoding="utf-8")
    (folder / "ranks.json").write_text(json.dumps(ranks), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
