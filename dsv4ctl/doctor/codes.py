"""The codes of findings that `doctor` may come to, beside those of its checks of a host."""

from dsv4ctl.doctor.check import all_checks
from dsv4ctl.errors import UsageError
from dsv4ctl.names import did_you_mean

OF_THE_PLAN = frozenset(
    {
        *("KNOB_UNREAD", "KNOB_NOT_READ", "HAZARD", "PATCH_FAILED", "ENGINE_REFUSES", "PAIR_DISAGREES"),
        *("VERSION_DIFFERS", "PD_FIX_MISSING", "ONE_SIDE_UNSAFE", "TIMERS_OUT_OF_ORDER", "PROFILE_UNFIT"),
        *("MODEL_UNREAD", "MODEL_DIFFERS", "MODEL_LEAVES_NO_KV", "MODEL_TOO_LARGE", "CONTEXT_TOO_LONG"),
        *("ENGINE_MISSING", "ENGINE_VERSION_DIFFERS", "NUMACTL_MISSING", "STRAY_PROCESSES", "GPU_INDEX_MOVED"),
    }
)
OF_WHAT_RUNS = frozenset(
    {
        *("WORKER_DOWN", "WORKER_NOT_STARTED", "WORKER_SILENT", "PID_REUSED", "HOST_REBOOTED", "RECORD_MISSING"),
        *("CONFIG_DRIFT", "READ_BACK_UNKNOWN", "NOT_PROVEN", "CO_RESTART_UNFINISHED", "SECRETS_LEFT"),
        *("PATCHES_DIFFER", "PATCHES_UNSEEN", "KV_TRANSFER_SLOW"),
        *("HOP_BREAKS_KEEPALIVE", "HOP_UNSEEN", "PROBE_CUT_OFF", "PROBE_ERROR", "PROBE_HANGS"),
        *("PROBE_INCONCLUSIVE", "PROBE_WRONG_ANSWER"),
    }
)
OF_A_DEEP_LOOK = frozenset(
    {"TRANSFER_CORRUPT", "TRANSFER_FAILED", "TRANSFER_SLOW_LANE", "TRANSFER_COLLAPSE", "TRANSFER_UNKNOWN"}
)
UNSEEN = "PART_UNSEEN"


def all_codes() -> frozenset[str]:
    """Every code that a finding of `doctor` may have."""
    return OF_THE_PLAN | OF_WHAT_RUNS | OF_A_DEEP_LOOK | {UNSEEN, *(check.code for check in all_checks())}


def check_code(code: str) -> None:
    """Raises:
    UsageError: no finding has that code.
    """
    if code in all_codes():
        return
    guess = did_you_mean(code, sorted(all_codes()))
    raise UsageError(
        f"--only {code}: no finding of doctor has that code" + (f"; did you mean {guess}?" if guess else ""),
        hint="docs/findings has a page for each",
    )
