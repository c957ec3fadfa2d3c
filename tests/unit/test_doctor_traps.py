"""Traps in what the planned workers are given: they are seen without any host."""

from pathlib import Path

import pytest

from tests.boxes import UNIT, healthy
from tests.patients import CHECKS, EIGHT_CARDS, ONE_WORKER, TWO_HOSTS, of, patient


def found(code: str, root: Path, *sets: str, profile: str = "", own: str = EIGHT_CARDS) -> list[str]:
    """The workers that a check names, nothing asked of a host."""
    (check,) = (check for check in CHECKS if check.code == code)
    plan = patient(root, sets, own, profile)
    assert check.asked_of(plan) == ()
    return [str(finding.evidence["worker"]) for finding in check.examine(plan)]


BOTH = ["prefill-0", "decode-0"]
MOONCAKE = [f"{role}.args.disaggregation-transfer-backend=mooncake" for role in ("prefill", "decode")]


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        (["PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"], BOTH),
        (["PYTORCH_ALLOC_CONF=expandable_segments:true,max_split_size_mb:64"], BOTH),
        (["decode.PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"], ["decode-0"]),
        (["PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False"], []),
        (["PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "UCX_TLS=tcp,cuda_copy"], []),
        (["PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "UCX_TLS=^cuda_ipc"], []),
        (["PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "UCX_TLS=^tcp"], BOTH),
        (["PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", *MOONCAKE], []),
        (["PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "SGLANG_DISAGGREGATION_NIXL_BACKEND=LIBFABRIC"], []),
    ],
)
def test_expandable_segments(sets: list[str], expected: list[str], tmp_path: Path) -> None:
    assert found("EXPANDABLE_SEGMENTS", tmp_path, *sets) == expected


@pytest.mark.parametrize(
    ("tls", "unhandled", "without"),
    [
        ("cuda_copy,cuda_ipc,sm,self", True, False),
        ("CUDA, shm", True, False),
        ("self,sm", True, True),
        ("tcp,cuda_copy,cuda_ipc", False, False),
        ("rc,cuda", False, False),
        ("all", False, False),
        ("tcp", False, True),
        ("tcp,cuda_copy", False, True),
        ("^cuda", False, True),
        ("^tcp", False, False),
        ("\\tcp,\\cuda_copy,\\cuda_ipc:x", False, False),
        ("", False, False),
    ],
)
def test_lists_of_transports(tls: str, unhandled: bool, without: bool, tmp_path: Path) -> None:
    assert bool(found("UCX_TLS_NO_FAILURE_HANDLING", tmp_path, f"UCX_TLS={tls}")) is unhandled
    assert bool(found("UCX_TLS_WITHOUT_CUDA", tmp_path, f"UCX_TLS={tls}")) is without


def test_across_hosts_gpu_memory_is_not_shared(tmp_path: Path) -> None:
    expandable = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    assert found("EXPANDABLE_SEGMENTS", tmp_path, expandable, own=TWO_HOSTS) == []
    assert found("UCX_TLS_WITHOUT_CUDA", tmp_path, "UCX_TLS=rc,cuda_copy", own=TWO_HOSTS) == []
    assert found("UCX_TLS_WITHOUT_CUDA", tmp_path, "UCX_TLS=rc", own=TWO_HOSTS) == ["prefill-0"]


def test_transports_without_failure_handling_break_a_pair_on_cpus_too(tmp_path: Path) -> None:
    assert found("UCX_TLS_NO_FAILURE_HANDLING", tmp_path, profile="cpu") == []
    assert found("UCX_TLS_NO_FAILURE_HANDLING", tmp_path, "UCX_TLS=sm,self", profile="cpu") == BOTH
    assert found("UCX_TLS_WITHOUT_CUDA", tmp_path, "UCX_TLS=sm,self", profile="cpu") == []


def test_an_empty_graph_file_breaks_what_has_several_ranks(tmp_path: Path) -> None:
    assert found("NCCL_GRAPH_FILE_EMPTY", tmp_path, "NCCL_GRAPH_FILE=") == BOTH
    assert found("NCCL_GRAPH_FILE_EMPTY", tmp_path, "NCCL_GRAPH_FILE=/etc/graph.xml") == []
    assert found("NCCL_GRAPH_FILE_EMPTY", tmp_path, "NCCL_GRAPH_FILE=", "args.tp-size=1") == []
    assert found("NCCL_GRAPH_FILE_EMPTY", tmp_path, "NCCL_GRAPH_FILE=", profile="cpu-tp2") == []
    assert found("NCCL_GRAPH_FILE_EMPTY", tmp_path, "NCCL_GRAPH_FILE=", own=ONE_WORKER) == ["unified-0"]


def test_another_ucx_in_the_library_path(tmp_path: Path) -> None:
    box = healthy(tmp_path)
    (box.root / "opt/plain/lib").mkdir(parents=True)
    box.write("opt/hpcx ucx/lib/libucp.so.0", "")
    sets = ["decode.LD_LIBRARY_PATH=/opt/plain/lib:/opt/hpcx ucx/lib:relative::/nowhere"]
    (one,) = of(box, "UCX_MIXED", *sets)
    assert (
        "LD_LIBRARY_PATH of decode-0 leads to another UCX than the one in NIXL's wheel: /opt/hpcx ucx/lib"
        in one.message
    )
    (one,) = of(box, "UCX_MIXED", "prefill.LD_PRELOAD=/usr/lib/libtcmalloc.so.4:/usr/lib/libucs.so.0")
    assert "LD_PRELOAD of prefill-0" in one.message
    assert of(box, "UCX_MIXED", "LD_LIBRARY_PATH=/opt/plain/lib") == []


def test_one_build_of_ucx_mapped_many_times_is_one(tmp_path: Path) -> None:
    box = healthy(tmp_path)
    box.process(800, "python3", unit=f"{UNIT}decode-0")
    libraries = ("libucp-b39b3ed9.so.0.0.0", "libuct-1141f529.so.0.0.0", "ucx/libuct_cuda.so.0.0.0")
    lines = [f"7f{at}0-7f{at}1 r-xp 0 103:01 7 /e/nixl_cu12.libs/{name}\n" for at, name in enumerate(libraries * 2)]
    box.write("proc/800/maps", "".join(lines))
    assert of(box, "UCX_MIXED") == []


def test_namespaces_of_what_does_not_belong_to_the_pair(tmp_path: Path) -> None:
    box = healthy(tmp_path)
    box.process(800, "python3", unit=f"{UNIT}prefill-0")
    box.process(801, "python3", unit=f"{UNIT}router", namespace=4026533000)
    box.process(802, "python3", unit="dsv4-other-decode-0", namespace=4026533000)
    assert of(box, "PID_NAMESPACES_DIFFER") == []
    box.process(803, "python3", unit=f"{UNIT}decode-0", namespace=4026533000)
    assert len(of(box, "PID_NAMESPACES_DIFFER")) == 1
    assert of(box, "PID_NAMESPACES_DIFFER", "UCX_TLS=tcp,cuda_copy") == []
