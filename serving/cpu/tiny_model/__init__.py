"""A language model built by hand, whose every answer anyone can compute without running it.

It is a two-layer induction head in the shape of a Llama: greedy decoding continues a text with the byte that followed
the most similar earlier six bytes. Nothing is trained and nothing is random, so an answer has one right text, and a
wrong page of KV gives a wrong one. docs/cpu-engine.md walks through the construction; `expected_answer` states what
the network computes without being one.

    python -m serving.cpu.tiny_model DIR [--variant tiny|kv-heavy]
"""

from serving.cpu.tiny_model.answer import expected_answer, next_token
from serving.cpu.tiny_model.directory import TinyModelError, write_model
from serving.cpu.tiny_model.weights import VARIANTS, Variant

__all__ = ["VARIANTS", "TinyModelError", "Variant", "expected_answer", "next_token", "write_model"]
