"""Each check of `dsv4ctl doctor` on a box that is broken in that one way: it fires, and nothing else does."""

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from dsv4ctl.doctor import checks
from dsv4ctl.findings import Severity
from tests.box_gpus import Card, config, nvidia_smi, switched, topology, uuid
from tests.boxes import UNIT, Recorded, driver_version, healthy
from tests.patients import CHECKS, EIGHT_CARDS, ONE_WORKER, TWO_HOSTS, findings_on, told

FINDINGS = Path(__file__).parent.parent.parent / "docs" / "findings"
WITHOUT_DRIVER = {"DRIVER_FAILS", "DRIVER_MISSING"}
"""What the driver would have told cannot be known beside these."""


def test_a_healthy_box_has_nothing(tmp_path: Path) -> None:
    assert told(findings_on(healthy(tmp_path))) == []


@pytest.mark.parametrize("profile", ["rtx-pro-6000-8x", "rtx-pro-6000-8x-unified", "rtx-pro-6000-4x"])
def test_the_profiles_for_such_cards_have_no_trap_in_them(profile: str, tmp_path: Path) -> None:
    assert told(findings_on(healthy(tmp_path), profile=profile)) == []


@dataclass(frozen=True)
class Broken:
    """One thing wrong with the box, or with the plan (`sets`), or seen under another plan only (`own`)."""

    box: Callable[[Recorded], None] = lambda _: None
    sets: tuple[str, ...] = ()
    own: str = EIGHT_CARDS
    severity: Severity = Severity.WARNING


def _driver_missing(box: Recorded) -> None:
    (box.root / "bin/nvidia-smi").unlink()
    (box.root / "proc/driver/nvidia/version").unlink()


def _orphan(box: Recorded) -> None:
    box.process(4711, "sglang::schedul")
    box.nvidia_smi(nvidia_smi(users=f"4711, {uuid(2)}, 60123\n"))


def _stranger(box: Recorded) -> None:
    box.process(4712, "VLLM::EngineCor")
    box.nvidia_smi(nvidia_smi(users=f"4712, {uuid(1)}, 50000\n4712, {uuid(3)}, 10123\n"))


def _namespaces(box: Recorded) -> None:
    box.process(800, "python3", unit=f"{UNIT}prefill-0", namespace=4026531836)
    box.process(900, "python3", unit=f"{UNIT}decode-0", namespace=4026532999)


def _two_ucx(box: Recorded) -> None:
    box.process(800, "python3", unit=f"{UNIT}prefill-0")
    wheel = "/opt/engine/lib/python3.11/site-packages/nixl_cu12.libs/libucp-b39b3ed9.so.0.0.0"
    mapped = (wheel, wheel, "/opt/hpcx/ucx/lib/libucp.so.0.0.0", "/usr/lib/libucs.so.0")
    lines = [f"7f{at:02d}0000-7f{at:02d}1000 r-xp 00000000 103:01 77 {path}\n" for at, path in enumerate(mapped)]
    box.write("proc/800/maps", "".join(lines))


def _mismatch(box: Recorded) -> None:
    box.program("nvidia-smi", 'echo "Failed to initialize NVML: Driver/library version mismatch"; exit 18')


def _rdma(box: Recorded) -> None:
    box.limits(locked=8388608)
    box.write("sys/class/infiniband/mlx5_0/node_type", "1: CA\n")


def _nginx(box: Recorded) -> None:
    box.process(812, "nginx")
    box.listens(812, 30000)


BROKEN: dict[str, Broken] = {
    "ACS_REDIRECTS": Broken(lambda box: box.bus(switched(acs=0x1D))),
    "BAR1_SMALL": Broken(lambda box: box.nvidia_smi(nvidia_smi({0: Card(bar1_mib=256)}))),
    "CLOCK_NOT_SYNCHRONISED": Broken(lambda box: box.prints("timedatectl", ["no"]), own=TWO_HOSTS),
    "CPU_GOVERNOR": Broken(lambda box: box.governor(1, "powersave")),
    "DISK_LOW": Broken(lambda box: box.disks(free_kb=100 * 1024), severity=Severity.ERROR),
    "DRIVER_CLOSED": Broken(
        lambda box: box.write("proc/driver/nvidia/version", driver_version(kind="NVIDIA UNIX x86_64 Kernel Module")),
        severity=Severity.ERROR,
    ),
    "DRIVER_FAILS": Broken(_mismatch, severity=Severity.ERROR),
    "DRIVER_MISSING": Broken(_driver_missing, severity=Severity.ERROR),
    "DRIVER_OLD": Broken(
        lambda box: box.write("proc/driver/nvidia/version", driver_version("565.57.01")), severity=Severity.ERROR
    ),
    "EXPANDABLE_SEGMENTS": Broken(sets=("PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:512, expandable_segments:True",)),
    "GPU_MISSING": Broken(lambda box: box.nvidia_smi(nvidia_smi({7: None})), severity=Severity.ERROR),
    "GPU_MODELS_DIFFER": Broken(
        lambda box: box.nvidia_smi(nvidia_smi({5: Card(name="NVIDIA GeForce RTX 5090", memory_mib=32607)}))
    ),
    "GPU_ON_OTHER_NODE": Broken(lambda box: box.bus(topology({0: {"node": 1}}))),
    "GPU_TOO_FEW": Broken(sets=("prefill.args.tp-size=8",), severity=Severity.ERROR),
    "GPU_SHARED": Broken(_stranger),
    "HMM_ON": Broken(lambda box: box.kernel(hmm_disabled="N")),
    "HUGEPAGES_RESERVED": Broken(lambda box: box.node(1, huge_gib=200)),
    "IOMMU_TRANSLATES": Broken(lambda box: box.bus(topology({index: {"iommu": "DMA-FQ"} for index in range(8)}))),
    "LOCKED_MEMORY_LOW": Broken(_rdma),
    "MOUNT_READ_ONLY": Broken(lambda box: box.disks(options="ro,relatime"), severity=Severity.ERROR),
    "NCCL_GRAPH_FILE_EMPTY": Broken(sets=("decode.NCCL_GRAPH_FILE=",), severity=Severity.ERROR),
    "NCCL_P2P_ACROSS_SOCKETS": Broken(sets=("NCCL_P2P_LEVEL=4",), own=ONE_WORKER),
    "NCCL_P2P_OFF": Broken(sets=("NCCL_P2P_LEVEL=NVL",)),
    "NODE_MEMORY_LOW": Broken(lambda box: box.node(0, free_gib=1), sets=("prefill.args.hicache-size=60",)),
    "NUMA_BALANCING_ON": Broken(lambda box: box.kernel(balancing=1)),
    "OPEN_FILES_LOW": Broken(lambda box: box.limits(files=4096)),
    "ORPHAN_ENGINES": Broken(_orphan, severity=Severity.ERROR),
    "PCIE_LINK_NARROW": Broken(lambda box: box.nvidia_smi(nvidia_smi({0: Card(lanes=8)}))),
    "PCIE_LINK_SLOW": Broken(lambda box: box.bus(topology(slots={3: {"gen_max": 4}}))),
    "PCIE_POWER_SAVING": Broken(lambda box: box.bus(topology({2: {"config": config(0, aspm=2)}}))),
    "PID_NAMESPACES_DIFFER": Broken(_namespaces),
    "PORT_TAKEN": Broken(_nginx, severity=Severity.ERROR),
    "SHM_LEFTOVERS": Broken(lambda box: box.shared_memory("sgl_shm_mq_4711_0a1b2c3d", 70000)),
    "SHM_SMALL": Broken(lambda box: box.disks(shm_kb=65536)),
    "SM120_KNOBS_IDLE": Broken(
        lambda box: box.nvidia_smi(nvidia_smi({index: Card(capability="9.0") for index in range(8)})),
        sets=("SGLANG_SM120_FLASHMLA_BACKEND=triton",),
    ),
    "UCX_MIXED": Broken(_two_ucx, severity=Severity.ERROR),
    "UCX_TLS_NO_FAILURE_HANDLING": Broken(sets=("UCX_TLS=cuda_copy,cuda_ipc,sm,self",), severity=Severity.ERROR),
    "UCX_TLS_WITHOUT_CUDA": Broken(sets=("UCX_TLS=tcp,sm,self",)),
}


def test_every_check_has_a_broken_box_and_a_module_of_its_name() -> None:
    assert sorted(BROKEN) == [check.code for check in CHECKS]
    assert [module.name for module in pkgutil.iter_modules(checks.__path__)] == [check.code.lower() for check in CHECKS]


@pytest.mark.parametrize("code", BROKEN)
def test_a_box_that_is_broken_in_one_way_has_that_finding_alone(code: str, tmp_path: Path) -> None:
    box, broken = healthy(tmp_path), BROKEN[code]
    broken.box(box)
    findings = findings_on(box, broken.sets, broken.own)
    known = [finding for finding in findings if not (code in WITHOUT_DRIVER and finding.severity is Severity.UNKNOWN)]
    assert {(finding.code, finding.severity) for finding in known} == {(code, broken.severity)}, told(findings)
    page = (FINDINGS / f"{code}.md").read_text()
    assert [
        name for finding in known for name in finding.evidence if name != "source" and f"`{name}`" not in page
    ] == []
