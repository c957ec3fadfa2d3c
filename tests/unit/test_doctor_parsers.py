"""How answers of hosts are read: whatever a host says, it is understood or not, and nothing else happens."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4ctl.doctor.asking import Answer
from dsv4ctl.doctor.box import Box, Unseen
from dsv4ctl.doctor.looks import disks, gpus, kernel, leftovers, limits, memory, pci, ports, processes
from dsv4ctl.procfs import parse_listeners
from tests.box_gpus import config, nvidia_smi
from tests.boxes import driver_version

Parser = Callable[[str], object]

PARSERS: dict[str, tuple[Parser, str]] = {
    "gpus": (gpus.parse_gpus, nvidia_smi()["gpus"]),
    "bar1": (gpus.parse_bar1, nvidia_smi()["bar1"]),
    "topology": (gpus.parse_topology, nvidia_smi()["topology"]),
    "users": (gpus.parse_users, "4711, GPU-1, 500\n4712, GPU-2, [N/A]\n"),
    "driver": (gpus.parse_driver, driver_version() + "nvidia-smi is there\n"),
    "pci": (
        pci.parse_pci,
        (
            f"gpu 0000:01:00.0\nnuma_node -1\nmax_link_speed 32.0 GT/s PCIe\n {config(0).hex()}\n"
            f"bridge 0000:00:01.1\ncurrent_link_width 255\n {config(4, acs=1).hex()}\n"
        ),
    ),
    "kernel": (
        kernel.parse_kernel,
        "cmdline quiet iommu=pt\naspm [default] performance\nbalancing 1\nhmm_disabled N\n",
    ),
    "governors": (kernel.parse_governors, "0 acpi-cpufreq performance -\n"),
    "nodes": (
        memory.parse_nodes,
        (
            "Node 0 MemTotal: 9 kB\nNode 0 MemFree: 5 kB\nNode 0 Active(file): 1 kB\nNode 0 Inactive(file): 1 kB\n"
            "pages 0 2048 1 1\n"
        ),
    ),
    "shm": (memory.parse_shm, "Filesystem\ntmpfs 100 1 99 1% /dev/shm\n"),
    "processes": (processes.parse_processes, "1 (systemd) S 0 1 1" + " 0" * 45 + "\n"),
    "marked": (processes.parse_marked, "process 7 pid:[4026531836] dsv4-x-prefill-0\nucx /a/libucp-0.so.0\n"),
    "leftovers": (leftovers.parse_leftovers, "0 no\x00070 0 600 psm_1\0--\0/dev/shm/psm_2\0--\0"),
    "listeners": (
        parse_listeners,
        "  sl\n   0: 0100007F:7530 00000000:0000 0A 0:0 0:0 0 0 0 4711 1\n--\n--\n/proc/7/fd/3 socket:[4711]\n",
    ),
    "limits": (limits.parse_limits, "Max open files  1024  4096  files \nMax locked memory  unlimited  8 bytes \n"),
    "manager": (
        limits.parse_manager_limits,
        "DefaultLimitNOFILE=9\nDefaultLimitNOFILESoft=8\nDefaultLimitMEMLOCK=infinity\nDefaultLimitMEMLOCKSoft=7\n",
    ),
    "disks": (disks.parse_disks, "use state /var\n/dev/sda 9 1 8 1% /\nrw,relatime\n"),
}


def read(parse: Parser, text: str) -> None:
    """As a check reads it: it is understood, or Unseen."""
    try:
        Box({"question": Answer(text)}).read("question", parse)
    except Unseen:
        return


@pytest.mark.parametrize("name", PARSERS)
def test_what_is_right_is_understood(name: str) -> None:
    parse, example = PARSERS[name]
    assert parse(example)


@pytest.mark.parametrize("name", PARSERS)
@given(text=st.text())
def test_any_text_is_understood_or_not(name: str, text: str) -> None:
    read(PARSERS[name][0], text)


@pytest.mark.parametrize("name", PARSERS)
@given(data=st.data())
def test_a_right_answer_with_something_wrong_in_it(name: str, data: st.DataObject) -> None:
    parse, example = PARSERS[name]
    start = data.draw(st.integers(0, len(example)))
    end = data.draw(st.integers(start, min(len(example), start + 20)))
    put = data.draw(st.text(st.sampled_from("0123456789abcdef:,.- \n\0()[]/xGPUNV²٣é"), max_size=8))
    read(parse, example[:start] + put + example[end:])


@given(space=st.binary(min_size=0, max_size=300))
def test_any_configuration_space_can_be_walked(space: bytes) -> None:
    (device,) = (gpu.device for gpu in pci.parse_pci(f"gpu 0000:01:00.0\n {space.hex()}\n").values())
    for look in (lambda: device.express, lambda: device.acs_control, lambda: device.aspm_states):
        try:
            look()
        except Unseen:
            continue


def test_a_configuration_space_that_goes_round_in_a_circle() -> None:
    space = bytearray(config(4))
    space[0x61] = 0x60
    space[0x60] = 0x01
    space[0x100:0x104] = (0x100 << 20 | 1).to_bytes(4, "little")
    (device,) = (gpu.device for gpu in pci.parse_pci(f"gpu 0000:01:00.0\n {space.hex()}\n").values())
    assert device.express is None
    assert device.acs_control is None


def test_ports_are_read_by_one_parser() -> None:
    assert ports.listeners(Box({ports.LISTENERS.name: Answer(PARSERS["listeners"][1])}))[0].pids == (7,)
