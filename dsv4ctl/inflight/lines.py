"""The lines of a prefill worker's log that say something about its inflight queue."""

import re

from dsv4ctl.inflight.sample import Event
from dsv4ctl.printable import printable

# The watchdog's own line (serving/inflight/watchdog.py), and the whole of it: SGLang can be told to log prompts, which
# may quote one. A client chooses the id as well, which may hold anything but a newline: the last fields are ours.
_FIRED = re.compile(
    r"dsv4 inflight timeout rid=(?P<rid>.*) room=(?P<room>\S+) state=(?P<state>\S+) age_s=(?P<age>\d+\.\d+) "
    r"timeout_s=\S+ rank=tp\d+/pp\d+/dp(?P<dp>\d+)\s*"
)
# SGLang 0.5.23: scheduler_components/metrics_reporter.py and disaggregation/prefill.py.
_BATCH = re.compile(r"Prefill batch\b.*#inflight-req: (?P<count>\d+)")
_FAILED = re.compile(r"Prefill transfer failed for request rank=\d+ req\.rid='(?P<rid>.*?)' req\.bootstrap_room=")
_PREFIX = re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^\]]*\]\s*")
_LONGEST = 240


def event_of(line: str) -> Event | None:
    """What a line says; None where it says nothing of the queue.

    Each tensor and pipeline rank prints the watchdog's line of the same request: with the same room.
    """
    said = _PREFIX.sub("", line)
    text = printable(said[:_LONGEST])
    if found := _FIRED.fullmatch(said):
        return Event(
            "fired",
            text,
            int(found["dp"]),
            printable(found["rid"]),
            float(found["age"]),
            found["state"],
            room=printable(found["room"]),
        )
    if found := _BATCH.match(said):
        return Event("batch", text, count=int(found["count"]))
    if found := _FAILED.match(said):
        return Event("transfer failed", text, rid=printable(found["rid"]))
    return None
