"""The weights of the tiny model, written down by hand. docs/cpu-engine.md walks through them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving.cpu.tiny_model.tokens import CODE_LENGTH, CONTEXT, VOCABULARY, codebook

Array = NDArray[np.float32]

MAX_POSITIONS = 16384

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
ROPE_THETA = 1e24
ROPE = {
    "rope_type": "llama3",
    "rope_theta": ROPE_THETA,
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
    frequency = ROPE_THETA ** (-pairs / (HEAD_DIM // 2))
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
