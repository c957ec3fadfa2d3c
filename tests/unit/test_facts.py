"""What a host is, where some of it hangs, floods or fails: that alone is lost, and why is said in words."""

import re
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from dsv4ctl.errors import DeadlineExceeded, OperationFailed
from dsv4ctl.facts import HostFacts, read_facts, read_gpus
from dsv4ctl.fleet import gpus_of
from dsv4ctl.hosts.base import Completed
from dsv4ctl.hosts.local import LocalHost
from dsv4ctl.restart.gpus import read_gpu_use
from tests.cards import CardBox, card_box

BROKEN = {
    "hangs": ("trap '' TERM; while :; do sleep 1; done", "nvidia-smi: no answer within 10 s"),
    "floods": ("exec yes", "nvidia-smi: the answer is longer than 1 MiB"),
    "fails": (
        "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18",
        "nvidia-smi: Failed to initialize NVML: Driver/library version mismatch",
    ),
    "babbles": ("head -c 300 /dev/urandom", "nvidia-smi: the answer is not understood"),
}


def facts_of(box: CardBox, model: str = "") -> HostFacts:
    with closing(box.host()) as host:
        return read_facts(host, state_root="/", model_path=model, python="/usr/bin/env", root=box.root)


def breaks(box: CardBox, script: str) -> None:
    (Path(box.root) / "bin/nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")


def commands() -> Iterator[str]:
    """How each process of this machine was started."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            yield file.read_text(errors="replace")


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_nvidia_smi_costs_the_gpus_alone_and_little_time(how: str, tmp_path: Path) -> None:
    script, why = BROKEN[how]
    box = card_box(tmp_path)
    breaks(box, script)
    began = time.monotonic()
    facts = facts_of(box)
    assert time.monotonic() - began < 20
    assert facts.gpus == ()
    assert facts.gpus_unseen.startswith(why)
    assert not any(f"{tmp_path}/bin/nvidia-smi" in command for command in commands())
    assert facts.numa_nodes == (0, 1)
    assert facts.has_python
    assert facts.memory_available_bytes
    assert facts.disk_free_bytes
    with closing(box.host()) as host, pytest.raises(OperationFailed) as failed:
        read_gpus(host, root=box.root)
    assert str(failed.value).startswith(f"the GPUs of local could not be looked at: {why}")


def test_a_driver_without_gpus_is_no_failure(tmp_path: Path) -> None:
    box = card_box(tmp_path)
    breaks(box, "echo 'No devices were found'")
    assert (facts_of(box).gpus, facts_of(box).gpus_unseen) == ((), "")


def test_a_plan_knows_why_it_has_no_gpus(tmp_path: Path) -> None:
    box = card_box(tmp_path)
    breaks(box, "exit 9")
    with closing(box.host()) as host:
        assert gpus_of(host) == ((), "nvidia-smi: exit status 9")


def test_a_model_is_looked_at_and_one_that_hangs_is_no_missing_one(tmp_path: Path) -> None:
    box = card_box(tmp_path / "box")
    model = tmp_path / "it's a model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "m.safetensors").write_bytes(b"x" * 1234)
    facts = facts_of(box, str(model))
    assert (facts.model_directory, facts.model_config, facts.model_bytes) == (True, True, 1234)
    (Path(box.root) / "bin/ls").write_text("#!/bin/sh\nexec kill -9 $PPID\n")
    (Path(box.root) / "bin/ls").chmod(0o755)
    with pytest.raises(OperationFailed, match="it's a model on local could not be looked at"):
        facts_of(box, str(model))


def test_who_uses_the_gpus_is_asked_with_a_deadline(tmp_path: Path) -> None:
    box = card_box(tmp_path)
    breaks(box, "sleep 60")
    with closing(box.host()) as host, pytest.raises(OperationFailed, match=r"no answer within 0\.2 s"):
        read_gpu_use(host, within_s=0.2)
    (Path(box.root) / "bin/nvidia-smi").unlink()
    with closing(box.host()) as host:
        assert read_gpu_use(host) == ()


class SlowHost(LocalHost):
    """One whose shell itself does not come to an end."""

    def run(self, argv: object, **how: object) -> Completed:
        raise DeadlineExceeded(f"sh -c {argv} had not ended after {how['deadline_s']} s")


def test_a_host_that_is_slow_itself_is_told_in_words() -> None:
    with closing(SlowHost()) as host, pytest.raises(DeadlineExceeded) as late:
        read_gpus(host)
    assert "local did not answer within" in str(late.value)
    assert "asked for /sys/devices/system/node, /sys/bus/pci and /proc/driver, nvidia-smi" in str(late.value)
    assert "sh -c" not in str(late.value)


PROC = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  590.48.01  Release Build  (root@box)\nGCC 13.3.0\n"


def shows_driver(box: CardBox) -> None:
    file = Path(box.root) / "proc/driver/nvidia/version"
    file.parent.mkdir(parents=True)
    file.write_text(PROC)


def test_the_driver_is_the_loaded_one_or_what_nvidia_smi_has(tmp_path: Path) -> None:
    box = card_box(tmp_path)
    breaks(box, "echo 0, 00000000:01:00.0, 97887, GPU-1, 595.45.04")
    assert facts_of(box).packages["driver"] == "595.45.04"
    shows_driver(box)
    assert facts_of(box).packages["driver"] == "590.48.01"


def test_a_driver_that_nothing_tells_of_is_unknown_and_one_that_is_not_there_is_none(tmp_path: Path) -> None:
    box = card_box(tmp_path)
    breaks(box, "echo no; exit 9")
    assert facts_of(box).unseen == {"driver": "nvidia-smi: no"}
    without = facts_of(card_box(tmp_path / "none", driver=False))
    assert ("driver" in without.packages, dict(without.unseen)) == (False, {})


def interpreter(folder: Path, *, library: str | None) -> str:
    """One that has a NIXL alone, with this text for a libucp."""
    info = folder / "nixl_cu12-1.5.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: nixl-cu12\nVersion: 1.5.1\n")
    if library is not None:
        (folder / "libucp-1.so").write_text(library)
        (info / "RECORD").write_text("libucp-1.so,,\n")
    program = folder / "python"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} -S "$@"\n')
    program.chmod(0o755)
    return str(program)


def with_python(python: str) -> HostFacts:
    with closing(LocalHost()) as host:
        return read_facts(host, state_root="/", model_path="", python=python)


def test_ucx_tells_its_own_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_LOG_LEVEL", "trace")
    facts = with_python(sys.executable)
    assert re.fullmatch(r"1\.\d+\.\d+", facts.packages["ucx"])
    assert not facts.unseen


def test_a_ucx_that_cannot_be_asked_is_unknown(tmp_path: Path) -> None:
    facts = with_python(interpreter(tmp_path, library="no library"))
    assert facts.packages == {"nixl-cu12": "1.5.1"}
    assert "libucp-1.so" in facts.unseen["ucx"]
