"""The parts of a restart that only think: changes, agreement, GPUs, safety, the plan, what can be started again."""

from dataclasses import replace

import pytest

from dsv4ctl.findings import Severity
from dsv4ctl.profile.schema import Canary
from dsv4ctl.redaction import fingerprint, redact_argv, redact_env
from dsv4ctl.restart.agreement import Settings, by_argv, disagreements, one_sided
from dsv4ctl.restart.changes import changes_of
from dsv4ctl.restart.gpus import GpuUse, indices_of, not_given_back, parse_gpu_use, tenants
from dsv4ctl.restart.patch_table import differences
from dsv4ctl.restart.plan import Scope, co_restart_plan
from dsv4ctl.restart.running import Running, as_before
from dsv4ctl.restart.safety import safety_of
from dsv4ctl.stack import Stack, Worker
from dsv4ctl.state import planned
from dsv4ctl.supervisors.base import UnitState


def worker(name: str, *flags: str, env: dict[str, str] | None = None, numa: bool = False) -> Worker:
    role = name.split("-")[0]
    numactl = ("numactl", "--cpunodebind=0", "--membind=0") if numa else ()
    argv = (*numactl, "python", "-m", "sglang", *flags)
    ports = {"http": 1} | ({"bootstrap": 2} if role == "prefill" else {})
    return Worker(name, role, "local", f"dsv4-x-{name}", argv, env or {}, "127.0.0.1", ports["http"], ports)


def running(was: Worker, *, alive: bool = True) -> Running:
    """What was started as that plan, read back: numactl has replaced itself, PATH was inherited."""
    tail = was.argv[3:] if was.argv[0] == "numactl" else was.argv
    found = Running("local", planned(was), None, UnitState.RUNNING if alive else UnitState.GONE, 7)
    return replace(found, pids=(7,), argv=tail, environ={**was.env, "PATH": "/bin"}) if alive else found


def stack(*workers: Worker, staggered: bool = False) -> Stack:
    return Stack("x", "process", staggered, 60.0, "m", (), workers, ("local",))


PAIR = (worker("prefill-0"), worker("decode-0"), worker("router"))


@pytest.mark.parametrize("alive", [True, False])
def test_what_changes_is_told_by_worker_and_secrets_are_not(alive: bool) -> None:
    old = worker("decode-0", "--tp", "2", "--flag", env={"SGLANG_A": "1", "MY_TOKEN": "old"}, numa=True)
    new = worker("decode-0", "--tp=4", env={"SGLANG_B": "", "MY_TOKEN": "new"}, numa=True)
    changes = changes_of([running(old, alive=alive)], [new])
    assert {(c.what, c.before, c.after) for c in changes if c.what != "MY_TOKEN"} == {
        ("SGLANG_A", "1", None),
        ("SGLANG_B", None, ""),
        ("--tp", "2", "4"),
        ("--flag", "", None),
    }
    assert "old" not in str(changes)
    assert changes_of([running(new, alive=alive)], [new]) == ()


def test_what_ran_can_be_started_again_with_its_secrets() -> None:
    old = worker("decode-0", "--api-key", "k1", env={"MY_TOKEN": "t1", "SGLANG_A": "1"}, numa=True)
    plan = worker("decode-0", "--api-key", "k2", env={"MY_TOKEN": "t2"}, numa=True)
    (found,) = as_before(stack(plan), [running(old)]) or ()
    assert (found.argv, found.env) == (old.argv, old.env)
    # Of one that is dead they are those of the plan, if they are the same; else nobody knows them.
    assert as_before(stack(plan), [running(old, alive=False)]) is None
    (found,) = as_before(stack(old), [running(old, alive=False)]) or ()
    assert (found.argv, found.env) == (old.argv, old.env)
    assert redact_env(found.env) != found.env
    assert redact_argv(found.argv) != found.argv


def test_a_secret_within_a_value_is_found_again_too() -> None:
    env = {"HTTP_PROXY": "http://u:hunter22@p", "MY_PASSWD": "t1", "TOKENIZER_PATH": "/m"}
    old = worker("decode-0", "--proxy=http://u:hunter22@p", env=env, numa=True)
    was = running(old)
    assert "hunter22" not in str(was.record)
    assert (was.record.env["TOKENIZER_PATH"], changes_of([was], [old])) == ("/m", ())
    other = worker("decode-0", env={"HTTP_PROXY": "http://u:another-1@p"}, numa=True)
    (found,) = as_before(stack(other), [was]) or ()
    assert (found.argv, found.env) == (old.argv, old.env)
    assert as_before(stack(other), [running(old, alive=False)]) is None
    # As an older version kept them: it knew fewer secrets, and took some names for secrets that are none.
    kept = replace(was.record, argv=old.argv, env={**env, "TOKENIZER_PATH": fingerprint("/m")})
    (found,) = as_before(stack(other), [replace(was, record=kept)]) or ()
    assert (found.argv, found.env) == (old.argv, old.env)


def test_halves_have_to_agree_on_some_settings_and_should_on_others() -> None:
    argv = ("python", "--page-size=64", "--tp-size", "4", "--host", "0.0.0.0")
    assert by_argv(argv) == {"page_size": "64", "tp_size": "4"}
    alike = {"page_size": "64", "dtype": "bfloat16", "tp_size": "4"}
    prefill = Settings("prefill-0", "prefill", "", alike)
    assert disagreements([prefill, Settings("decode-0", "decode", "", alike)]) == ()
    other = Settings("decode-0", "decode", "", {**alike, "page_size": "1", "tp_size": "2"})
    found = {finding.evidence["setting"]: finding.severity for finding in disagreements([prefill, other])}
    assert found == {"page_size": Severity.ERROR, "tp_size": Severity.WARNING}
    # What only one of them says is not compared; of a plan it is told.
    assert disagreements([prefill, Settings("decode-0", "decode", "", {})]) == ()
    told = one_sided([prefill, Settings("decode-0", "decode", "", {"dtype": "bfloat16", "tp_size": "2"})])
    assert [(finding.evidence["setting"], finding.severity) for finding in told] == [("page_size", Severity.WARNING)]


GPUS = "0, GPU-a, 90000\n1, GPU-b, 500\n"
APPS = "100, GPU-a, 88000\n200, GPU-b, 400\n300, GPU-a, [N/A]\n"


def test_gpus_are_read_as_nvidia_smi_has_them() -> None:
    assert parse_gpu_use(GPUS, APPS) == (GpuUse(0, 90_000, {100: 88_000, 300: 0}), GpuUse(1, 500, {200: 400}))
    with pytest.raises(ValueError, match="expected 3"):
        parse_gpu_use("No devices were found", "")


def test_which_gpus_are_ours_is_read_from_the_environment_that_the_plan_has() -> None:
    by_bus = replace(worker("prefill-0", env={"CUDA_VISIBLE_DEVICES": "4,5"}), gpus=("0000:01:00.0", "0000:02:00.0"))
    assert indices_of([by_bus, worker("decode-0")]) == {4, 5}


def test_who_else_is_on_our_gpus_is_told() -> None:
    use = parse_gpu_use(GPUS, APPS)
    assert [(tenant.gpu, tenant.pid) for tenant in tenants(use, {0}, {100})] == [(0, 300)]


@pytest.mark.parametrize(
    ("now", "free"),
    [
        (GpuUse(0, 2_000, {}), True),
        (GpuUse(0, 2_050, {}), True),
        (GpuUse(0, 3_000, {}), False),
        (GpuUse(0, 2_000, {100: 10}), False),
        # Somebody else has come: what they hold is not ours to wait for.
        (GpuUse(0, 42_000, {900: 40_000}), True),
    ],
)
def test_memory_has_to_be_back_to_what_it_was_without_us(now: GpuUse, free: bool) -> None:
    before = (GpuUse(0, 90_000, {100: 88_000}),)
    assert (not_given_back(before, (now,), {0}, {100}) == ()) is free
    assert not_given_back(before, (now,), {1}, {100}) == ()


def test_where_no_process_is_shown_memory_has_to_have_become_less_than_half() -> None:
    before = (GpuUse(0, 90_000, {}),)
    assert not_given_back(before, (GpuUse(0, 1_000, {}),), {0}, {100}) == ()
    assert "GPU 0 has 80000 MiB in use" in not_given_back(before, (GpuUse(0, 80_000, {}),), {0}, {100})[0]


def test_a_tenant_is_not_waited_for_where_none_of_ours_was_alive() -> None:
    tenant = (GpuUse(0, 70_000, {9: 69_000}),)
    assert not_given_back(tenant, tenant, {0}, {100}) == ()
    assert not_given_back((GpuUse(0, 70_000, {}),), (GpuUse(0, 70_000, {}),), {0}, ()) == ()


def test_on_the_way_back_the_memory_of_the_first_engines_has_to_be_free_too() -> None:
    before = (GpuUse(0, 91_000, {9: 1_000, 100: 90_000}),)
    assert not_given_back(before, (GpuUse(0, 1_020, {9: 1_000}),), {0}, {100, 200}) == ()
    (words,) = not_given_back(before, (GpuUse(0, 60_000, {9: 1_000}),), {0}, {100, 200})
    assert "60000 MiB in use, and had 1064 MiB" in words


def test_one_side_alone_is_safe_for_a_version_and_patches_that_were_tried() -> None:
    applied = dict.fromkeys(
        ("lost-decode", "lost-messages", "settled-pages", "peer-reconnect", "lost-prefill", "absent-prefill",
         "decode-quarantine"), "applied"
    )  # fmt: skip
    assert safety_of("decode", "0.5.23", applied).safe
    assert safety_of("prefill", "0.5.23", applied).safe
    assert not safety_of("decode", "0.5.24", applied).safe
    assert not safety_of("decode", None, applied).safe
    missing = safety_of("decode", "0.5.23", {**applied, "lost-decode": "skipped"})
    assert not missing.safe
    assert "without lost-decode, prefill does not notice" in missing.why
    assert not safety_of("prefill", "0.5.23", {}).safe


def scope(**more: object) -> Scope:
    base = Scope(stack(*PAIR), PAIR[:2], ("decode-0", "prefill-0"), ("local",), False, 30.0, 2.0)
    return replace(base, **more)  # type: ignore[arg-type]


def ids(wanted: Scope) -> list[str]:
    return [step.id for step in co_restart_plan(wanted, Canary())]


def test_the_plan_closes_the_door_first_and_opens_it_last() -> None:
    assert ids(scope()) == [
        *("evidence:local", "cordon", "drain", "abort", "note:local", "end:local", "ended:local", "kill:local"),
        *("gone:local", "start:prefill-0", "start:decode-0", "await:prefill-0", "await:decode-0"),
        *("pair:prefill-0+decode-0", "idle", "readback:prefill-0", "readback:decode-0"),
        *("patches:prefill-0", "patches:decode-0", "uncordon", "traffic"),
    ]


def test_a_staggered_stack_starts_one_after_the_other() -> None:
    started = [
        step for step in ids(scope(stack=stack(*PAIR, staggered=True))) if step.split(":")[0] in {"start", "await"}
    ]
    assert started == ["start:prefill-0", "await:prefill-0", "start:decode-0", "await:decode-0"]


def test_a_router_that_does_not_answer_is_started_at_the_end_and_not_asked() -> None:
    steps = ids(scope(replace_router=True))
    assert "cordon" not in steps
    assert "uncordon" not in steps
    assert steps[-4:] == ["start:router", "await:router", "readback:router", "traffic"]


def test_one_side_is_proven_with_the_other() -> None:
    steps = ids(scope(engines=PAIR[1:2], leaving=("decode-0",)))
    assert [step for step in steps if step.startswith("start:")] == ["start:decode-0"]
    assert "pair:prefill-0+decode-0" in steps


def test_patches_are_compared_by_name() -> None:
    assert differences({"a": "applied"}, {"a": "applied"}) == ()
    assert differences({"a": "applied", "b": "skipped"}, {"a": "FAILED"}) == (
        "a is FAILED and should be applied",
        "b is not there and should be skipped",
    )
