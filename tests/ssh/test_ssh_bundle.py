"""`dsv4ctl doctor --bundle`: what a host says of itself, here and over SSH."""

import sys
from pathlib import Path

from dsv4ctl.doctor.bundle.collect import Subject, collect
from dsv4ctl.fleet import open_place
from dsv4ctl.hosts.base import Host


def test_what_a_host_says_of_itself_and_its_journals(host: Host, tmp_path: Path) -> None:
    place = open_place("box", host, "process", sys.executable, str(tmp_path))
    host.write(f"{place.store.journal_directory('mine')}/1-serve.jsonl", b'{"event": "start"}\n')
    found = {member.name: member.data for member in collect(Subject("mine", {"box": place}), []).members}
    assert found["hosts/box/kernel-command-line.txt"] == Path("/proc/cmdline").read_bytes()
    assert b"Linux" in found["hosts/box/system.txt"]
    assert b"pytest==" in found["hosts/box/packages.txt"]
    assert found["hosts/box/journals/1-serve.jsonl"] == b'{"event": "start"}\n'
    assert b"could not be had" in found.get("hosts/box/nvidia-smi.txt.missing.txt", b"could not be had")
