"""Memory, shared memory, processes, limits, disks and clocks beyond one broken box a check."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from dsv4ctl.doctor.looks.disks import disks_question
from dsv4ctl.doctor.looks.leftovers import parse_leftovers
from dsv4ctl.findings import Severity
from tests.boxes import GIB_IN_KB, UNIT, Recorded, healthy
from tests.patients import TWO_HOSTS, of, patient, severities


def test_a_node_must_have_memory_for_its_worker_and_one_that_runs_has_it(tmp_path: Path) -> None:
    box = healthy(tmp_path)
    # 67 GiB could be had: 1 free, 64 in the page cache, 2 in slabs. Five processes of 4 GiB, and a pool for each rank.
    box.node(0, free_gib=1)
    assert of(box, "NODE_MEMORY_LOW", "prefill.args.hicache-size=10") == []
    (found,) = of(box, "NODE_MEMORY_LOW", "prefill.args.hicache-size=20")
    assert "NUMA node 0 could give 67.0 GiB, and prefill-0, bound to it, need about 94.5 GiB" in found.message
    box.process(800, "python3", unit=f"{UNIT}prefill-0")
    assert of(box, "NODE_MEMORY_LOW", "prefill.args.hicache-size=20") == []


def test_a_worker_bound_to_a_node_that_is_not_there(tmp_path: Path) -> None:
    box = healthy(tmp_path)
    assert severities(of(box, "NODE_MEMORY_LOW", "decode.workers[0].numa_node=3")) == [Severity.UNKNOWN]


def test_huge_pages_in_use_keep_nothing_from_anybody(tmp_path: Path) -> None:
    box = healthy(tmp_path)
    box.node(0, huge_gib=200)
    box.write("sys/devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages", "512\n")
    box.node(1, huge_gib=50)
    assert of(box, "HUGEPAGES_RESERVED") == []
    box.write("sys/devices/system/node/node1/hugepages/hugepages-1048576kB/nr_hugepages", "8\n")
    box.write("sys/devices/system/node/node1/hugepages/hugepages-1048576kB/free_hugepages", "8\n")
    (found,) = of(box, "HUGEPAGES_RESERVED")
    assert "NUMA node 1 has 58.0 of its 512.0 GiB set aside" in found.message


def _used(box: Recorded, path: str, pid: int) -> None:
    box.process(pid, "python3")
    box.link(f"proc/{pid}/fd/5", path)


def test_leftovers_are_counted_and_nothing_that_somebody_uses(tmp_path: Path) -> None:
    box = healthy(tmp_path)
    for name in ("psm_0011aabb", "sgl_shm_mq_5_0a1b2c3d", "nccl-AbCdEf", "sem.mp-x1", "sem.loky-1-2", "torch_9_1_0"):
        box.shared_memory(name, 1 << 20)
    box.shared_memory("vllm_offload_3.mmap", 5 << 20)
    box.shared_memory("pulse-shm-1234", 1 << 20)
    box.shared_memory("psm_just_made", 1 << 20, age_s=5)
    _used(box, "/dev/shm/psm_0011aabb", 800)
    _used(box, "/dev/shm/nccl-AbCdEf (deleted)", 801)
    box.process(802, "python3")
    box.write("proc/802/maps", "7f00-7f01 rw-s 00000000 00:1a 7 /dev/shm/torch_9_1_0\n")
    (found,) = of(box, "SHM_LEFTOVERS")
    assert "nobody uses 4 files of engines in /dev/shm, of 8.0 MiB together: vllm_offload_3.mmap, " in found.message
    assert found.evidence["files"] == 4


def test_leftovers_are_unknown_where_their_users_may_be_hidden(tmp_path: Path) -> None:
    box = healthy(tmp_path)
    box.shared_memory("psm_0011aabb", 10)
    box.link("proc/self/ns/pid", "pid:[4026532999]")
    (found,) = of(box, "SHM_LEFTOVERS")
    assert found.severity is Severity.UNKNOWN
    box.shared_memory("psm_0011aabb", 10, age_s=5)
    assert of(box, "SHM_LEFTOVERS") == []


@pytest.mark.parametrize(
    ("owner", "mode", "expected"),
    [("own", "600", Severity.WARNING), ("own", "644", Severity.UNKNOWN), ("4242", "600", Severity.UNKNOWN)],
)
def test_a_private_file_of_our_own_can_have_no_user_that_we_may_not_see(
    owner: str, mode: str, expected: Severity, tmp_path: Path
) -> None:
    uid = str(os.getuid())
    name = owner.replace("own", uid)
    (file,) = parse_leftovers(f"{uid} yes\00070 {name} {mode} psm_1\0--\0--\0")
    assert (Severity.WARNING if file.certain else Severity.UNKNOWN) is expected


def test_a_port_of_the_stack_itself_is_not_taken(tmp_path: Path) -> None:
    box = healthy(tmp_path)
    box.process(800, "python3", unit=f"{UNIT}prefill-0")
    box.listens(800, 30100)
    assert of(box, "PORT_TAKEN") == []
    # Another unit of ours on it is a mistake all the same.
    box.process(900, "python3", unit="dsv4-other-decode-0")
    box.listens(900, 30200)
    box.listens(4242, 8998)
    found = of(box, "PORT_TAKEN")
    assert [finding.evidence["port"] for finding in found] == [8998, 30200]
    assert "dsv4-other-decode-0" in found[1].remedy


def test_a_holder_that_we_may_not_look_at_is_said_to_be_one(tmp_path: Path) -> None:
    box = healthy(tmp_path)
    box.process(800, "nginx")
    box.listens(800, 30000)
    (box.root / "proc/800/fd/7").unlink()
    (found,) = of(box, "PORT_TAKEN")
    assert "a process that we may not look at" in found.message


@pytest.mark.parametrize(
    ("soft", "hard", "expected"),
    [(1024, 1048576, 0), (20000, 20000, 0), (1024, 65535, 0), (1024, 4096, 1), (4096, 4096, 1), (8192, 9000, 0)],
)
def test_open_files_are_counted_as_sglang_will_have_them(soft: int, hard: int, expected: int, tmp_path: Path) -> None:
    box = healthy(tmp_path)
    box.write(
        "proc/self/limits",
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        f"Max open files            {soft:<20} {hard:<20} files     \n"
        f"Max locked memory         {'unlimited':<20} {'unlimited':<20} bytes     \n",
    )
    found = of(box, "OPEN_FILES_LOW", 'supervisor="process"')
    assert len(found) == expected
    assert all("the limits of the user" in finding.message for finding in found)


def test_locked_memory_is_of_interest_where_ucx_may_use_rdma(tmp_path: Path) -> None:
    box = healthy(tmp_path)
    box.limits(locked=8388608)
    assert of(box, "LOCKED_MEMORY_LOW") == []
    box.write("sys/class/infiniband/mlx5_0/node_type", "1: CA\n")
    assert len(of(box, "LOCKED_MEMORY_LOW", "UCX_TLS=rc,cuda")) == 1
    assert of(box, "LOCKED_MEMORY_LOW", "UCX_TLS=tcp,cuda") == []
    assert of(box, "LOCKED_MEMORY_LOW", "UCX_NET_DEVICES=lo") == []
    assert len(of(box, "LOCKED_MEMORY_LOW", "UCX_NET_DEVICES=eth0,mlx5_0:1")) == 1


def test_limits_that_nobody_tells_are_unknown(tmp_path: Path) -> None:
    box = healthy(tmp_path)
    box.program("systemctl", 'echo "Failed to connect to bus: No medium found" >&2; exit 1')
    (found,) = of(box, "OPEN_FILES_LOW")
    assert found.severity is Severity.UNKNOWN
    assert "Failed to connect to bus" in found.message


@pytest.mark.parametrize(
    ("timedatectl", "chronyc", "expected"),
    [
        ("echo yes", "exit 1", []),
        ("exit 1", "echo 'Leap status     : Normal'", []),
        ("exit 1", "echo 'Leap status     : Not synchronised'", [Severity.WARNING]),
        ("exit 1", "exit 1", [Severity.UNKNOWN]),
        ("echo maybe", "exit 1", [Severity.UNKNOWN]),
    ],
)
def test_the_clock_is_asked_of_whoever_keeps_it_where_there_are_two_hosts(
    timedatectl: str, chronyc: str, expected: list[Severity], tmp_path: Path
) -> None:
    box = healthy(tmp_path)
    box.program("timedatectl", timedatectl)
    box.program("chronyc", chronyc)
    assert severities(of(box, "CLOCK_NOT_SYNCHRONISED", own=TWO_HOSTS)) == expected
    assert of(box, "CLOCK_NOT_SYNCHRONISED") == []


def test_disks_by_what_they_are_for(tmp_path: Path) -> None:
    box = healthy(tmp_path)
    for path in ("home", "tmp", "models"):
        (box.root / path).mkdir()
    box.program(
        "df",
        'case "$2" in */models) echo "/dev/sdb 10 10 500000 99% /models" ;; '
        '*/home) echo "/dev/sdc 10 10 1000000 99% /home" ;; *) echo "/dev/sda 10 10 90000000 1% /" ;; esac',
    )
    box.program("findmnt", 'case "$4" in */models) echo ro,relatime ;; *) echo rw,relatime ;; esac')
    (cache,) = of(box, "DISK_LOW")
    assert cache.severity is Severity.WARNING
    assert (
        "/home has 976 MiB free, and 2048 MiB are wanted there for compiled kernels (/home/o/.cache)" in cache.message
    )
    # A model that lies on a read-only mount is not copied there, and need not be.
    assert of(box, "MOUNT_READ_ONLY") == []
    box.program("findmnt", "exit 1")
    assert severities(of(box, "MOUNT_READ_ONLY")) == [Severity.UNKNOWN]
    assert [finding.evidence["mount"] for finding in of(box, "DISK_LOW")] == ["/home", "/models"]


def test_a_state_directory_of_the_profile_is_looked_at(tmp_path: Path) -> None:
    (question,) = disks_question(patient(tmp_path, own=TWO_HOSTS))
    assert 'tell state "$state/dsv4ctl"' in question.script
    there = patient(tmp_path, own=TWO_HOSTS + '\n[hosts.local2]\nssh = "x"\nstate_dir = "~/it\'s"\n')
    (question,) = disks_question(replace(there, host="local2"))
    assert "tell state '~/it'\"'\"'s'" in question.script


@pytest.mark.parametrize(
    ("governor", "driver", "preference", "expected"),
    [
        ("performance", "acpi-cpufreq", "", 0),
        ("schedutil", "acpi-cpufreq", "", 1),
        ("powersave", "amd-pstate-epp", "performance", 0),
        ("powersave", "amd-pstate-epp", "balance_performance", 0),
        ("powersave", "amd-pstate-epp", "power", 1),
        ("powersave", "intel_pstate", "balance_power", 1),
        ("ondemand", "intel_cpufreq", "balance_performance", 1),
    ],
)
def test_powersave_is_not_the_same_with_every_driver(
    governor: str, driver: str, preference: str, expected: int, tmp_path: Path
) -> None:
    box = healthy(tmp_path)
    box.governor(7, governor, driver, preference)
    assert len(of(box, "CPU_GOVERNOR")) == expected


def test_numa_balancing_matters_with_two_nodes(tmp_path: Path) -> None:
    box = healthy(tmp_path)
    box.kernel(balancing=2)
    assert len(of(box, "NUMA_BALANCING_ON")) == 1
    box.write("sys/devices/system/node/node1/meminfo", "")
    assert of(box, "NUMA_BALANCING_ON") == []


def test_hmm_is_unknown_before_the_module_is_there(tmp_path: Path) -> None:
    box = healthy(tmp_path)
    parameter = box.root / "sys/module/nvidia_uvm/parameters/uvm_disable_hmm"
    parameter.unlink()
    assert of(box, "HMM_ON") == []
    parameter.parent.rmdir()
    parameter.parent.parent.rmdir()
    assert severities(of(box, "HMM_ON")) == [Severity.UNKNOWN]


def test_room_in_shared_memory_is_what_is_free_there(tmp_path: Path) -> None:
    box = healthy(tmp_path)
    box.disks(shm_kb=2 * GIB_IN_KB)
    assert of(box, "SHM_SMALL") == []
    box.program("df", "echo head; echo tmpfs 2097152 1900000 197152 91% /dev/shm")
    (found,) = of(box, "SHM_SMALL")
    assert "there are 192 MiB free in /dev/shm, of 2048 MiB" in found.message
