"""The lines of a prefill worker's log that say something about its inflight queue."""

import re

from dsv4ctl.inflight.sample import Event
from dsv4ctl.printable import printable

# The watchdog's own line (serving/inflight/watchdog.py), and the whole of it: SGLang can be told to log prompts, which
# may quote one. A client chooses the id as well, which may hold anything but a newline: the last fields are ours.
_FIRED = re.compile(
    r"dsv4 inflight timeout rid=(?P<rid>.*) room=\S+ state=(?P<state>\S+) age_s=(?P<age>\d+\.\d+) timeout_s=\S+ "
    r"rank=tp(?P<tp>\d+)/pp(?P<pp>\d+)/dp(?P<dp>\d+)\s*"
)
# SGLang 0.5.23: scheduler_components/metrics_reporter.py and disaggregation/prefill.py.
_BATCH = re.compile(r"Prefill batch\b.*#inflight-req: (?P<count>\d+)")
_FAILED = re.compile(r"Prefill transfer failed for request rank=\d+ req\.rid='(?P<rid>.*?)' req\.bootstrap_room=")
_PREFIX = re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^\]]*\]\s*")
_LONGEST = 240


def event_of(line: str) -> Event | None:
    """What a line says; None where it says nothing of the queue.

    The other ranks of the same requests print the watchdog's line as well: only that of the first counts.
    """
    said = _PREFIX.sub("", line)
    text = printable(said[:_LONGEST])
    if found := _FIRED.fullmatch(said):
        if found["tp"] != "0" or found["pp"] != "0":
            return None
        return Event("fired", text, int(found["dp"]), printable(found["rid"]), float(found["age"]), found["state"])
    if found := _BATCH.match(said):
        return Event("batch", text, count=int(found["count"]))
    if found := _FAILED.match(said):
        return Event("transfer failed", text, rid=printable(found["rid"]))
    return None
