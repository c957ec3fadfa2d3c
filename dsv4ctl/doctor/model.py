"""The model's own account of itself, against the plan: room on the GPUs, context length, the same on both sides."""

import hashlib
import json
import posixpath
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsv4ctl.doctor.asking import Question, ask
from dsv4ctl.engine_keys import flag_of
from dsv4ctl.findings import Finding, Severity

if TYPE_CHECKING:
    from dsv4ctl.facts import HostFacts
    from dsv4ctl.fleet import Fleet
    from dsv4ctl.stack import Stack, Worker

DEFAULT_FRACTION = 0.8
"""What SGLang takes of a GPU's memory about, where nothing says: it chooses by the card (server_args.py)."""

LEAST_LEFT = 0.1
"""A worker whose weights leave less than this part of its share has hardly any room for KV."""

_LENGTHS = ("max_position_embeddings", "max_sequence_length", "seq_length", "max_seq_len", "model_max_length")
_OVERWRITE = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"


@dataclass(frozen=True)
class Config:
    """A model's config.json on one host. `digest` tells two of them apart; `length` is None where it says none."""

    host: str
    path: str
    digest: str
    length: int | None
    dtype: str | None
    quantization: str | None


def read_configs(fleet: "Fleet", stack: "Stack") -> tuple[Config | str, ...]:
    """The model on each host that has engines; a sentence in place of one that cannot be read. A model that is made
    at the start is left out.

    Raises:
        OperationFailed, HostUnreachable, DeadlineExceeded
    """
    found: list[Config | str] = []
    for source in stack.models:
        if source.make is not None:
            continue
        path = posixpath.join(source.path, "config.json")
        question = Question("config", f'cat "$1"{shlex.quote(path)}')
        answer = ask(fleet[source.host].host, [question])["config"]
        if answer.failure:
            found.append(f"{path} on {source.host} cannot be read: {answer.failure}")
            continue
        try:
            found.append(parse_config(source.host, path, answer.text))
        except ValueError as error:
            found.append(f"{path} on {source.host} is no model's configuration: {error}")
    return tuple(found)


def parse_config(host: str, path: str, text: str) -> Config:
    """Raises:
    ValueError: it is no JSON object, or one that names no model.
    """
    document: Any = json.loads(text)
    if not isinstance(document, dict):
        raise ValueError("no JSON object")  # noqa: TRY004 (what is wrong is the file's content)
    if not document.get("architectures") and not document.get("model_type"):
        raise ValueError("it has neither architectures nor model_type")
    inner = document.get("text_config")
    both: dict[str, Any] = {**document, **inner} if isinstance(inner, dict) else document
    lengths = [both[name] for name in _LENGTHS if isinstance(both.get(name), int)]
    quantized = both.get("quantization_config")
    method = quantized.get("quant_method") or quantized.get("quant_algo") if isinstance(quantized, dict) else None
    dtype = both.get("torch_dtype") or both.get("dtype")
    digest = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:12]
    return Config(
        host, path, digest, lengths[0] if lengths else None, dtype if isinstance(dtype, str) else None, _word(method)
    )


def _word(value: object) -> str | None:
    return value if isinstance(value, str) else None


def model_findings(
    stack: "Stack", configs: Sequence[Config | str], facts: "Mapping[str, HostFacts]", size_bytes: int | None
) -> tuple[Finding, ...]:
    """Findings on the model. `size_bytes` is what the profile states, else what its files weigh on each host."""
    known = {config.host: config for config in configs if isinstance(config, Config)}
    unread = [config for config in configs if isinstance(config, str)]
    return (
        *(
            Finding("MODEL_UNREAD", Severity.UNKNOWN, sentence, "see that the path is right and can be read")
            for sentence in unread
        ),
        *_without_weights(stack, facts),
        *_same(list(known.values())),
        *(finding for worker in stack.engines for finding in _of_worker(worker, known, facts, size_bytes)),
    )


def _without_weights(stack: "Stack", facts: "Mapping[str, HostFacts]") -> Iterator[Finding]:
    for source in stack.models:
        host = facts.get(source.host)
        dummy = [flag_of(worker.argv, "--load-format") == "dummy" for worker in stack.on(source.host)]
        if (
            source.make is None
            and host is not None
            and host.model_directory
            and host.model_bytes == 0
            and not any(dummy)
        ):
            yield Finding(
                "MODEL_UNREAD",
                Severity.UNKNOWN,
                f"{source.path} on {source.host} has no weights: no file there ends with .safetensors, .bin or .gguf",
                "see that the model was fetched whole; what it takes of the GPUs is not known",
                {"host": source.host, "path": source.path},
            )


def _same(configs: Sequence[Config]) -> Iterator[Finding]:
    if len({config.digest for config in configs}) > 1:
        words = ", ".join(f"{config.host} has {config.digest}" for config in configs)
        yield Finding(
            "MODEL_DIFFERS",
            Severity.ERROR,
            f"the model's config.json is not the same on all hosts: {words}",
            "copy the same model to all hosts: KV of one means nothing to another",
            {config.host: config.digest for config in configs},
        )


def _of_worker(
    worker: "Worker", configs: Mapping[str, Config], facts: "Mapping[str, HostFacts]", size_bytes: int | None
) -> Iterator[Finding]:
    config = configs.get(worker.host)
    length = flag_of(worker.argv, "--context-length")
    if config is not None and config.length is not None and length is not None and length.isdigit():
        longer = int(length) > config.length
        if longer and worker.env.get(_OVERWRITE, "").lower() not in {"1", "true", "yes", "y"}:
            yield Finding(
                "CONTEXT_TOO_LONG",
                Severity.ERROR,
                f"{worker.name} on {worker.host} is given a context of {length} tokens, and the model's is "
                f"{config.length}: SGLang refuses to start",
                f"lower context-length, or set {_OVERWRITE}=1 if the model is known to bear it",
                {"worker": worker.name, "context_length": int(length), "of_the_model": config.length},
            )
    host = facts.get(worker.host)
    size = size_bytes or (host.model_bytes if host is not None else None)
    own = worker.cards
    if host is None or not size or not own or worker.unresolved:
        return
    given = flag_of(worker.argv, "--mem-fraction-static")
    try:
        fraction = float(given or DEFAULT_FRACTION)
    except ValueError:
        yield Finding(
            "MODEL_LEAVES_NO_KV",
            Severity.UNKNOWN,
            f"{worker.name} on {worker.host}: mem-fraction-static {given!r} is no number, so what is left for KV "
            "is not known",
            "correct it in the profile",
            {"worker": worker.name, "fraction": given},
        )
        return
    share = fraction * min(gpu.memory_mib for gpu in own) * 1024**2
    weights = size / len(own)
    if weights > share * (1 - LEAST_LEFT):
        yield Finding(
            "MODEL_LEAVES_NO_KV",
            Severity.ERROR if weights > share else Severity.WARNING,
            f"{worker.name} on {worker.host}: the weights take {weights / 1024**3:.1f} GiB of each GPU, and "
            f"mem-fraction-static {fraction:g} gives the engine {share / 1024**3:.1f} GiB for them and for KV",
            "raise mem-fraction-static (0.80 to 0.85 is common on four cards), or give the worker more GPUs",
            {"worker": worker.name, "weights_bytes": int(weights), "share_bytes": int(share), "fraction": fraction},
        )
