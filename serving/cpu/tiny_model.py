"""A language model built by hand, whose every answer anyone can compute without running it.

It is a two-layer induction head in the shape of a Llama: greedy decoding continues a text with the byte that followed
the most similar earlier six bytes. Nothing is trained and nothing is random, so an answer has one right text, and a
wrong page of KV gives a wrong one. docs/cpu-engine.md walks through the construction; `expected_answer` states what
the network computes without being one.

    python -m serving.cpu.tiny_model DIR [--variant tiny|kv-heavy]
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

CONTEXT = 6
"""Bytes of context that are compared: the current byte and the five before it."""

CODE_LENGTH = 16
VOCABULARY = 256
BEGIN, END, PAD, REPLY = 0xFE, 0xFF, 0xFD, 0xFC
SPECIAL = {BEGIN: "<|begin|>", END: "<|end|>", PAD: "<|pad|>", REPLY: "<|reply|>"}
"""Bytes that never occur in UTF-8 and stand for something else than themselves."""

MAX_POSITIONS = 16384
SENTENCE = "I am the tiny model of dsv4ctl: I can only repeat what the prompt already says."
"""The answer to a chat whose last message does not end with a colon."""

# The residual stream: own code, the codes of the six tokens before, the answer, one constant. Codes are +-3 and the
# constant is 12, so that the mean square is exactly 1 before layer 1 and exactly 4 before layer 2: RMSNorm divides by
# 1 and by 2, and every number after it is exact in float32.
HIDDEN = 288
OWN, PREVIOUS, ANSWER, CONSTANT = 0, CODE_LENGTH, CODE_LENGTH * (1 + CONTEXT), CODE_LENGTH * (2 + CONTEXT)
CODE_SCALE, CONSTANT_VALUE = 3.0, 12.0

# RoPE turns pair k by theta^(-k/64) per token: 1, 0.42, 0.18 and so on. The first pairs measure distance. The pairs
# from 16 on carry content, 96 dimensions, and must not turn at all: the llama3 kind of scaling divides the frequencies
# of all pairs that turn once in 819,200 tokens or more by a further 1e9.
HEAD_DIM = 128
ROPE = {
    "rope_type": "llama3",
    "rope_theta": 1e24,
    "factor": 1e9,
    "low_freq_factor": 0.01,
    "high_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
}
CONTENT_PAIR = 16
# Weights of pairs 0..7 in a layer-1 score: their sum of cosines has its one maximum at the wanted distance, by 1.59
# over all distances up to MAX_POSITIONS, and falls steadily over the six distances beside it. The sharpness makes that
# 51 units of a softmax's exponent.
DISTANCE_WEIGHTS = (2.0, 9.0, 1.0, 1.0, 1.0, 2.0, 0.0, 1.0)
DISTANCE_SHARPNESS = 32.0
MATCH_QUERY = 24.0
TIE_BREAK = 2.0**-14
INTERMEDIATE = 32

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Variant:
    """The shape of a tiny model: query and KV heads a layer. KV heads set the bytes of KV a token."""

    heads: int
    kv_heads: int

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of KV that one token occupies: two layers, keys and values, float32."""
        return 2 * 2 * self.kv_heads * HEAD_DIM * 4


VARIANTS = {"tiny": Variant(heads=6, kv_heads=2), "kv-heavy": Variant(heads=8, kv_heads=8)}


class TinyModelError(Exception):
    """The model could not be written where it was wanted."""


def codebook() -> NDArray[np.int64]:
    """The Nordstrom-Robinson code: 256 words of 16 signs that differ in at least 6 places.

    Row b is the code of byte b. It is the Gray image of the octacode, the quaternary code spanned by the cyclic
    shifts of 3 1 2 1 0 0 0 with a check digit. Two rows have the inner product 16 (equal), 4, 0, -4 or -16.
    """
    generator = np.array([[*np.roll([3, 1, 2, 1, 0, 0, 0], shift), 1] for shift in range(4)])
    digits = np.array([[byte >> (2 * place) & 3 for place in range(4)] for byte in range(VOCABULARY)])
    gray = np.array([[1, 1], [1, -1], [-1, -1], [-1, 1]])
    return gray[digits @ generator % 4].reshape(VOCABULARY, CODE_LENGTH)


# --- what it answers, by definition ---------------------------------------------------------------------------------


def next_token(tokens: NDArray[np.int64]) -> int:
    """What follows `tokens` (ids, at least one), from the definition and in whole numbers.

    Every earlier position is a candidate: the similarity of the six tokens before it to the last six tokens is the sum
    of the inner products of their codes; what precedes the text counts as its first token. The most similar positions
    vote with the code of their token, the byte nearest to the mean of the votes wins, and the smaller of two equals.
    """
    code = codebook()
    products = code @ code.T
    last = len(tokens) - 1
    positions = np.arange(len(tokens))
    similarity = np.zeros(len(tokens), dtype=np.int64)
    for back in range(CONTEXT):
        mine = tokens[max(last - back, 0)]
        theirs = tokens[np.maximum(positions - 1 - back, 0)]
        similarity += products[mine, theirs]
    votes = np.bincount(tokens[similarity == similarity.max()], minlength=VOCABULARY)
    # One tie-break step is 12 * 2^-14 of the final residual, one unit of a unanimous vote is 3.
    scores = votes @ products * 2**14 * int(CODE_SCALE) - votes.sum() * int(CONSTANT_VALUE) * np.arange(VOCABULARY)
    return int(scores.argmax())


def expected_answer(prompt: bytes, max_tokens: int) -> bytes:
    """The greedy continuation of `prompt` (not empty), until the end token (left out) or `max_tokens` bytes."""
    tokens = np.frombuffer(prompt, dtype=np.uint8).astype(np.int64)
    for _ in range(max_tokens):
        token = next_token(tokens)
        if token == END:
            break
        tokens = np.append(tokens, token)
    return bytes(tokens[len(prompt) :].astype(np.uint8))


# --- the weights ----------------------------------------------------------------------------------------------------


def weights(variant: Variant) -> dict[str, Array]:
    """The tensors of the model, by the names that a Llama checkpoint gives them."""
    code = codebook().astype(np.float32)
    embedding = np.zeros((VOCABULARY, HIDDEN), np.float32)
    embedding[:, OWN : OWN + CODE_LENGTH] = CODE_SCALE * code
    embedding[:, CONSTANT] = CONSTANT_VALUE
    head = np.zeros((VOCABULARY, HIDDEN), np.float32)
    head[:, ANSWER : ANSWER + CODE_LENGTH] = code
    head[:, CONSTANT] = -TIE_BREAK * np.arange(VOCABULARY)
    tensors = {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": np.ones(HIDDEN, np.float32),
        "lm_head.weight": head,
    }
    for layer, attention in enumerate((_previous_tokens(variant), _match_and_copy(variant))):
        prefix = f"model.layers.{layer}."
        tensors |= {f"{prefix}self_attn.{name}_proj.weight": tensor for name, tensor in attention.items()}
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}{norm}.weight"] = np.ones(HIDDEN, np.float32)
        for name in ("gate", "up"):
            tensors[f"{prefix}mlp.{name}_proj.weight"] = np.zeros((INTERMEDIATE, HIDDEN), np.float32)
        tensors[f"{prefix}mlp.down_proj.weight"] = np.zeros((HIDDEN, INTERMEDIATE), np.float32)
    return tensors


def _empty_attention(variant: Variant) -> dict[str, Array]:
    """Zero projections; q, k and v as [head, head_dim, hidden], o as [hidden, head, head_dim]."""
    return {
        "q": np.zeros((variant.heads, HEAD_DIM, HIDDEN), np.float32),
        "k": np.zeros((variant.kv_heads, HEAD_DIM, HIDDEN), np.float32),
        "v": np.zeros((variant.kv_heads, HEAD_DIM, HIDDEN), np.float32),
        "o": np.zeros((HIDDEN, variant.heads, HEAD_DIM), np.float32),
    }


def _flat(attention: dict[str, Array]) -> dict[str, Array]:
    return {name: t.reshape(HIDDEN, -1) if name == "o" else t.reshape(-1, HIDDEN) for name, t in attention.items()}


def _previous_tokens(variant: Variant) -> dict[str, Array]:
    """Layer 1: head i attends to the token i+1 back and copies its code into slot i of the residual stream.

    Query and key are constants, so a score depends on the distance alone, through the turn that RoPE gives them.
    """
    attention = _empty_attention(variant)
    pairs = np.arange(len(DISTANCE_WEIGHTS))
    frequency = float(ROPE["rope_theta"]) ** (-pairs / (HEAD_DIM // 2))
    strength = np.array(DISTANCE_WEIGHTS) * DISTANCE_SHARPNESS * HEAD_DIM**0.5 / CONSTANT_VALUE
    codes = np.arange(CODE_LENGTH)
    attention["k"][:, pairs, CONSTANT] = 1 / CONSTANT_VALUE
    attention["v"][:, codes, OWN + codes] = 1
    for head in range(CONTEXT):
        distance = head + 1
        attention["q"][head, pairs, CONSTANT] = strength * np.cos(frequency * distance)
        attention["q"][head, pairs + HEAD_DIM // 2, CONSTANT] = -strength * np.sin(frequency * distance)
        attention["o"][PREVIOUS + head * CODE_LENGTH + codes, head, codes] = 1
    return _flat(attention)


def _match_and_copy(variant: Variant) -> dict[str, Array]:
    """Layer 2: the last six tokens ask, the six tokens before a position answer, and its own code is what is copied.

    One query head of each KV head works, and each KV head brings its share of the code: the answer needs all of them.
    """
    attention = _empty_attention(variant)
    pairs = np.arange(CONTENT_PAIR, HEAD_DIM // 2)
    content = np.concatenate([pairs, pairs + HEAD_DIM // 2])
    slots = np.arange(CONTEXT * CODE_LENGTH)
    share = CODE_LENGTH // variant.kv_heads
    for kv_head in range(variant.kv_heads):
        head = kv_head * (variant.heads // variant.kv_heads)
        codes = np.arange(kv_head * share, (kv_head + 1) * share)
        attention["q"][head, content, OWN + slots] = MATCH_QUERY / (CODE_SCALE / 2)
        attention["k"][kv_head, content, PREVIOUS + slots] = 1
        attention["v"][kv_head, codes, OWN + codes] = 2
        attention["o"][ANSWER + codes, head, codes] = 1
    return _flat(attention)


# --- the files ------------------------------------------------------------------------------------------------------

CHAT_TEMPLATE = (
    "{%- set text = messages | map(attribute='content') | join('\\n') -%}"
    "{%- if text.endswith(':') -%}{{ text }}"
    "{%- else -%}<|begin|><|reply|>tiny: " + SENTENCE + "<|end|>\\n{{ text }}\\n<|reply|>tiny: {% endif -%}"
)


def _config(variant: Variant) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "bos_token_id": BEGIN,
        "eos_token_id": END,
        "pad_token_id": PAD,
        "dtype": "float32",
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "max_position_embeddings": MAX_POSITIONS,
        "num_attention_heads": variant.heads,
        "num_hidden_layers": 2,
        "num_key_value_heads": variant.kv_heads,
        "rms_norm_eps": 1e-12,
        "rope_parameters": ROPE,
        "tie_word_embeddings": False,
        "vocab_size": VOCABULARY,
    }


def _byte_characters() -> list[str]:
    """The character by which a byte-level tokenizer writes each byte: itself if printable, else from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(VOCABULARY)]


def _tokenizer() -> dict[str, object]:
    """A byte-level BPE without merges: the id of a token is its byte."""
    characters = {**dict(enumerate(_byte_characters())), **SPECIAL}
    added = [
        {"id": i, "content": text, "special": True, "single_word": False, "lstrip": False, "rstrip": False}
        | {"normalized": False}
        for i, text in sorted(SPECIAL.items())
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None}
    model |= {"end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
    model |= {"vocab": {text: i for i, text in characters.items()}, "merges": []}
    parts = {"pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level, "model": model}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None} | parts


def _tokenizer_config() -> dict[str, object]:
    names = {"bos_token": SPECIAL[BEGIN], "eos_token": SPECIAL[END], "pad_token": SPECIAL[PAD]}
    return names | {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": MAX_POSITIONS,
    }


def files(variant: Variant) -> dict[str, bytes]:
    """The files of the model directory, by name; the same bytes every time."""
    from safetensors.numpy import save

    def text(value: dict[str, object]) -> bytes:
        return (json.dumps(value, indent=1) + "\n").encode()

    return {
        "config.json": text(_config(variant)),
        "generation_config.json": text({"bos_token_id": BEGIN, "eos_token_id": END, "pad_token_id": PAD}),
        "model.safetensors": save(weights(variant), metadata={"format": "pt"}),
        "tokenizer.json": text(_tokenizer()),
        "tokenizer_config.json": text(_tokenizer_config()),
    }


def _same(directory: Path, contents: dict[str, bytes]) -> bool:
    return all(
        (file := directory / name).is_file() and file.stat().st_size == len(data) and file.read_bytes() == data
        for name, data in contents.items()
    )


def write_model(directory: Path, variant: Variant) -> bool:
    """Make `directory` hold the model; true if it had to be written, false if it was complete already.

    The model appears whole or not at all: it is written beside `directory` and renamed. A directory that holds
    anything but a model of this module is left alone.

    Raises:
        TinyModelError: `directory` is a file or holds something else.
        OSError: the disk is full or not writable; nothing is left behind.
    """
    contents = files(variant)
    if _same(directory, contents):
        return False
    if directory.exists():
        strangers = [p.name for p in directory.iterdir()] if directory.is_dir() else [directory.name]
        if strangers := sorted(set(strangers) - set(contents)):
            raise TinyModelError(f"{directory} holds {strangers[0]}, which is not part of a tiny model: left as it is")
    directory.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        for name, data in contents.items():
            with (fresh / name).open("xb") as file:
                file.write(data)
                os.fsync(file.fileno())
        fresh.chmod(0o755)
        if directory.exists():
            shutil.rmtree(directory)
        try:
            fresh.rename(directory)
        except OSError:
            # Another process made the same model at the same moment.
            if not _same(directory, contents):
                raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return True


def main(arguments: Iterable[str]) -> int:
    """Write the model that the command line asks for; 0 if it is there afterwards."""
    parser = argparse.ArgumentParser(prog="python -m serving.cpu.tiny_model", description="Write a tiny model.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--variant", choices=sorted(VARIANTS), default="tiny")
    chosen = parser.parse_args(list(arguments))
    try:
        write_model(chosen.directory, VARIANTS[chosen.variant])
    except (TinyModelError, OSError) as error:
        sys.stderr.write(f"tiny model: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
