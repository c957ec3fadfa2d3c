"""Each precheck fires on what it is for, names it, and is silent otherwise."""

from dataclasses import replace
from pathlib import Path

import pytest

from dsv4ctl.facts import GpuFact, HostFacts, parse_facts
from dsv4ctl.findings import Finding
from dsv4ctl.preflight import (
    check_disk,
    check_engine,
    check_memory,
    check_model,
    check_numactl,
    check_ports,
    check_strays,
)
from dsv4ctl.procfs import Listener
from dsv4ctl.profile.loading import load_profile
from dsv4ctl.stack import ModelSource, Site, Stack, build_stack

GIB = 1024**3
HEALTHY = HostFacts(
    numa_nodes=(0, 1),
    gpus=tuple(
        GpuFact(index, f"00000000:{bus}:00.0", 97_887)
        for index, bus in enumerate(("01", "02", "41", "42", "81", "82", "C1", "C2"))
    ),
    memory_available_bytes=512 * GIB,
    disk_free_bytes=100 * GIB,
    has_numactl=True,
    has_python=True,
    packages={"sglang": "0.5.23"},
    model_directory=True,
    model_config=True,
    model_bytes=160 * GIB,
)


def stack_of(ref: str) -> Stack:
    loaded = load_profile(ref, environ={}, cwd=Path.cwd(), gpus=())
    return build_stack(loaded, {"local": Site("/opt/python", "/state", "/home/op", "/tmp/op")})


BOX = stack_of(str(Path(__file__).parent.parent / "data" / "profiles" / "eight-gpus.toml"))
CPU = stack_of("cpu")


def codes(findings: tuple[Finding, ...]) -> list[str]:
    return [finding.code for finding in findings]


def test_a_taken_port_names_its_holder_and_who_wanted_it() -> None:
    listeners = (Listener(30100, "127.0.0.1", "ipv4", (4711,)), Listener(22, "0.0.0.0", "ipv4"))
    (finding,) = check_ports(CPU.workers, listeners, {4711: "python -m http.server"})
    assert finding.code == "PORT_TAKEN"
    assert "port 30100 on local, the http port of prefill-0" in finding.message
    assert "pid 4711 (python -m http.server)" in finding.message


def test_a_port_held_by_somebody_we_may_not_look_at_is_said_so() -> None:
    (finding,) = check_ports(CPU.workers, (Listener(8998, "0.0.0.0", "ipv4"),), {})
    assert "a process that we may not look at" in finding.message


def test_free_ports_are_no_finding() -> None:
    assert check_ports(CPU.workers, (Listener(22, "0.0.0.0", "ipv4", (1,)),), {1: "sshd"}) == ()


def test_the_engine_must_be_there_and_should_be_the_tested_one() -> None:
    assert check_engine("box", "/opt/python", "0.5.23", HEALTHY) == ()
    assert codes(check_engine("box", "/opt/python", "0.5.22", HEALTHY)) == ["ENGINE_VERSION_DIFFERS"]
    assert codes(check_engine("box", "/opt/python", "0.5.23", replace(HEALTHY, packages={}))) == ["ENGINE_MISSING"]


def test_a_model_that_is_not_there_is_said_with_its_path() -> None:
    source = ModelSource("box", "/models/flash", None)
    assert check_model(source, HEALTHY) is None
    assert check_model(source, replace(HEALTHY, model_directory=False)) == "there is no directory /models/flash on box"
    assert "no config.json" in (check_model(source, replace(HEALTHY, model_config=False)) or "")
    made = replace(source, make=("python", "-m", "make"))
    assert check_model(made, replace(HEALTHY, model_directory=False)) is None


def test_a_worker_that_is_bound_needs_numactl() -> None:
    without = replace(HEALTHY, has_numactl=False)
    assert codes(check_numactl("box", BOX.workers, without)) == ["NUMACTL_MISSING"]
    assert check_numactl("box", CPU.workers, without) == ()
    assert check_numactl("box", BOX.workers, HEALTHY) == ()


def test_a_model_that_fits_on_the_gpus_of_each_worker_is_no_finding() -> None:
    assert check_memory(BOX, "local", HEALTHY, None) == ()


def test_a_model_larger_than_a_workers_gpus_is_said_before_loading() -> None:
    findings = check_memory(BOX, "local", HEALTHY, 400 * GIB)
    assert codes(findings) == ["MODEL_TOO_LARGE", "MODEL_TOO_LARGE"]
    assert "prefill-0 on local needs 400.0 GiB for the model, and its 4 GPUs have 382.4 GiB" in findings[0].message


def test_without_gpus_every_worker_holds_a_copy() -> None:
    small = replace(HEALTHY, gpus=(), memory_available_bytes=24 * GIB)
    assert check_memory(CPU, "local", small, 10 * GIB) == ()
    (finding,) = check_memory(CPU, "local", small, 12 * GIB)
    assert "prefill-0, decode-0 on local needs 25.2 GiB" in finding.message


def test_unknown_memory_is_not_called_too_little() -> None:
    assert check_memory(CPU, "local", replace(HEALTHY, memory_available_bytes=None), 900 * GIB) == ()


def test_a_full_disk_is_refused() -> None:
    assert codes(check_disk("box", "/state", replace(HEALTHY, disk_free_bytes=10 * 1024**2))) == ["DISK_LOW"]
    assert check_disk("box", "/state", HEALTHY) == ()


def test_processes_without_a_record_are_told_with_the_line_that_ends_them() -> None:
    (finding,) = check_strays("box", {12: "dsv4-cpu-router", 9: "dsv4-cpu-prefill-0"})
    assert finding.remedy.endswith("kill 9 12")
    assert check_strays("box", {}) == ()


def test_the_facts_script_is_read_line_by_line() -> None:
    facts = parse_facts(
        "node 1\nnode 0\nmemory_available_kb 2048\ndisk_free_kb 1024\nhas numactl\n"
        "gpu 0, 00000000:17:00.0, 97887\nmodel_directory yes\nmodel_bytes 1234\npython yes\npackage sglang 0.5.23\n"
    )
    assert facts.numa_nodes == (0, 1)
    assert facts.memory_available_bytes == 2048 * 1024
    assert facts.gpus == (GpuFact(0, "00000000:17:00.0", 97887),)
    assert facts.packages == {"sglang": "0.5.23"}
    assert (facts.model_directory, facts.model_config, facts.model_bytes) == (True, False, 1234)


def test_what_the_host_did_not_say_is_unknown() -> None:
    facts = parse_facts("python yes\n")
    assert (facts.memory_available_bytes, facts.disk_free_bytes, facts.model_bytes) == (None, None, None)


def test_nonsense_from_a_host_is_not_taken_for_facts() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        parse_facts("node one\n")
