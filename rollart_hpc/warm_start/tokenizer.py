"""The tiny models' tokenizers, in the files that transformers and tokenizers read.

Invariants: one of 47 words and characters encodes text of these without loss, so that decoding joins the pieces to the
same text again, and refuses anything else instead of dropping it; one of bytes encodes any text, a token a byte.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

PAD, START, END = "<|pad|>", "<|im_start|>", "<|im_end|>"
_MARKERS = [PAD, START, END, "<think>", "</think>", "<answer>", "</answer>"]
_ROLES = ["user", "assistant"]
_WORDS = ["left", "down", "right", "up", "move", "grid", "go", "carry", "sum", "so", "wrong", "task"]
_CHARACTERS = list("\n PFHGO0123456789+-=?;:.,_")
VOCABULARY = (*_MARKERS, *_ROLES, *_WORDS, *_CHARACTERS)

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}{{ message.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant{% endif %}"
)


def build_tokenizer() -> Tokenizer:
    """The tokenizer; token ids are positions in `VOCABULARY`."""
    tokenizer = Tokenizer(models.WordLevel({token: index for index, token in enumerate(VOCABULARY)}))
    longest_first = sorted(VOCABULARY, key=len, reverse=True)
    pattern = Regex("|".join(re.escape(token) for token in longest_first))
    pieces: Any = pre_tokenizers.Split(pattern, behavior="isolated")
    tokenizer.pre_tokenizer = pieces
    fuse: Any = decoders.Fuse()
    tokenizer.decoder = fuse
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in (PAD, START, END)])
    return tokenizer


def build_byte_tokenizer() -> Tokenizer:
    """One token for each byte of UTF-8, then the markers of the chat."""
    alphabet = {character: index for index, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    pieces: Any = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pieces
    decoder: Any = decoders.ByteLevel()
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in (PAD, START, END)])
    return tokenizer


def save_tokenizer(directory: Path, *, max_length: int, tokenizer: Tokenizer | None = None) -> None:
    """Writes tokenizer.json, tokenizer_config.json and the chat template; of the words when none is given."""
    files = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer or build_tokenizer(),
        eos_token=END,
        pad_token=PAD,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
    files.chat_template = CHAT_TEMPLATE
    files.save_pretrained(directory)


def framed(observation: str) -> str:
    """The observation as `CHAT_TEMPLATE` renders it, up to where the policy writes."""
    return f"{START}user{observation}{END}{START}assistant"
