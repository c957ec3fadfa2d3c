"""The lines of a prefill worker's log that say something about its inflight queue."""

import re

from dsv4ctl.inflight.sample import Event
from dsv4ctl.printable import printable

# The watchdog's own line (serving/inflight/watchdog.py). A client chooses the id: it may hold anything but a newline.
_FIRED = re.compile(
    r"dsv4 inflight timeout rid=(?P<rid>.*?) room=\S+ state=(?P<state>\S+) age_s=(?P<age>[\d.]+) timeout_s=\S+ "
    r"rank=tp(?P<tp>\d+)/pp(?P<pp>\d+)/dp(?P<dp>\d+)"
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
    text = printable(_PREFIX.sub("", line)[:_LONGEST])
    if found := _FIRED.search(line):
        if found["tp"] != "0" or found["pp"] != "0":
            return None
        return Event("fired", text, int(found["dp"]), printable(found["rid"]), float(found["age"]), found["state"])
    if found := _BATCH.search(line):
        return Event("batch", text, count=int(found["count"]))
    if found := _FAILED.search(line):
        return Event("transfer failed", text, rid=printable(found["rid"]))
    return None
