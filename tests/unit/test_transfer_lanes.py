"""Which way UCX took, by its own log: one that was recorded with UCX 1.23.0, and tables of that form."""

from pathlib import Path

from serving.transfer_test.lanes import complaints, lanes, read

RECORDED = Path(__file__).parents[1] / "data/ucx/two-ways.log"
MET_FIRST, MET_SECOND = (1796048496.6, 1796048497.0), (1796048497.4, 1796048498.0)
BULK = 256 << 20


def table(configuration: str, *rows: tuple[int, str, str], operation: str = "remote memory write by ucp_put*") -> str:
    lines = [f"| source-0-1 {configuration} |", f"| {operation}(multi) from cuda memory to cuda |"]
    lines += ["| Count | Range | Description | Config |"]
    lines += [f"| {count} | {range_} | zero-copy | {config} |" for count, range_, config in rows]
    return "".join(f"[10.500000] [box:1:0]   {line}\n" for line in lines)


def new(moment: float, configuration: str) -> str:
    return f"[{moment:.6f}] [box:1:0]  ucp_worker.c:1997 UCX  INFO    source-0-1 {configuration} rma_am(tcp/lo)\n"


def test_two_destinations_that_were_reached_in_different_ways() -> None:
    told = read(RECORDED.read_text())
    assert told.version == "1.23.0"
    assert lanes(told, {0: MET_FIRST, 1: MET_SECOND}, BULK) == {0: ("tcp/lo", "tcp/eth0"), 1: ("cma/memory",)}


def test_a_destination_like_an_earlier_one_has_its_way() -> None:
    told = read(new(1.0, "intra-node cfg#1") + table("intra-node cfg#1", (3, "0..inf", "cuda_ipc/cuda")))
    assert lanes(told, {0: (0.5, 2.0), 1: (3.0, 4.0)}, BULK) == {0: ("cuda_ipc/cuda",), 1: ("cuda_ipc/cuda",)}


def test_what_could_be_either_of_two_is_unknown() -> None:
    log = new(1.0, "intra-node cfg#1") + new(3.0, "intra-node cfg#2")
    log += table("intra-node cfg#1", (3, "0..inf", "cuda_ipc/cuda"))
    log += table("intra-node cfg#2", (3, "0..inf", "tcp/lo"))
    windows = {0: (0.5, 2.0), 1: (2.5, 4.0), 2: (5.0, 6.0)}
    assert lanes(read(log), windows, BULK) == {0: ("cuda_ipc/cuda",), 1: ("tcp/lo",), 2: None}


def test_the_row_of_the_size_counts_and_only_if_it_was_used() -> None:
    log = new(1.0, "inter-node cfg#1")
    rows = ((5, "0..8K", "tcp/eth0"), (5, "8193..16M", "rc_mlx5/mlx5_0:1"), (0, "16777217..inf", "tcp/eth1"))
    log += table("inter-node cfg#1", *rows)
    windows = {0: (0.5, 2.0)}
    assert lanes(read(log), windows, 4 << 10) == {0: ("tcp/eth0",)}
    assert lanes(read(log), windows, 1 << 20) == {0: ("rc_mlx5/mlx5_0:1",)}
    assert lanes(read(log), windows, BULK) == {0: None}


def test_other_operations_are_none_of_ours() -> None:
    log = new(1.0, "intra-node cfg#1")
    log += table("intra-node cfg#1", (9, "0..inf", "tcp/lo"), operation="active message by ucp_am_send*")
    assert lanes(read(log), {0: (0.5, 2.0)}, BULK) == {0: None}


def test_what_ucx_calls_an_error_is_kept_once() -> None:
    line = "[1.000000] [box:1:0]  ucp_context.c:1770 UCX  ERROR no usable transports/devices (asked cuda_ipc)\n"
    warning = "[1.000000] [box:1:0]  ucp_context.c:1508 UCX  WARN  transport 'x' is not available\n"
    assert complaints(line + warning + line) == ["no usable transports/devices (asked cuda_ipc)"]


def test_a_log_that_says_nothing_leaves_it_unknown() -> None:
    assert lanes(read("no such thing\n"), {0: MET_FIRST}, BULK) == {0: None}
