"""A variant of the CPU profile, from its start to its end."""

import json
import shutil
from pathlib import Path

from tests.engine import Dsv4, assert_gone, shm_files, write_profile
from tests.held import check_held_canaries
from tests.stack.test_equality import check_equality

# A token, a page and more, one chunk and more, the longest.
LENGTHS = (1, 300, 4097, 8000)


def check_variant(extends: str, prefill: int, decode: int, folder: Path) -> None:
    """It comes up, proves itself, answers rightly, ends a pinned request, and goes."""
    before = shm_files()
    mine = Dsv4(folder / "state")
    may_hold = "[env]\nSGLANG_DSV4_ALLOW_HOLD = 1"
    profile = write_profile(
        folder, f"v-{extends}", extends=extends, prefill=prefill, decode=decode, more=may_hold, large_tokens=6000
    )
    served = mine.run("serve", "--detach", profile.path, timeout_s=300)
    assert served.code == 0, served.err
    check_equality(profile.url, None, lengths=LENGTHS)
    if prefill == decode == 1:
        check_held_canaries(profile)
    watched = mine.run("watch-inflight", profile.path, "--count", "3", "-o", "jsonl")
    assert watched.code == 0, watched.err
    # One queue a prefill worker, whatever its ranks are; each by its own figures.
    seen = [json.loads(line)["event"]["verdicts"] for line in watched.out.splitlines() if "verdicts" in line]
    queues = {verdict["worker"] for verdicts in seen for verdict in verdicts if verdict["state"] in ("idle", "flowing")}
    assert queues == {f"prefill-{number}" for number in range(prefill)}
    stopped = mine.run("stop", "--yes", profile.path)
    assert stopped.code == 0, stopped.err
    assert_gone(profile, before)
    shutil.rmtree(mine.state)
