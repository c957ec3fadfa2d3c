"""A name for what SGLang and NIXL hand to our hooks: they ship no types."""

from typing import Any, TypeAlias

Untyped: TypeAlias = Any
