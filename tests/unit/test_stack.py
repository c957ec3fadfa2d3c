"""From a profile to exact command lines: everything that the profile says arrives, once, where it belongs."""

import subprocess
from pathlib import Path

import pytest

from dsv4ctl.errors import UsageError
from dsv4ctl.profile.loading import LoadedProfile, load_profile
from dsv4ctl.serve_plan import paste_command, serve_plan
from dsv4ctl.stack import Site, Stack, build_stack, default_python, hosts_of

BOX = Path(__file__).parent.parent / "data" / "profiles" / "eight-gpus.toml"
CPU_PROFILES = ("cpu", "cpu-tp2", "cpu-pp2", "cpu-mooncake", "cpu-2p2d", "cpu-kv-heavy", "cpu-overlap", "cpu-single")


def load(ref: str | Path, *sets: str) -> LoadedProfile:
    return load_profile(str(ref), environ={}, cwd=Path.cwd(), sets=sets, gpus=())


def stack_of(loaded: LoadedProfile) -> Stack:
    sites = {
        host: Site("/opt/engine/bin/python", f"/state/{host}", "/home/op", "/tmp/op")
        for host in hosts_of(loaded.profile)
    }
    return build_stack(loaded, sites)


def after(argv: tuple[str, ...], flag: str) -> str:
    return argv[argv.index(flag) + 1]


@pytest.mark.parametrize("name", CPU_PROFILES)
def test_every_built_in_profile_makes_a_stack(name: str) -> None:
    stack = stack_of(load(name))
    assert len({worker.unit for worker in stack.workers}) == len(stack.workers)
    ports = [port for worker in stack.workers for port in worker.ports.values()]
    assert len(set(ports)) == len(ports)
    for worker in stack.engines:
        assert after(worker.argv, "--port") == str(worker.port)
        assert worker.env["DSV4CTL_UNIT"] == worker.unit


def test_a_pair_knows_its_halves() -> None:
    prefill, decode, router = stack_of(load("cpu")).workers
    assert after(prefill.argv, "--disaggregation-mode") == "prefill"
    assert after(decode.argv, "--disaggregation-mode") == "decode"
    bootstrap = str(prefill.ports["bootstrap"])
    assert after(prefill.argv, "--disaggregation-bootstrap-port") == bootstrap
    at = router.argv.index("--prefill")
    assert router.argv[at : at + 5] == ("--prefill", prefill.url, bootstrap, "--decode", decode.url)


def test_a_single_server_has_no_router_and_is_its_own_entry() -> None:
    stack = stack_of(load("cpu-single"))
    assert [worker.role for worker in stack.workers] == ["unified"]
    assert stack.entry.name == "unified-0"
    assert "--disaggregation-mode" not in stack.entry.argv


def test_set_reaches_the_engines_and_nobody_else() -> None:
    stack = stack_of(load("cpu", "SGLANG_LOG_MS=1", "decode.SGLANG_SCHEDULER_SKIP_ALL_GATHER=1"))
    prefill, decode, router = stack.workers
    assert (prefill.env["SGLANG_LOG_MS"], decode.env["SGLANG_LOG_MS"]) == ("1", "1")
    assert "SGLANG_LOG_MS" not in router.env
    assert "SGLANG_SCHEDULER_SKIP_ALL_GATHER" not in prefill.env
    assert decode.env["SGLANG_SCHEDULER_SKIP_ALL_GATHER"] == "1"


def test_a_command_to_paste_is_read_back_by_a_shell_as_it_was_meant() -> None:
    for worker in stack_of(load("cpu", "SGLANG_LOG_MS=a b$c'd")).workers:
        script = f"set -- {paste_command(worker)}\nprintf '%s\\0' \"$@\""
        words = subprocess.run(["sh", "-c", script], capture_output=True, check=True).stdout.decode().split("\0")[:-1]
        assert words == ["env", *(f"{name}={value}" for name, value in worker.env.items()), *worker.argv]


def test_the_plan_starts_awaits_proves_and_reads_back_in_that_order() -> None:
    loaded = load("cpu")
    ids = [step.id for step in serve_plan(stack_of(loaded), loaded.profile.canary)]
    assert ids == [
        "model:local",
        "start:prefill-0",
        "start:decode-0",
        "await:prefill-0",
        "await:decode-0",
        "start:router",
        "await:router",
        "canary:small",
        "canary:large",
        "readback:prefill-0",
        "readback:decode-0",
        "readback:router",
    ]


def test_a_staggered_start_waits_for_prefill_before_it_starts_decode() -> None:
    loaded = load("cpu", 'start="staggered"')
    ids = [step.id for step in serve_plan(stack_of(loaded), loaded.profile.canary)]
    assert ids.index("await:prefill-0") < ids.index("start:decode-0")


def test_another_host_needs_to_be_told_its_interpreter() -> None:
    profile = load("cpu").profile
    assert default_python(profile, "local", "/venv/bin/python") == "/venv/bin/python"
    with pytest.raises(UsageError, match="does not say which Python runs the engine on box"):
        default_python(profile, "box", "/venv/bin/python")
