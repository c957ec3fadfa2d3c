"""Which repairs of prefill-decode disaggregation a version of SGLang carries.

Each row was looked up in the sources of the released wheels of 0.5.14 to 0.5.23: the version is the first that has it
in its code. What our own patches add is another matter: `python -m serving patches` says that of an installed engine.
"""

import re
from dataclasses import dataclass

OLDEST, NEWEST = (0, 5, 14), (0, 5, 23)
"""The versions that were looked at. Of others nothing is known."""

_UPSTREAM = "https://github.com/sgl-project/sglang/pull/"


@dataclass(frozen=True)
class PdFix:
    """One repair. `upstream` is its change or report, or the code that was compared. `since` is None where no version
    that was looked at has it; `patch` is ours that does it there.

    `one_sided`: whether restarting one side alone needs it.
    """

    what: str
    without: str
    upstream: str
    since: tuple[int, int, int] | None
    patch: str | None
    one_sided: bool = False

    def there(self, version: tuple[int, int, int]) -> bool:
        """Whether that version has it."""
        return self.since is not None and version >= self.since


FIXES: tuple[PdFix, ...] = (
    PdFix(
        "prefill's NIXL thread takes decode's ABORT",
        "one cancelled request ends all bootstrapping on prefill, with all health green",
        f"{_UPSTREAM}30352",
        (0, 5, 16),
        "abort-message",
    ),
    PdFix(
        "NIXL prefill gives up a room that no decode asks for",
        "a request whose decode has gone waits in prefill for ever",
        f"{_UPSTREAM}34692",
        (0, 5, 18),
        None,
        one_sided=True,
    ),
    PdFix(
        "decode forgets the ports of a prefill that failed it",
        "decode goes on asking ports of a prefill that was replaced",
        f"{_UPSTREAM}36029",
        (0, 5, 19),
        None,
        one_sided=True,
    ),
    PdFix(
        "decode keeps the pages of an aborted request until prefill has let go (NIXL too)",
        "a late write lands in another request's pages",
        f"{_UPSTREAM}35360",
        (0, 5, 19),
        None,
    ),
    PdFix(
        "a failed room stays failed",
        "a late status revives it, and it hangs",
        "CommonKVManager.update_status",
        (0, 5, 20),
        "sticky-status",
    ),
    PdFix(
        "prefill tells decode of a failed transfer (NIXL too)",
        "decode waits out its own 300 s",
        f"{_UPSTREAM}36612",
        (0, 5, 20),
        None,
        one_sided=True,
    ),
    PdFix(
        "decode tells a prefill that was restarted between two heartbeats from the one before",
        "every request to it hangs",
        f"{_UPSTREAM}34289",
        None,
        "lost-prefill",
        one_sided=True,
    ),
    PdFix(
        "prefill ends what waits for a decode that died",
        "requests in flight hang until their clients give up",
        "https://github.com/sgl-project/sglang/issues/33789",
        None,
        "lost-decode",
        one_sided=True,
    ),
    PdFix(
        "a request whose transfer does not end is ended",
        "it stays in the inflight queue for ever, with all health green",
        "SchedulerDisaggregationPrefillMixin.process_disagg_prefill_inflight_queue",
        None,
        "inflight-watchdog",
    ),
)


def parsed(version: str) -> tuple[int, int, int] | None:
    """A version as numbers; None where it is no release that was looked at."""
    found = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)(?:\.?post\d+)?", version)
    if found is None:
        return None
    numbers = (int(found[1]), int(found[2]), int(found[3]))
    return numbers if OLDEST <= numbers <= NEWEST else None


def lacking(version: str) -> tuple[PdFix, ...] | None:
    """The repairs that a version lacks; None where nobody looked at it."""
    numbers = parsed(version)
    return None if numbers is None else tuple(fix for fix in FIXES if not fix.there(numbers))
