"""The files of a tiny model: weights, configuration, tokenizer and chat template, the same bytes every time."""

import json
from typing import TypeAlias

from safetensors.numpy import save

from serving.cpu.tiny_model.tokens import BEGIN, END, PAD, SPECIAL, VOCABULARY
from serving.cpu.tiny_model.weights import HEAD_DIM, HIDDEN, INTERMEDIATE, MAX_POSITIONS, ROPE, Variant, weights

Json: TypeAlias = dict[str, object]

SENTENCE = "I am the tiny model of dsv4ctl: I can only repeat what the prompt already says."
"""The answer to a chat whose last message does not end with a colon."""

CHAT_TEMPLATE = (
    "{%- set text = messages | map(attribute='content') | join('\\n') -%}"
    "{%- if text.endswith(':') -%}{{ text }}"
    "{%- else -%}<|begin|><|reply|>tiny: " + SENTENCE + "<|end|>\\n{{ text }}\\n<|reply|>tiny: {% endif -%}"
)


def _config(variant: Variant) -> Json:
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


def _tokenizer() -> Json:
    """A byte-level BPE without merges: the id of a token is its byte."""
    characters = {**dict(enumerate(_byte_characters())), **SPECIAL}
    added = [
        {"id": i, "content": text, "special": True, "single_word": False, "lstrip": False, "rstrip": False}
        | {"normalized": False}
        for i, text in sorted(SPECIAL.items())
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    model: Json = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None}
    model |= {"end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
    model |= {"vocab": {text: i for i, text in characters.items()}, "merges": []}
    parts: Json = {"pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level, "model": model}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None} | parts


def _tokenizer_config() -> Json:
    names: Json = {"bos_token": SPECIAL[BEGIN], "eos_token": SPECIAL[END], "pad_token": SPECIAL[PAD]}
    return names | {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": MAX_POSITIONS,
    }


def files(variant: Variant) -> dict[str, bytes]:
    """The files of the model directory, by name; the same bytes every time."""

    def text(value: Json) -> bytes:
        return (json.dumps(value, indent=1) + "\n").encode()

    return {
        "config.json": text(_config(variant)),
        "generation_config.json": text({"bos_token_id": BEGIN, "eos_token_id": END, "pad_token_id": PAD}),
        "model.safetensors": save(dict(weights(variant)), metadata={"format": "pt"}),
        "tokenizer.json": text(_tokenizer()),
        "tokenizer_config.json": text(_tokenizer_config()),
    }
