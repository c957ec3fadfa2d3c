"""Whether one side of a pair may be restarted alone: known for a version of SGLang and its patches."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from dsv4ctl.restart.patch_table import Table

Side = Literal["prefill", "decode"]

KNOWN_VERSION = "0.5.23"
"""The version on which both were done over and over, under load (docs/reliability.md: kill-decode, restart-prefill)."""

_NEEDED: Mapping[Side, Mapping[str, str]] = {
    "decode": {
        "lost-decode": "prefill does not notice that decode was restarted, and what decode had not asked for yet waits "
        "for 300 s",
        "lost-messages": "a message that is lost with the connection leaves a half waiting for the other",
        "settled-pages": "prefill gives pages away while they are still being sent to the decode that is gone",
        "peer-reconnect": "one lost connection ends every later transfer to that decode",
    },
    "prefill": {
        "lost-prefill": "decode keeps the ports of the prefill that is gone, and every request hangs",
        "absent-prefill": "decode asks the new prefill for rooms that nobody will open there",
        "decode-quarantine": "decode gives pages away into which the old prefill may still write",
        "peer-reconnect": "one lost connection ends every later transfer",
    },
}


@dataclass(frozen=True)
class Safety:
    """What is known of restarting one side alone. `why` is a sentence."""

    side: Side
    safe: bool
    why: str


def safety_of(side: Side, version: str | None, staying: Table) -> Safety:
    """Judge by the version of SGLang and by the patches that the side which stays runs with (as it says itself)."""
    if version != KNOWN_VERSION:
        return Safety(
            side, False, f"it was tried on SGLang {KNOWN_VERSION}, and this is {version or 'an unknown version'}"
        )
    missing = [name for name in _NEEDED[side] if staying.get(name) != "applied"]
    if missing:
        reasons = "; ".join(f"without {name}, {_NEEDED[side][name]}" for name in missing)
        return Safety(side, False, f"the side that stays lacks what makes it safe: {reasons}")
    return Safety(
        side,
        True,
        f"SGLang {version} with {', '.join(_NEEDED[side])}: the side that stays ends the requests it had with the one "
        "that goes, and takes up the new one",
    )
