"""What of a watch is wrong, under stable codes."""

from dsv4ctl.findings import Finding, Severity
from dsv4ctl.inflight.report import Report


def findings_of(report: Report) -> tuple[Finding, ...]:
    """One finding for each pin, for each fire of the watchdog, and for each queue that could not be seen."""
    found: list[Finding] = []
    for pin in report.pins:
        which = f"request {pin.named}" if pin.request else f"{pin.requests} or more requests"
        was, are = ("were", "are") if pin.requests > 1 and not pin.request else ("was", "is")
        still = f"and {are} gone since" if pin.ended else "and not seen since" if pin.unseen else f"and still {are}"
        message = f"{pin.queue}: {which} {was} inflight for at least {pin.oldest_s:.1f} s {still}"
        remedy = "`dsv4ctl logs` of its decode; the watchdog ends it at its timeout, where it is on"
        request = {"request": pin.request, "rid": pin.rid}
        evidence = {"queue": pin.queue, **request, "oldest_s": pin.oldest_s, "basis": pin.basis}
        found.append(Finding("PREFILL_PINNED", Severity.ERROR, message, remedy, evidence))
    for fire in report.fires:
        after = f" after {fire.age_s:.1f} s" if fire.age_s is not None else ""
        more = f" and {fire.requests - 1} more" if fire.requests > 1 else ""
        message = f"{fire.queue}: the watchdog ended request {fire.request or 'unknown'}{more}{after}"
        remedy = "its client has an error; what held its transfer up stands in the logs of decode at that time"
        evidence = {"queue": fire.queue, "request": fire.request, "age_s": fire.age_s}
        found.append(Finding("PREFILL_FIRED", Severity.ERROR, message, remedy, evidence))
    for queue in report.blind:
        if queue.answers:
            remedy = "its scheduler stands still, or computes for very long: `dsv4ctl logs` of that worker"
            found.append(Finding("SOURCE_STALE", Severity.UNKNOWN, f"{queue.queue}: {queue.why}", remedy, {}))
        else:
            remedy = "`dsv4ctl status` says whether it runs"
            found.append(Finding("SOURCE_UNREACHABLE", Severity.UNKNOWN, f"{queue.queue}: {queue.why}", remedy, {}))
    return tuple(found)
