"""`dsv4ctl doctor --deep`: which transfers are planned, and what is made of what they show."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dsv4ctl.doctor.deep.conduct import Limits, run_deep
from dsv4ctl.doctor.deep.judge import findings_of
from dsv4ctl.doctor.deep.plan import copies, pairings
from dsv4ctl.doctor.deep.report import (
    CopyReport,
    DeepReport,
    PairingReport,
    PairSpeed,
    Problem,
    Round,
    as_data,
    parse_copies,
    parse_endings,
    parse_source,
    rank_name,
)
from dsv4ctl.findings import Finding, Severity
from dsv4ctl.hosts.local import LocalHost
from dsv4ctl.profile.loading import load_profile
from dsv4ctl.stack import Site, Stack, Worker, build_stack
from tests.cards import EIGHT_CARDS

MB = 1 << 20
BOX = Site("/opt/engine/bin/python", "/var/lib/dsv4ctl", "/home/o", "/tmp/d", EIGHT_CARDS)


def stack_of(profile: str, *sets: str, python: str = "/opt/engine/bin/python") -> Stack:
    loaded = load_profile(profile, sets=sets, environ={}, cwd=Path("/"))
    return build_stack(loaded, {"local": replace(BOX, python=python)})


def changed(stack: Stack, role: str, **fields: Any) -> Stack:
    """The stack with one worker of a role otherwise."""

    def change(worker: Worker) -> Worker:
        return replace(worker, **fields) if worker.role == role else worker

    return replace(stack, workers=tuple(change(worker) for worker in stack.workers))


def test_every_prefill_worker_is_paired_with_every_decode_worker() -> None:
    names = [pairing.name for pairing in pairings(stack_of("cpu-2p2d"))]
    assert names == [f"prefill-{source} to decode-{destination}" for source in (0, 1) for destination in (0, 1)]
    assert pairings(stack_of("cpu-single")) == ()


def test_cards_that_nobody_has_found_are_not_tested() -> None:
    loaded = load_profile("rtx-pro-6000-8x", environ={}, cwd=Path("/"))
    stack = build_stack(loaded, {"local": replace(BOX, gpus=())})
    assert "4 nearest to node 0" in pairings(stack)[0].why_not
    assert copies(stack) == ()


def test_a_side_has_the_ranks_devices_binding_and_environment_of_its_worker() -> None:
    stack = stack_of("rtx-pro-6000-8x", "env.HF_TOKEN=hidden", "env.UCX_TLS=cuda_ipc,cuda_copy,tcp")
    (pairing,) = pairings(stack)
    assert (pairing.why_not, pairing.address, pairing.same_host) == ("", "127.0.0.1", True)
    decode = pairing.destination
    assert decode.devices == ("0", "1", "2", "3")
    assert decode.gpus == ("4", "5", "6", "7")
    assert decode.env["CUDA_VISIBLE_DEVICES"] == "4,5,6,7"
    assert decode.env["UCX_TLS"] == "cuda_ipc,cuda_copy,tcp"
    assert decode.env["SGLANG_DISAGGREGATION_NIXL_BACKEND"] == "UCX"
    assert decode.binding == ("numactl", "--cpunodebind=1", "--membind=1")
    assert decode.python == "/opt/engine/bin/python"
    assert not {"HF_TOKEN", "TMPDIR", "DSV4CTL_UNIT"} & decode.env.keys()
    assert rank_name(decode, 2) == "decode-0 rank 2 (GPU 6)"


def test_ranks_on_a_cpu_are_cpus() -> None:
    for profile in ("cpu-tp2", "cpu-pp2"):
        (pairing,) = pairings(stack_of(profile))
        assert pairing.source.devices == ("cpu", "cpu")
        assert rank_name(pairing.source, 1) == "prefill-0 rank 1"


def test_copies_are_made_between_all_gpus_that_the_workers_take() -> None:
    (plan,) = copies(stack_of("rtx-pro-6000-8x"))
    assert plan.gpus == tuple("01234567")
    assert plan.env["CUDA_VISIBLE_DEVICES"] == "0,1,2,3,4,5,6,7"
    assert copies(stack_of("cpu")) == ()


def test_what_this_test_cannot_speak_is_unknown_and_says_why() -> None:
    stack = stack_of("cpu-mooncake")
    (pairing,) = pairings(stack)
    assert pairing.why_not == "prefill-0 moves its KV with mooncake, and this test speaks NIXL"
    (finding,) = findings_of(run_deep(stack, {}))
    assert (finding.code, finding.severity) == ("TRANSFER_UNKNOWN", Severity.UNKNOWN)
    assert pairing.why_not in finding.message


def test_a_source_that_another_host_cannot_reach_is_not_tried() -> None:
    apart = changed(stack_of("cpu"), "decode", host="other")
    (pairing,) = pairings(apart)
    assert pairing.why_not == "prefill-0 listens on 127.0.0.1, which says not how other reaches it"
    (pairing,) = pairings(changed(apart, "prefill", listen="10.0.0.7"))
    assert (pairing.why_not, pairing.address, pairing.bootstrap_port) == ("", "10.0.0.7", 8998)


def test_nothing_is_done_beside_a_running_engine_without_being_asked() -> None:
    (finding,) = findings_of(run_deep(stack_of("cpu"), {}, running=("prefill-0 on local",)))
    assert (finding.code, finding.severity) == ("TRANSFER_UNKNOWN", Severity.UNKNOWN)
    assert "prefill-0 on local would be disturbed" in finding.message


def test_a_stack_without_pairs_has_nothing_to_test() -> None:
    (finding,) = findings_of(run_deep(stack_of("cpu-single"), {}))
    assert "has no prefill and decode workers" in finding.message


def test_an_interpreter_without_the_test_is_unknown_and_both_sides_say_why() -> None:
    (finding,) = findings_of(run_deep(stack_of("cpu", python="/no/such/python"), {"local": LocalHost()}))
    assert finding.code == "TRANSFER_UNKNOWN"
    assert "cannot start /no/such/python" in finding.message


(GPUS,) = pairings(stack_of("rtx-pro-6000-8x"))
(CPUS,) = pairings(stack_of("cpu"))
WELL = PairingReport(
    GPUS,
    "UCX",
    "1.5.1",
    "1.23.0",
    tuple(
        PairSpeed(source, destination, ("cuda_ipc/cuda",), 0.1, {4096: 0.1, 256 * MB: 50.0})
        for source in range(4)
        for destination in range(4)
    ),
    (Round(64 * MB, 16, 37.0), Round(64 * MB, 16, 120.0)),
)


def found_in(report: PairingReport) -> list[tuple[str, Severity]]:
    return [(finding.code, finding.severity) for finding in findings_of(DeepReport((report,)))]


def the_finding(report: PairingReport) -> Finding:
    (finding,) = findings_of(DeepReport((report,)))
    return finding


def test_a_box_that_is_well_has_nothing() -> None:
    assert found_in(WELL) == []
    assert (WELL.median_gb_per_s, WELL.together_gb_per_s) == (50.0, 120.0)
    json.dumps(as_data(DeepReport((WELL,))))


def with_lane(lane: tuple[str, ...] | None, report: PairingReport = WELL) -> PairingReport:
    return replace(report, pairs=(replace(report.pairs[0], lane=lane), *report.pairs[1:]))


def test_gpus_of_one_host_that_talk_by_tcp_are_told() -> None:
    finding = the_finding(with_lane(("tcp/lo",)))
    assert (finding.code, finding.severity) == ("TRANSFER_SLOW_LANE", Severity.WARNING)
    assert "1 of 16 pairs" in finding.message
    assert "prefill-0 rank 0 (GPU 0) to decode-0 rank 0 (GPU 4)" in finding.message
    assert finding.evidence["lane"] == "tcp/lo"


def test_tcp_is_right_between_hosts_and_on_a_cpu() -> None:
    apart = replace(GPUS, destination=replace(GPUS.destination, host="other"))
    for pairing in (apart, CPUS):
        assert found_in(with_lane(("tcp/eth0",), replace(WELL, pairing=pairing))) == []


def test_a_lane_that_is_not_known_is_not_well() -> None:
    assert found_in(with_lane(None)) == [("TRANSFER_UNKNOWN", Severity.UNKNOWN)]


@pytest.mark.parametrize(
    ("together", "codes"),
    [((2.7, 2.5), ["TRANSFER_COLLAPSE"]), ((24.9,), ["TRANSFER_COLLAPSE"]), ((25.1,), []), ((2.7, 37.0), [])],
)
def test_a_collapse_is_less_together_than_half_of_one_pair_alone(together: tuple[float, ...], codes: list[str]) -> None:
    report = replace(WELL, concurrent=tuple(Round(64 * MB, 16, speed) for speed in together))
    assert [code for code, _ in found_in(report)] == codes


def test_cores_that_are_shared_are_no_collapse() -> None:
    assert found_in(replace(WELL, pairing=CPUS, concurrent=(Round(64 * MB, 16, 1.0),))) == []


def test_small_writes_are_no_measure_of_a_collapse() -> None:
    assert found_in(replace(WELL, concurrent=(Round(4096, 16, 0.1),))) == []


def test_corruption_and_failure_are_errors_and_name_the_ranks() -> None:
    problems = (
        Problem("failed", "write 9 failed: no way", 1, 2),
        Problem("corrupt", "write 3 arrived wrong", 0, 3),
        Problem("corrupt", "write 4 arrived wrong", 0, 3),
    )
    corrupt, failed = findings_of(DeepReport((replace(WELL, problems=problems),)))
    assert (corrupt.code, corrupt.severity) == ("TRANSFER_CORRUPT", Severity.ERROR)
    assert "prefill-0 rank 0 (GPU 0) to decode-0 rank 3 (GPU 7): write 3 arrived wrong; and 1 more" in corrupt.message
    assert (failed.code, failed.severity) == ("TRANSFER_FAILED", Severity.ERROR)
    assert "prefill-0 rank 1 (GPU 1) to decode-0 rank 2 (GPU 6): write 9 failed: no way" in failed.message


def test_what_was_not_tested_is_unknown() -> None:
    report = replace(WELL, problems=(Problem("unknown", "GPU 3 has 10 MiB free"),), untested=("all pairs at once",))
    assert "GPU 3 has 10 MiB free" in the_finding(report).message
    assert the_finding(replace(WELL, untested=("all pairs at once",))).message.endswith("not tested: all pairs at once")


def source_text(**fields: Any) -> str:
    known: Mapping[str, Any] = {
        "schema_version": 1,
        **dict.fromkeys(("backend", "nixl", "ucx")),
        **{name: [] for name in ("pairs", "concurrent", "problems", "untested", "sources")},
    }
    return json.dumps({**known, **fields})


def test_how_a_lost_rank_ended_is_told_with_the_loss() -> None:
    rank = {"rank": 1, "pid": 7, "status": -9, "ending": "was ended by SIGKILL", "last_words": ["a", "b"]}
    rank["ucx_errors"] = []
    endings = parse_endings(json.dumps({"schema_version": 1, "ranks": [rank, {**rank, "rank": 0, "status": 0}]}))
    assert endings == {1: "it was ended by SIGKILL; the last it said is: b"}
    lost = {"kind": "failed", "what": "destination rank 1 is gone", "source": None, "destination": 1}
    (problem,) = parse_source(GPUS, source_text(problems=[lost]), endings).problems
    assert problem.what == "destination rank 1 is gone (it was ended by SIGKILL; the last it said is: b)"


def test_what_ucx_says_is_told_with_a_rank_that_cannot_begin() -> None:
    rank = {
        "rank": 0,
        "status": 0,
        "ending": "exited with status 0",
        "last_words": [],
        "ucx_errors": ["no usable", "x"],
    }
    problem = {"kind": "failed", "what": "no backend", "source": 0, "destination": None}
    report = parse_source(GPUS, source_text(problems=[problem], sources=[rank]), {})
    assert report.problems[0].what == "no backend (UCX says: no usable)"


def test_another_version_of_the_report_is_refused() -> None:
    with pytest.raises(ValueError, match="reads reports of version 1"):
        parse_source(GPUS, source_text(schema_version=2), {})


def test_copies_between_gpus_are_judged() -> None:
    (plan,) = copies(stack_of("rtx-pro-6000-8x"))
    well = {"source": 0, "destination": 7, "what": None, "gb_per_s": 54.0, "peer_access": True}
    wrong = {**well, "what": "8 words are wrong"}
    for copy, codes in ((well, []), (wrong, ["TRANSFER_CORRUPT"])):
        report = parse_copies(plan, json.dumps({"schema_version": 1, "copies": [copy]}))
        assert [finding.code for finding in findings_of(DeepReport(copies=(report,)))] == codes
    hung = CopyReport(plan, failure="it had not ended (copying from GPU 0 to GPU 1)", tried=True)
    assert [finding.code for finding in findings_of(DeepReport(copies=(hung,)))] == ["TRANSFER_FAILED"]
    absent = CopyReport(plan, failure="No module named 'torch'")
    assert [finding.code for finding in findings_of(DeepReport(copies=(absent,)))] == ["TRANSFER_UNKNOWN"]


@pytest.mark.parametrize(
    ("script", "failure", "tried"),
    [
        ("echo copying from GPU 0 to GPU 1 >&2; kill -ALRM $$", "copying from GPU 0 to GPU 1: no end within 9 s", True),
        ("echo copying from GPU 0 to GPU 1 >&2; echo Xid >&2; exit 1", "copying from GPU 0 to GPU 1: Xid", True),
        ("echo error: torch finds 0 GPUs here >&2; exit 2", "error: torch finds 0 GPUs here", False),
        ("exit 3", "it exited with status 3 and said nothing", False),
    ],
)
def test_copies_that_say_nothing_are_told_by_their_last_words(
    script: str, failure: str, tried: bool, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\ncat >/dev/null\n{script}\n")
    python.chmod(0o755)
    stack = stack_of("rtx-pro-6000-8x", python=str(python))
    decode = next(worker for worker in stack.workers if worker.role == "decode")
    alone = replace(stack, workers=(decode,))
    report = run_deep(alone, {"local": LocalHost()}, limits=Limits(copies_within_s=9.0))
    assert [(one.failure, one.tried) for one in report.copies] == [(failure, tried)]
