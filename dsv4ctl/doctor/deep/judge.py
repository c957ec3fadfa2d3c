"""What is wrong with the transfers of a stack, as findings. Pure."""

from collections.abc import Iterator, Sequence

from dsv4ctl.doctor.deep.plan import Pairing
from dsv4ctl.doctor.deep.report import CopyReport, DeepReport, PairingReport, Problem, rank_name
from dsv4ctl.findings import Evidence, Finding, Severity

COLLAPSED_BELOW = 0.5
"""All pairs at once move less than this part of what one pair moves alone.

Pairs that share a link or a socket's interconnect move together at least what one of them moves alone: the shared part
is busy either way. Half of it leaves room for noise and for cores that are shared; the collapse that has been described
(37 to 2.7 GB/s, posted writes through PCIe switches) is seven times below that. It is judged where a GPU is on one side
at least: between CPUs the ranks share cores, and more of them at once may well be slower.
"""

JUDGED_FROM_BYTES = 1 << 20
"""Below that a round is made of posting writes, and says nothing of the links."""

_TCP = "tcp"
_SHOWN = 3


def findings_of(report: DeepReport) -> tuple[Finding, ...]:
    """All findings, errors first."""
    found = [finding for pairing in report.pairings for finding in _of_pairing(pairing)]
    found += [finding for copies in report.copies for finding in _of_copies(copies)]
    if report.why_nothing:
        found.append(_unknown(f"no transfer was tested: {report.why_nothing}", "stop them first, or ask for it", {}))
    return tuple(sorted(found, key=lambda finding: list(Severity).index(finding.severity)))


def _of_pairing(report: PairingReport) -> Iterator[Finding]:
    name = report.pairing.name
    if report.pairing.why_not:
        remedy = "nothing, if that is as it should be; the transfers of this pair were not looked at"
        yield _unknown(f"{name}: {report.pairing.why_not}", remedy, _evidence(report.pairing))
        return
    corrupt = [problem for problem in report.problems if problem.kind == "corrupt"]
    failed = [problem for problem in report.problems if problem.kind == "failed"]
    unknown = [problem for problem in report.problems if problem.kind == "unknown"]
    if corrupt:
        yield Finding(
            "TRANSFER_CORRUPT",
            Severity.ERROR,
            f"{name}: what was written is not what arrived: {_several(report.pairing, corrupt)}",
            "serve nothing on this box with these transports: look at IOMMU and ACS (`dsv4ctl doctor`), then try other "
            "UCX_TLS",
            {**_evidence(report.pairing), "problems": len(corrupt), "first": corrupt[0].what},
        )
    if failed:
        yield Finding(
            "TRANSFER_FAILED",
            Severity.ERROR,
            f"{name}: {_several(report.pairing, failed)}",
            "look at UCX_TLS and UCX_NET_DEVICES of both workers, and at the kernel's log for Xid and AER lines",
            {**_evidence(report.pairing), "problems": len(failed), "first": failed[0].what},
        )
    if unknown or report.untested:
        missing = [problem.what for problem in unknown]
        missing += [f"not tested: {what}" for what in report.untested] if not (failed or unknown) else []
        if missing:
            remedy = "remove what is in the way, and look again"
            yield _unknown(f"{name}: {'; '.join(missing[:_SHOWN])}", remedy, _evidence(report.pairing))
    yield from _of_lanes(report)
    yield from _of_collapse(report)


def _of_lanes(report: PairingReport) -> Iterator[Finding]:
    pairing = report.pairing
    if not (pairing.same_host and pairing.source.on_gpus and pairing.destination.on_gpus):
        return
    slow = [pair for pair in report.pairs if pair.lane is not None and any(_is_tcp(way) for way in pair.lane)]
    hidden = [pair for pair in report.pairs if pair.lane is None]
    if slow:
        first = slow[0]
        ways = ", ".join(first.lane or ())
        yield Finding(
            "TRANSFER_SLOW_LANE",
            Severity.WARNING,
            f"{pairing.name}: {len(slow)} of {len(report.pairs)} pairs of GPUs on {pairing.source.host} exchange KV by "
            f"{ways} and not from GPU to GPU ({_named(pairing, first.source, first.destination)}, for one)",
            "take expandable_segments out of PYTORCH_CUDA_ALLOC_CONF, let UCX_TLS have cuda_ipc and cuda_copy, and let "
            "both workers share a PID namespace and see all GPUs",
            {**_evidence(pairing), "pairs": len(slow), "lane": ways, "gb_per_s": report.median_gb_per_s},
        )
    if hidden:
        yield _unknown(
            f"{pairing.name}: UCX did not say by which lane {len(hidden)} of {len(report.pairs)} pairs went",
            "judge by the speeds; a NIXL whose UCX knows UCX_PROTO_INFO=used says more",
            _evidence(pairing),
        )


def _is_tcp(way: str) -> bool:
    return way.partition("/")[0] == _TCP


def _of_collapse(report: PairingReport) -> Iterator[Finding]:
    alone, together = report.median_gb_per_s, report.together_gb_per_s
    if alone is None or together is None or report.concurrent[0].size_bytes < JUDGED_FROM_BYTES:
        return
    if not (report.pairing.source.on_gpus or report.pairing.destination.on_gpus):
        return
    if together < COLLAPSED_BELOW * alone:
        yield Finding(
            "TRANSFER_COLLAPSE",
            Severity.WARNING,
            f"{report.pairing.name}: {report.concurrent[0].writes} writes at once move {together:.2f} GB/s together, "
            f"and one pair alone moves {alone:.2f}",
            "put prefill and decode where their writes cross fewer PCIe switches and root complexes, and see whether "
            "fewer ranks at once do better",
            {**_evidence(report.pairing), "together_gb_per_s": together, "alone_gb_per_s": alone},
        )


def _of_copies(report: CopyReport) -> Iterator[Finding]:
    host = report.plan.host
    wrong = [copy for copy in report.copies if copy.what is not None]
    if wrong:
        first = wrong[0]
        yield Finding(
            "TRANSFER_CORRUPT",
            Severity.ERROR,
            f"{host}: {len(wrong)} of {len(report.copies)} plain copies between GPUs arrive wrong: from GPU "
            f"{first.source} to GPU {first.destination}, {first.what}",
            "look at IOMMU and ACS (`dsv4ctl doctor`); until then peer-to-peer must not be used (NCCL_P2P_DISABLE=1 "
            "and no custom all-reduce)",
            {"host": host, "source": first.source, "destination": first.destination, "copies": len(wrong)},
        )
    if report.failure and report.tried:
        remedy = "look at the kernel's log for Xid and AER lines; a GPU that hangs so may need a reset"
        message = f"{host}: a plain copy between GPUs failed: {report.failure}"
        yield Finding("TRANSFER_FAILED", Severity.ERROR, message, remedy, {"host": host, "first": report.failure})
    elif report.failure:
        remedy = "remove what is in the way, and look again"
        yield _unknown(f"{host}: no plain copy between GPUs was tried: {report.failure}", remedy, {"host": host})


def _unknown(message: str, remedy: str, evidence: dict[str, Evidence]) -> Finding:
    return Finding("TRANSFER_UNKNOWN", Severity.UNKNOWN, message, remedy, evidence)


def _evidence(pairing: Pairing) -> dict[str, Evidence]:
    return {
        "source": pairing.source.worker,
        "source_host": pairing.source.host,
        "destination": pairing.destination.worker,
        "destination_host": pairing.destination.host,
    }


def _several(pairing: Pairing, problems: Sequence[Problem]) -> str:
    """The first problem, whose ranks are named as the profile has them, and how many more there are."""
    first = problems[0]
    about = _named(pairing, first.source, first.destination)
    more = f"; and {len(problems) - 1} more" if len(problems) > 1 else ""
    return f"{about + ': ' if about else ''}{first.what}{more}"


def _named(pairing: Pairing, source: int | None, destination: int | None) -> str:
    names = []
    if source is not None:
        names.append(rank_name(pairing.source, source))
    if destination is not None:
        names.append(rank_name(pairing.destination, destination))
    return " to ".join(names)
