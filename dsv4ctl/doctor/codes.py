"""The codes of findings that `doctor` may come to, beside those of its checks of a host."""

from dsv4ctl.doctor.check import all_checks
from dsv4ctl.errors import NothingRunning, UsageError
from dsv4ctl.names import did_you_mean

OF_THE_PLAN = frozenset(
    {
        *("KNOB_UNREAD", "KNOB_NOT_READ", "HAZARD", "PATCH_FAILED", "ENGINE_REFUSES", "PAIR_DISAGREES"),
        *("VERSION_DIFFERS", "PD_FIX_MISSING", "ONE_SIDE_UNSAFE", "PROFILE_UNFIT"),
        *("MODEL_UNREAD", "MODEL_DIFFERS", "MODEL_LEAVES_NO_KV", "MODEL_TOO_LARGE", "CONTEXT_TOO_LONG"),
        *("ENGINE_MISSING", "ENGINE_VERSION_DIFFERS", "NUMACTL_MISSING", "STRAY_PROCESSES", "GPU_INDEX_MOVED"),
    }
)
OF_WHAT_RUNS = frozenset(
    {
        *("WORKER_DOWN", "WORKER_NOT_STARTED", "WORKER_SILENT", "PID_REUSED", "HOST_REBOOTED", "RECORD_MISSING"),
        *("CONFIG_DRIFT", "READ_BACK_UNKNOWN", "NOT_PROVEN", "CO_RESTART_UNFINISHED", "SECRETS_LEFT"),
        *("PATCHES_DIFFER", "PATCHES_UNSEEN", "KV_TRANSFER_SLOW", "TIMERS_OUT_OF_ORDER"),
        "TIMEOUT_ON_LEASE",
    }
)
OF_GENERATIONS = frozenset(
    {
        *("HOP_BREAKS_KEEPALIVE", "HOP_UNSEEN", "PROBE_CUT_OFF", "PROBE_ERROR", "PROBE_HANGS"),
        *("PROBE_INCONCLUSIVE", "PROBE_WRONG_ANSWER"),
    }
)
OF_A_DEEP_LOOK = frozenset(
    {"TRANSFER_CORRUPT", "TRANSFER_FAILED", "TRANSFER_SLOW_LANE", "TRANSFER_COLLAPSE", "TRANSFER_UNKNOWN"}
)
UNSEEN = "PART_UNSEEN"
_ALSO_PLANNED = frozenset({"TIMERS_OUT_OF_ORDER"})
"""Of what runs, and looked for in the plan where nothing does."""


def all_codes() -> frozenset[str]:
    """Every code that a finding of `doctor` may have."""
    return (
        OF_THE_PLAN | OF_WHAT_RUNS | OF_GENERATIONS | OF_A_DEEP_LOOK | {UNSEEN, *(check.code for check in all_checks())}
    )


_HIDING = frozenset({"ENGINE_MISSING", "ENGINE_REFUSES"})
"""With one of these an engine was not asked what it makes of the plan."""


def is_told(code: str, only: str | None) -> bool:
    """Whether a finding is told when one code alone is wanted: itself, and what kept it from being looked for."""
    return only in (None, code) or code == UNSEEN or (only in OF_THE_PLAN and code in _HIDING)


def is_asked(part: frozenset[str], only: str | None) -> bool:
    """Whether a part with these codes has to be looked at when one code alone is wanted. A part that cannot be looked
    at may be any, and what is of the plan may be seen in what runs as well."""
    return only in (None, UNSEEN) or only in part or (part is OF_WHAT_RUNS and only in OF_THE_PLAN)


def check_seen(code: str, stack: str, *, runs: bool | None, deep: bool) -> None:
    """That nothing is wrong shall not be said where nothing was looked at. `runs` is None where that is not known.

    Raises:
        NothingRunning: only a stack that runs can have this.
        UsageError: only a deep look finds it.
    """
    if code in (OF_WHAT_RUNS | OF_GENERATIONS) - _ALSO_PLANNED and runs is False:
        raise NothingRunning(f"{stack} does not run, and {code} is seen only in a stack that does")
    if code in OF_A_DEEP_LOOK and not deep:
        raise UsageError(f"--only {code}: it takes a deep look", hint="add --deep")


def check_code(code: str) -> None:
    """Raises:
    UsageError: no finding has that code.
    """
    if code in all_codes():
        return
    guess = did_you_mean(code, sorted(all_codes()))
    raise UsageError(
        f"--only {code}: no finding of doctor has that code" + (f"; did you mean {guess}?" if guess else ""),
        hint="docs/findings/README.md lists them",
    )
