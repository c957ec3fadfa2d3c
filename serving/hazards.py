"""Settings that are known to do harm together: one table, read when an engine starts and printed by `hazards`.

Each is in the table because somebody saw it, and says who. A variable means what its reader makes of it: SGLang takes
its default for one that is not set, and for one that it does not understand.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from serving import knobs
from serving.settings import switch
from serving.untyped import Untyped

SCHEMA_VERSION = 1

Severity = Literal["refuse", "warn"]

FLAGS = ("--disaggregation-mode", "--disaggregation-transfer-backend", "--disable-custom-all-reduce")
"""Those that the table asks about."""

# NCCL reads it with strtol, and compares with 1 (ncclGetLevel).
_NCCL_ONE = re.compile(r"\s*\+?0*1(?!\d)")
_ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
# UCX's names for what copies within one machine and cannot tell that the other side has died.
_LOCAL_TRANSPORTS = frozenset(
    {"self", "sm", "shm", "mm", "posix", "sysv", "cma", "knem", "xpmem", "cuda", "cuda_copy", "cuda_ipc", "gdr_copy"}
    | {"rocm", "rocm_copy", "rocm_ipc", "rocm_gdr"}
)


@dataclass(frozen=True)
class Engine:
    """What an engine is given: its environment, and the arguments of its command line."""

    environment: Mapping[str, str]
    arguments: Sequence[str] = ()

    def variable(self, name: str) -> str:
        """Its value, or its default in the installed engine; empty for none."""
        return self.environment[name] if name in self.environment else knobs.engine_default(name) or ""

    def is_on(self, name: str) -> bool:
        """Whether a switch, of ours or of SGLang's, is on.

        Raises:
            BadSetting: it is ours, and says neither yes nor no.
        """
        if name in knobs.OWN_KNOBS:
            return switch(name, self.environment)
        return knobs.engine_switch(name, self.environment).is_on

    def is_switched_off(self, name: str) -> bool:
        """Whether a switch of SGLang's was set to off, in a word that SGLang understands."""
        read = knobs.engine_switch(name, self.environment)
        return read.said is not None and read.is_understood and not read.is_on

    def misread(self, name: str) -> str | None:
        """What should be known of a switch of SGLang's that says something which SGLang does not understand."""
        read = knobs.engine_switch(name, self.environment)
        if read.is_understood:
            return None
        return f"{name} is {read.said!r}, for which SGLang takes the default, {'on' if read.is_on else 'off'}"

    def flag(self, name: str) -> str | None:
        """What a flag was given, empty where that is nothing, None without the flag.

        As argparse does it: a flag may be cut short, its value may follow an equals sign, and the last one counts. One
        that is cut so short that it could be another as well ends SGLang before anything else does.
        """
        found = None
        for at, argument in enumerate(self.arguments):
            given, equals, value = argument.partition("=")
            if len(given) > len("--") and name.startswith(given):
                following = self.arguments[at + 1] if at + 1 < len(self.arguments) else ""
                found = value if equals else "" if following.startswith("--") else following
        return found


def arguments_of(configuration: Untyped) -> list[str]:
    """The command line that would say what SGLang has made of its own, of a file, and of a program's arguments."""
    values = {flag: getattr(configuration, flag.removeprefix("--").replace("-", "_")) for flag in FLAGS}
    return [flag if value is True else f"{flag}={value}" for flag, value in values.items() if value]


@dataclass(frozen=True)
class Setting:
    """One side of a hazard: what it is in words, whether an engine has it, and the switch of SGLang's that it is."""

    text: str
    holds: Callable[[Engine], bool]
    switch: str | None = None


@dataclass(frozen=True)
class Hazard:
    """Settings that do harm when all of them hold.

    `refuse` stops the engine: what happens is wrong answers, or a failure that comes much later; `warn` says so and
    goes on. With `gpu_only` an engine on a CPU is not concerned.
    """

    name: str
    severity: Severity
    settings: tuple[Setting, ...]
    effect: str
    remedy: str
    evidence: str
    gpu_only: bool = True


def _on(name: str) -> Setting:
    return Setting(f"{name} is on", lambda engine: engine.is_on(name), name)


def _off(name: str) -> Setting:
    return Setting(f"{name} is off", lambda engine: not engine.is_on(name), name)


def _without_flag(name: str) -> Setting:
    return Setting(f"no {name}", lambda engine: engine.flag(name) is None)


def _has_expandable_segments(engine: Engine) -> bool:
    options = [option.strip().lower() for name in _ALLOCATOR for option in engine.variable(name).split(",")]
    return "expandable_segments:true" in options


def _transports(engine: Engine) -> list[str]:
    return [name.strip().partition(":")[0].lower() for name in engine.variable("UCX_TLS").split(",") if name.strip()]


def _may_use_cuda_ipc(engine: Engine) -> bool:
    named = _transports(engine)
    if not named or named[0].startswith("^"):
        return "^cuda_ipc" not in named and "cuda_ipc" not in named[1:]
    return not {"all", "cuda", "cuda_ipc"}.isdisjoint(named)


_EXPANDABLE = Setting(f"expandable_segments:True in {' or '.join(_ALLOCATOR)}", _has_expandable_segments)
_NIXL = Setting(
    "--disaggregation-transfer-backend nixl",
    lambda engine: (
        engine.flag("--disaggregation-transfer-backend") == "nixl"
        and engine.variable("SGLANG_DISAGGREGATION_NIXL_BACKEND") == "UCX"
    ),
)

HAZARDS = (
    Hazard(
        "bf16-index-keys-multi-stream",
        "refuse",
        (_on("SGLANG_DSV4_BF16_INDEX_K"), _on("SGLANG_OPT_USE_MULTI_STREAM_OVERLAP")),
        "the indexer's keys are corrupted under CUDA-graph capture, and attention looks at the wrong tokens",
        "set SGLANG_OPT_USE_MULTI_STREAM_OVERLAP=0, or leave the keys in FP8",
        "Seen by an operator of such a stack on SM120; not reproduced here, where there is no GPU. SGLang 0.5.23 "
        "overlaps streams on the indexer's path only while it captures (deepseek_v4.py, get_is_capture_mode), and does "
        "so unless told not to. A published SM120 recipe turns the overlap off because it breaks capture there: "
        "https://github.com/ambientlight/rtx-pro-6000-bench. Refused on a CPU engine too, where it does nothing: "
        "a profile is tried there before it goes to the box.",
        gpu_only=False,
    ),
    Hazard(
        "ucx-without-failure-handling",
        "refuse",
        (
            Setting(
                "UCX_TLS names only transports within one machine",
                lambda engine: bool(_transports(engine)) and _LOCAL_TRANSPORTS.issuperset(_transports(engine)),
            ),
            _NIXL,
        ),
        "NIXL cannot create its UCX backend, and the engine ends after it has loaded its weights",
        "add tcp to UCX_TLS, which then carries control messages alone",
        "Seen here with NIXL 1.5.1 and UCX_TLS=sm,self and self,sm,cuda_copy,cuda_ipc: NIXL_ERR_BACKEND, UCX logs "
        "'no peer failure handler'; with sm,tcp the same transfer is done. "
        "https://github.com/ai-dynamo/nixl/issues/1846, https://github.com/ai-dynamo/nixl/issues/1413",
        gpu_only=False,
    ),
    Hazard(
        "decode-frees-at-once",
        "refuse",
        (
            Setting(
                "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE is switched off",
                lambda engine: engine.is_switched_off("SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE"),
                "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE",
            ),
            Setting(
                "--disaggregation-mode decode or prefill",
                lambda engine: engine.flag("--disaggregation-mode") in {"decode", "prefill"},
            ),
        ),
        "on decode: it gives the pages of a failed request away while prefill may still write into them, and answers "
        "200 with another request's context. On prefill: it never says that a transfer is over, and decode keeps the "
        "pages of each one that was aborted for as long as that prefill lives",
        "leave the variable out: it is on by default",
        "Read in SGLang 0.5.23: without it decode frees at once, and nothing waits for prefill to say that a transfer "
        "is over (decode.py, pop_transferred); prefill without it leaves decode's question unanswered (nixl/conn.py, "
        "_handle_deferred_abort_ack). Elsewhere 8 of 42 answers were wrong after pages had been freed early: "
        "https://github.com/aws-samples/aws-do-eks/pull/84",
        gpu_only=False,
    ),
    Hazard(
        "expandable-segments-cuda-ipc",
        "warn",
        (_EXPANDABLE, Setting("UCX_TLS lets cuda_ipc be used", _may_use_cuda_ipc), _NIXL),
        "UCX cannot export the KV pool to another process, and moves KV through host memory over TCP without a word",
        "leave expandable_segments out on prefill and decode, or check the rate of a transfer",
        "Reported with a reproduction on H100 and NVLink: 0.3 GB/s in place of 200, with right data. "
        "https://github.com/ai-dynamo/nixl/issues/1754, https://github.com/openucx/ucx/issues/11548",
    ),
    Hazard(
        "expandable-segments-legacy-all-reduce",
        "warn",
        (
            _EXPANDABLE,
            _off("SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2"),
            _without_flag("--disable-custom-all-reduce"),
        ),
        "with several ranks a worker ends while CUDA graphs are captured: \"custom_all_reduce.cuh 'invalid argument'\"",
        "leave SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2 on, or pass --disable-custom-all-reduce",
        "The legacy all-reduce shares its buffers by cudaIpcGetMemHandle, which refuses memory of that allocator. Seen "
        "with vLLM's kernel, from which it stems, on H200, H100, RTX 3090 and RTX 5090: "
        "https://github.com/vllm-project/vllm/issues/42609. SGLang's second version has another way for such memory: "
        "https://github.com/sgl-project/sglang/pull/27593",
    ),
    Hazard(
        "nccl-p2p-off-custom-all-reduce",
        "warn",
        (
            Setting(
                "NCCL_P2P_DISABLE=1",
                lambda engine: _NCCL_ONE.match(engine.environment.get("NCCL_P2P_DISABLE", "")) is not None,
            ),
            _without_flag("--disable-custom-all-reduce"),
        ),
        "between two GPUs SGLang's own all-reduce goes on using P2P, and hangs where P2P does not work",
        "pass --disable-custom-all-reduce as well",
        "Reported with a reproduction on RTX PRO 6000, TP 2 (vLLM): with NCCL's P2P off a second hang follows, in the "
        "engine's own all-reduce. https://github.com/local-inference-lab/rtx6kpro/issues/15, "
        "https://github.com/vllm-project/vllm/issues/51513. SGLang 0.5.23 does not read NCCL_P2P_DISABLE.",
    ),
    Hazard(
        "nccl-graph-file-empty",
        "warn",
        (
            Setting(
                "NCCL_GRAPH_FILE is set and empty",
                lambda engine: engine.environment.get("NCCL_GRAPH_FILE", "unset") == "",
            ),
        ),
        "NCCL takes the empty name for a file, and cannot start",
        "unset NCCL_GRAPH_FILE",
        "Written down by operators of RTX PRO 6000 boxes: "
        "https://github.com/local-inference-lab/rtx6kpro/blob/main/optimization/nccl-tuning.md. NCCL's maintainers say "
        "of the variable that it should never be set in production: https://github.com/NVIDIA/nccl/issues/1240",
    ),
)


def present(engine: Engine) -> tuple[Hazard, ...]:
    """Those that this engine would run with.

    Raises:
        BadSetting: one of our switches says neither yes nor no.
    """
    on_cpu = engine.environment.get("SGLANG_USE_CPU_ENGINE") == "1"
    return tuple(
        hazard
        for hazard in HAZARDS
        if not (hazard.gpu_only and on_cpu) and all(setting.holds(engine) for setting in hazard.settings)
    )


def misread(engine: Engine, said: Sequence[Hazard] = ()) -> tuple[str, ...]:
    """A sentence for each switch in the table that says something which SGLang does not understand.

    But for the switches of the hazards in `said`, whose own sentences say it.
    """
    names = _switches(HAZARDS) - _switches(said)
    return tuple(note for name in sorted(names) if (note := engine.misread(name)))


def _switches(hazards: Sequence[Hazard]) -> set[str]:
    return {setting.switch for hazard in hazards for setting in hazard.settings if setting.switch}


def sentence(hazard: Hazard, engine: Engine) -> str:
    """What is set, what comes of it, and what to do."""
    notes = {setting.text: setting.switch and engine.misread(setting.switch) for setting in hazard.settings}
    settings = " and ".join(f"{text} ({note})" if note else text for text, note in notes.items())
    return f"{settings}: {hazard.effect}; {hazard.remedy}"


def as_data(engine: Engine) -> dict[str, Any]:
    """The table, and which of it this engine would run with, ready for JSON.

    Raises:
        BadSetting: one of our switches says neither yes nor no.
    """
    found = present(engine)
    return {
        "schema_version": SCHEMA_VERSION,
        "misread": list(misread(engine)),
        "hazards": [
            {
                "name": hazard.name,
                "severity": hazard.severity,
                "settings": [setting.text for setting in hazard.settings],
                "effect": hazard.effect,
                "remedy": hazard.remedy,
                "evidence": hazard.evidence,
                "gpu_only": hazard.gpu_only,
                "present": hazard in found,
            }
            for hazard in HAZARDS
        ],
    }


def lines(engine: Engine) -> Iterator[str]:
    """For a person: those that this engine would run with, a line each, and what of them SGLang does not understand.

    Raises:
        BadSetting: one of our switches says neither yes nor no.
    """
    found = present(engine)
    if not found:
        yield f"none of the {len(HAZARDS)} known hazards is set here"
    for hazard in found:
        yield f"{hazard.severity}  {hazard.name}  {sentence(hazard, engine)}"
    for note in misread(engine, found):
        yield f"note  {note}"
