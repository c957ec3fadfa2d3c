"""GPUs and the PCI bus beyond one broken box a check: what is no fault, what cannot be known."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from dsv4ctl.doctor.check import examine
from dsv4ctl.findings import Finding, Severity
from tests.box_gpus import (
    BUS_IDS,
    DOWNSTREAM,
    GPU_NAME,
    UPSTREAM,
    Card,
    Port,
    config,
    nvidia_smi,
    switched,
    topology,
    uuid,
)
from tests.boxes import UNIT, Recorded, cards, healthy, look
from tests.patients import CHECKS, ONE_WORKER, TWO_HOSTS, findings_on, of, patient, severities, told


def test_an_idle_card_has_a_slow_link_on_purpose_and_a_busy_one_has_not(tmp_path: Path) -> None:
    box = healthy(tmp_path)
    box.nvidia_smi(nvidia_smi({1: Card(gen=1, pstate="P8"), 2: Card(gen=4, pstate="P0"), 3: Card(gen=5, pstate="P1")}))
    (found,) = of(box, "PCIE_LINK_SLOW")
    assert "GPU 2 (0000:21:00.0) is at work (P0) and its link runs as PCIe Gen4, of Gen5" in found.message


def test_the_ports_of_a_virtual_machine_say_nothing_of_the_slots(tmp_path: Path) -> None:
    box = healthy(tmp_path)
    box.bus(topology(slots={index: {"vendor": "0x1b36", "gen_max": 4} for index in range(8)}))
    assert of(box, "PCIE_LINK_SLOW") == []


def test_a_slot_with_fewer_lanes_than_its_card_is_named(tmp_path: Path) -> None:
    box = healthy(tmp_path)
    # The driver's own maximum is then that of card and slot together.
    gpus = nvidia_smi({4: Card(lanes=8)})
    gpus["gpus"] = gpus["gpus"].replace(" 8, 16, P8", " 8, 8, P8")
    box.nvidia_smi(gpus)
    box.bus(topology({4: {"lanes": 8}}, {4: {"lanes": 8, "lanes_max": 8}}))
    (found,) = of(box, "PCIE_LINK_NARROW")
    assert "GPU 4 (0000:81:00.0) has 8 PCIe lanes of 16, as the slot has 8" in found.message


def test_where_the_driver_is_silent_the_bus_is_looked_at_all_the_same(tmp_path: Path) -> None:
    box = healthy(tmp_path)
    box.program("nvidia-smi", "exit 9")
    box.bus(topology({5: {"lanes": 4, "iommu": "DMA"}, 6: {"config": config(0, aspm=3)}}, {2: {"gen_max": 4}}))
    known = [finding for finding in findings_on(box) if finding.severity is not Severity.UNKNOWN]
    assert {finding.code for finding in known} == {
        *("DRIVER_FAILS", "PCIE_LINK_NARROW", "PCIE_LINK_SLOW", "PCIE_POWER_SAVING", "IOMMU_TRANSLATES")
    }
    (narrow,) = (finding for finding in known if finding.code == "PCIE_LINK_NARROW")
    assert "the GPU 0000:91:00.0 has 4 PCIe lanes of 16" in narrow.message
    assert severities(of(box, "GPU_ON_OTHER_NODE")) == [Severity.UNKNOWN]


def test_a_profile_that_names_gpus_by_bus_id_is_understood_without_the_driver(tmp_path: Path) -> None:
    box = healthy(tmp_path)
    box.program("nvidia-smi", "exit 9")
    box.bus(topology({0: {"lanes": 4, "node": 1}, 7: {"lanes": 4}}))
    named = (
        "prefill.workers[0].gpus=['01:00.0', '11:00.0', '21:00.0', '31:00.0']",
        "decode.workers[0].gpus=['81:00.0']",
    )
    (narrow,) = of(box, "PCIE_LINK_NARROW", *named)
    assert "0000:01:00.0" in narrow.message
    (far,) = of(box, "GPU_ON_OTHER_NODE", *named)
    assert "the GPU 0000:01:00.0 of prefill-0 is on NUMA node 1, and the worker is bound to node 0" in far.message


def test_a_lost_gpu_moves_the_numbers_of_those_behind_it(tmp_path: Path) -> None:
    box = healthy(tmp_path)
    box.nvidia_smi(nvidia_smi({2: None}))
    (missing,) = of(box, "GPU_MISSING")
    assert "GPU 7 of decode-0 is not there: the driver shows 7, and 0000:21:00.0 on the PCI bus" in missing.message
    assert "moved up" in missing.message
    # What is number 3 now was number 4 before, on the other socket.
    assert "GPU 3 (0000:81:00.0) of prefill-0 is on NUMA node 1" in of(box, "GPU_ON_OTHER_NODE")[0].message


NEAREST = ("prefill.workers[0].gpus='4 nearest to node 0'", "decode.workers[0].gpus='4 nearest to node 1'")


def planned_findings(box: Recorded, *sets: str) -> list[Finding]:
    """What all checks say of a plan that is made with the GPUs of the box, as far as they can be seen."""
    plan = patient(box.root, sets, gpus=cards(box))
    return list(examine(CHECKS, look(box, CHECKS, plan)))


def test_cards_whose_node_nobody_knows_are_not_missing(tmp_path: Path) -> None:
    box = healthy(tmp_path)
    box.bus(topology({index: {"node": -1} for index in range(8)}))
    found = planned_findings(box, *NEAREST, "NCCL_P2P_LEVEL=PHB")
    assert {(finding.code, finding.severity) for finding in found} == {
        ("GPU_ON_OTHER_NODE", Severity.UNKNOWN),
        ("NCCL_P2P_OFF", Severity.UNKNOWN),
    }
    assert all("does not know on which NUMA node GPU 0 (0000:01:00.0) is" in finding.message for finding in found)
    assert all(finding.remedy == "name the cards by bus id in the profile" for finding in found)
    # Whether all cards are of one model can be told where they are.
    box.nvidia_smi(nvidia_smi({5: Card(name="NVIDIA GeForce RTX 5090")}))
    assert ("GPU_MODELS_DIFFER", Severity.UNKNOWN) in {
        (finding.code, finding.severity) for finding in planned_findings(box, *NEAREST)
    }


def test_too_few_cards_near_a_node_are_missing_and_not_one_of_that_number(tmp_path: Path) -> None:
    box = healthy(tmp_path)
    box.nvidia_smi(nvidia_smi({7: None}))
    missing = [finding for finding in planned_findings(box, *NEAREST) if finding.code == "GPU_MISSING"]
    assert [finding.message for finding in missing] == [
        "local: decode-0 asks for the 4 nearest to node 1, and not so many GPUs are left for it: the driver shows 7"
    ]


def test_a_driver_whose_module_is_not_shown_is_judged_by_nvidia_smi(tmp_path: Path) -> None:
    box = healthy(tmp_path)
    (box.root / "proc/driver/nvidia/version").unlink()
    assert of(box, "DRIVER_OLD") == []
    (closed,) = of(box, "DRIVER_CLOSED")
    assert closed.severity is Severity.UNKNOWN
    assert "modinfo" in closed.remedy
    box.nvidia_smi(nvidia_smi(driver="550.54.15"))
    (old,) = of(box, "DRIVER_OLD")
    assert (old.severity, old.evidence["driver"]) == (Severity.ERROR, "550.54.15")
    box.program("nvidia-smi", "exit 9")
    assert severities(of(box, "DRIVER_OLD")) == [Severity.UNKNOWN]


def test_a_link_of_which_nobody_tells_is_unknown_and_the_others_are_looked_at(tmp_path: Path) -> None:
    box = healthy(tmp_path)
    silent = {"current_link_width": "255", "max_link_width": "255"}
    silent |= {"current_link_speed": "Unknown", "max_link_speed": "Unknown"}
    said = nvidia_smi({6: Card(lanes=8)})
    said["gpus"] = said["gpus"].replace("12.0, 1, 5, 16, 16, P8", "12.0, [N/A], [N/A], [N/A], [N/A], P8", 1)
    box.nvidia_smi(said)
    box.bus(topology({0: {"more": silent}}, {5: {"gen_max": 4}}))
    narrow, unknown = of(box, "PCIE_LINK_NARROW")
    assert "GPU 6" in narrow.message
    assert (unknown.severity, "the lanes of GPU 0 (0000:01:00.0)" in unknown.message) == (Severity.UNKNOWN, True)
    slow, unknown = of(box, "PCIE_LINK_SLOW")
    assert "GPU 5" in slow.message
    assert "how fast the link of GPU 0 (0000:01:00.0) runs" in unknown.message


def test_a_card_without_a_bar1_section_is_unknown_and_the_others_are_looked_at(tmp_path: Path) -> None:
    box = healthy(tmp_path)
    said = nvidia_smi({6: Card(bar1_mib=256)})
    said["bar1"] = said["bar1"].replace("BAR1 Memory Usage", "", 1)
    box.nvidia_smi(said)
    small, unknown = of(box, "BAR1_SMALL")
    assert "GPU 6" in small.message
    assert unknown.message.endswith("nvidia-smi -q -d MEMORY tells no BAR1 of GPU 0 (0000:01:00.0)")


def test_what_is_no_list_of_gpus_is_no_answer_of_the_driver(tmp_path: Path) -> None:
    box = healthy(tmp_path)
    box.program("nvidia-smi", "head -c 3000 /dev/urandom")
    assert severities(of(box, "DRIVER_FAILS")) == [Severity.UNKNOWN]


def test_what_could_be_done_fits_why_nobody_knows(tmp_path: Path) -> None:
    box = healthy(tmp_path)
    box.program("systemctl", "echo 'Failed to connect to bus: No such file or directory' >&2; exit 1")
    (files,) = of(box, "OPEN_FILES_LOW")
    assert "enable-linger" in files.remedy
    (memory,) = of(box, "NODE_MEMORY_LOW", "prefill.workers[0].numa_node=3")
    assert "correct numa_node of prefill-0 in the profile: there is 0, 1" in memory.remedy
    (box.root / "bin/nvidia-smi").unlink()
    (driver,) = of(box, "GPU_MISSING")
    assert "install NVIDIA's driver" in driver.remedy
    box.prints("timedatectl", ["maybe"])
    (clock,) = of(box, "CLOCK_NOT_SYNCHRONISED", own=TWO_HOSTS)
    assert "docs/findings/CLOCK_NOT_SYNCHRONISED.md" in clock.remedy


def test_a_driver_that_finds_no_gpu_says_which_are_missing(tmp_path: Path) -> None:
    box = healthy(tmp_path)
    box.program("nvidia-smi", 'echo "No devices were found"')
    messages = [finding.message for finding in of(box, "GPU_MISSING")]
    assert [message.partition(" is not there")[0] for message in messages] == [
        "local: GPU 0, 1, 2, 3 of prefill-0",
        "local: GPU 4, 5, 6, 7 of decode-0",
    ]
    assert all("moved up" not in message for message in messages)


def test_a_worker_that_names_no_gpu_has_all_of_them(tmp_path: Path) -> None:
    box = healthy(tmp_path)
    assert told(findings_on(box, own=ONE_WORKER)) == []
    (few,) = of(box, "GPU_TOO_FEW", "args.pp-size=2", own=ONE_WORKER)
    assert "unified-0 is to run 16 ranks (tp-size times pp-size), and has 8 GPUs" in few.message
    assert of(box, "GPU_TOO_FEW", "args.pp-size=2", "args.nnodes=2", own=ONE_WORKER) == []


@pytest.mark.parametrize(
    ("iommu", "cmdline", "expected"),
    [
        (None, "quiet", []),
        ("identity", "quiet", []),
        ("DMA", "quiet iommu=pt", [Severity.WARNING]),
        ("", "quiet iommu=pt", []),
        ("", "quiet amd_iommu=on", [Severity.UNKNOWN]),
    ],
)
def test_an_iommu_is_judged_by_its_group_and_by_the_command_line_where_that_has_no_type(
    iommu: str | None, cmdline: str, expected: list[Severity], tmp_path: Path
) -> None:
    box = healthy(tmp_path)
    for path in (box.root / "sys/devices").rglob("iommu_group"):
        path.unlink()
    box.bus(topology({index: {"iommu": iommu} for index in range(8)}))
    box.kernel(cmdline=cmdline)
    assert severities(of(box, "IOMMU_TRANSLATES")) == expected


def test_acs_of_root_ports_and_of_a_lone_card_behind_a_switch_is_no_fault(tmp_path: Path) -> None:
    box = healthy(tmp_path)
    box.bus(switched(acs=0x01))
    assert of(box, "ACS_REDIRECTS") == []
    lone = topology()
    root, up, down = "0000:b0:01.1", "0000:f0:00.0", "0000:f1:00.0"
    lone[-1:] = [
        Port(up, (root,), kind=UPSTREAM, config=config(UPSTREAM)),
        Port(down, (root, up), kind=DOWNSTREAM, config=config(DOWNSTREAM, acs=0x1D)),
        Port("0000:b1:00.0", (root, up, down), device="0x2bb1", config=config(0)),
    ]
    box.bus(lone)
    assert of(box, "ACS_REDIRECTS") == []


def test_acs_that_only_root_may_see_is_unknown_where_it_matters(tmp_path: Path) -> None:
    box = healthy(tmp_path)
    box.bus([replace(port, config=config(port.kind, whole=False)) for port in switched(acs=0x1D)])
    (found,) = of(box, "ACS_REDIRECTS")
    assert found.severity is Severity.UNKNOWN
    assert "shown to root alone" in found.message


@pytest.mark.parametrize(
    ("link", "policy", "expected"),
    [
        ({"link/l1_aspm": "1", "link/l0s_aspm": "0"}, "[default] performance", [Severity.WARNING]),
        ({"link/l1_aspm": "0", "link/l0s_aspm": "0"}, "[default] performance", []),
        ({}, "[default] performance", [Severity.UNKNOWN]),
        ({}, "default [performance]", []),
        ({}, "default performance [powersave]", [Severity.WARNING]),
    ],
)
def test_a_link_may_sleep_as_the_kernel_tells_it_to_everybody(
    link: dict[str, str], policy: str, expected: list[Severity], tmp_path: Path
) -> None:
    box = healthy(tmp_path)
    awake = {"link/l1_aspm": "0"} if link else {}
    hidden = {"config": config(0, whole=False)}
    box.bus(topology({index: {**hidden, "more": awake if index else link} for index in range(8)}))
    box.kernel(aspm=policy)
    assert severities(of(box, "PCIE_POWER_SAVING")) == expected


def test_a_port_that_may_be_powered_down_with_its_card(tmp_path: Path) -> None:
    box = healthy(tmp_path)
    box.bus(topology({1: {"power": "auto"}}, {0: {"power": "auto"}, 1: {"power": "auto"}}))
    (found,) = of(box, "PCIE_POWER_SAVING")
    assert "GPU 1 (0000:11:00.0) and the port above it (0000:10:01.1) may be powered down" in found.message


def test_firmware_without_numa_nodes_leaves_it_unknown_and_one_node_is_always_right(tmp_path: Path) -> None:
    box = healthy(tmp_path)
    box.bus(topology({index: {"node": -1} for index in range(8)}))
    assert severities(of(box, "GPU_ON_OTHER_NODE")) == [Severity.UNKNOWN]
    shutil.rmtree(box.root / "sys/devices/system/node/node1")
    assert of(box, "GPU_ON_OTHER_NODE") == []


@pytest.mark.parametrize(
    ("path", "level", "expected"),
    [
        ("NODE", "PHB", []),
        ("NODE", "3", []),
        ("NODE", "2", ["PHB", "PHB"]),
        ("PIX", "1", []),
        ("PXB", "PIX", ["PXB", "PXB"]),
        ("NV4", "NVL", []),
        ("NODE", "LOC", ["PHB", "PHB"]),
        # NCCL knows names in capitals alone, and leaves out what it does not know.
        ("NODE", "nvl", []),
        ("NODE", "", []),
    ],
)
def test_the_level_of_p2p_is_read_as_nccl_reads_it(path: str, level: str, expected: list[str], tmp_path: Path) -> None:
    box = healthy(tmp_path)
    box.nvidia_smi(nvidia_smi(path=path))
    found = of(box, "NCCL_P2P_OFF", f"NCCL_P2P_LEVEL={level}")
    assert [finding.evidence["path"] for finding in found] == expected
    assert of(box, "NCCL_P2P_ACROSS_SOCKETS", f"NCCL_P2P_LEVEL={level}") == []


def test_orphans_are_told_with_what_they_hold(tmp_path: Path) -> None:
    box = healthy(tmp_path)
    box.process(800, "python3", unit=f"{UNIT}prefill-0")
    box.process(801, "sglang::schedul", ppid=800)
    box.process(900, "systemd")
    box.process(4711, "sglang::schedul", ppid=900)
    box.process(4712, "sglang::schedul", ppid=1)
    users = f"4711, {uuid(2)}, 60000\n4711, {uuid(3)}, [N/A]\n4712, {uuid(2)}, 500\n801, {uuid(1)}, 70000\n"
    box.nvidia_smi(nvidia_smi(users=users))
    (found,) = of(box, "ORPHAN_ENGINES")
    assert found.severity is Severity.ERROR
    assert found.evidence["pids"] == "4711, 4712"
    assert "60500 MiB of GPU 2 (0000:21:00.0)" in found.message
    assert found.remedy.endswith("kill 4711 4712")
    box.program("nvidia-smi", "exit 9")
    (found,) = of(box, "ORPHAN_ENGINES")
    assert found.severity is Severity.WARNING
    assert "nobody knows" in found.message


def test_who_else_holds_memory_of_the_gpus_is_told(tmp_path: Path) -> None:
    box = healthy(tmp_path)
    box.process(4712, "VLLM::EngineCor")
    box.process(4713, "python3", unit="dsv4-another-prefill-0")
    users = f"4712, {uuid(1)}, 50000\n4712, {uuid(3)}, 10123\n4713, {uuid(4)}, [N/A]\n9999, {uuid(6)}, 7\n"
    box.nvidia_smi(nvidia_smi(users=users))
    assert [finding.message for finding in of(box, "GPU_SHARED")] == [
        (
            "local: pid 4712 (VLLM::EngineCor), which is none of ours, holds 60123 MiB of GPU 1 (0000:11:00.0), "
            "GPU 3 (0000:31:00.0)"
        ),
        "local: pid 4713 (python3), which is none of ours, holds memory, nobody says how much, of GPU 4 (0000:81:00.0)",
        "local: pid 9999, which is none of ours, holds 7 MiB of GPU 6 (0000:a1:00.0)",
    ]
    # Whoever is on other cards does not matter.
    only_two = ("prefill.workers[0].gpus=[0]", "decode.workers[0].gpus=[6]", "args.tp-size=1")
    assert [finding.evidence["pid"] for finding in of(box, "GPU_SHARED", *only_two)] == [9999]


def test_our_own_engines_hold_their_memory_rightly_and_what_cannot_be_seen_is_unknown(tmp_path: Path) -> None:
    box = healthy(tmp_path)
    box.process(800, "python3", unit=f"{UNIT}prefill-0")
    box.process(801, "sglang::schedul", ppid=800, unit=f"{UNIT}prefill-0")
    box.nvidia_smi(nvidia_smi(users=f"801, {uuid(1)}, 70000\n"))
    assert of(box, "GPU_SHARED") == []
    box.nvidia_smi(nvidia_smi(users=f"801, {uuid(1)}, 70000\n9999, {uuid(2)}, 70000\n"))
    (found,) = of(box, "GPU_SHARED")
    assert found.severity is Severity.UNKNOWN
    assert "the driver names pid 9999, and there is no such process here" in found.message


def test_a_server_that_is_pid_1_of_its_container_has_its_schedulers(tmp_path: Path) -> None:
    box = healthy(tmp_path)
    box.process(1, "pt_main_thread", ppid=0)
    box.process(30, "sglang::schedul", ppid=1)
    assert of(box, "ORPHAN_ENGINES") == []


def test_other_cards_are_said_to_be_other_cards(tmp_path: Path) -> None:
    box = healthy(tmp_path)
    gpus = {index: Card(name="NVIDIA H200", memory_mib=143771, capability="9.0", bar1_mib=262144) for index in range(8)}
    box.nvidia_smi(nvidia_smi(gpus))
    assert told(findings_on(box)) == []
    found = of(box, "SM120_KNOBS_IDLE", "SGLANG_SM120_TRITON_INDEXER=1")
    assert [finding.evidence["worker"] for finding in found] == ["prefill-0", "decode-0"]
    assert GPU_NAME not in found[0].message
    assert len(BUS_IDS) == 8
