"""What `serve --dry-run` prints of the profiles for RTX PRO 6000, on a box that has the cards."""

import json
import os
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from textwrap import dedent

import pytest
from inline_snapshot import snapshot
from typer.testing import CliRunner

from dsv4ctl.app import app
from dsv4ctl.facts import GpuFact, read_gpus
from dsv4ctl.knobs import Registry, lint, unread
from dsv4ctl.knobs import snapshot as bundled
from dsv4ctl.profile.loading import LoadedProfile, load_profile
from dsv4ctl.profile.lookup import builtin_profiles, local_gpus
from dsv4ctl.serve_plan import script_of, serve_plan
from dsv4ctl.stack import Site, Stack, Worker, build_stack, hosts_of
from tests.cards import TWO_SOCKETS, card_box

pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).parents[2]
PAIR, UNIFIED, SMALL = NAMES = ("rtx-pro-6000-8x", "rtx-pro-6000-8x-unified", "rtx-pro-6000-4x")
ONE_SOCKET = dict.fromkeys(tuple(TWO_SOCKETS)[:4], -1)


def load(name: str) -> LoadedProfile:
    return load_profile(name, environ={}, cwd=ROOT, profiles=builtin_profiles())


@pytest.fixture
def gpus(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[GpuFact, ...]:
    """The eight cards of two sockets, or four of one, whose firmware says nothing of nodes."""
    box = card_box(tmp_path, ONE_SOCKET, {0: "10"}) if "four" in request.node.name else card_box(tmp_path)
    with closing(box.host()) as host:
        return read_gpus(host, root=box.root)


def stack_of(name: str, gpus: tuple[GpuFact, ...]) -> Stack:
    return build_stack(load(name), {"local": Site("/opt/engine/bin/python", "/state", "/home/op", "/tmp/op", gpus)})


def differences(left: Worker, right: Worker) -> list[str]:
    """What two workers have otherwise, as words of their command lines and environments."""

    def said(worker: Worker) -> list[str]:
        words = [f"{name}={value}" for name, value in worker.env.items()]
        for word in worker.argv:
            if words and words[-1].startswith("--") and not word.startswith("--"):
                words[-1] += f" {word}"
            else:
                words.append(word)
        return words

    return [f"- {word}" for word in said(left) if word not in said(right)] + [
        f"+ {word}" for word in said(right) if word not in said(left)
    ]


def test_the_pair(gpus: tuple[GpuFact, ...]) -> None:
    assert script_of(stack_of(PAIR, gpus)) == snapshot("""\
# prefill-0, on local
# GPUs 0 (0000:01:00.0, node 0), 1 (0000:11:00.0, node 0), 2 (0000:21:00.0, node 0), 3 (0000:31:00.0, node 0)
env \\
    SPT_NOENV=1 \\
    PYTHONUNBUFFERED=1 \\
    NO_COLOR=1 \\
    DSV4CTL_UNIT=dsv4-rtx-pro-6000-8x-prefill-0 \\
    TMPDIR=/tmp/op/dsv4-rtx-pro-6000-8x-prefill-0 \\
    CUDA_DEVICE_ORDER=PCI_BUS_ID \\
    CUDA_VISIBLE_DEVICES=0,1,2,3 \\
    SGLANG_DISAGGREGATION_NIXL_BACKEND=UCX \\
    UCX_NET_DEVICES=lo \\
    SGLANG_HOST_IP=127.0.0.1 \\
    SGLANG_SM120_MMA_FLASHMLA=1 \\
    SGLANG_SM120_MMA_TARGET_CTAS=512 \\
    SGLANG_SM120_TRITON_INDEXER=1 \\
    SGLANG_DSV4_BF16_INDEX_K=1 \\
    SGLANG_DSV4_IDXK_CKSUM=0 \\
    SGLANG_OPT_USE_MULTI_STREAM_OVERLAP=0 \\
    SGLANG_DEFAULT_THINKING=1 \\
    SGLANG_DSV4_REASONING_EFFORT=max \\
    NCCL_P2P_LEVEL=PHB \\
    NCCL_IB_DISABLE=1 \\
    NCCL_MIN_NCHANNELS=8 \\
    SGLANG_DSV4_PREFILL_INFLIGHT_TIMEOUT=60 \\
    SGLANG_DSV4_SCHEDULER_STALL_TIMEOUT=180 \\
    SGLANG_DSV4_LOST_DECODE_GRACE=10 \\
    SGLANG_DISAGGREGATION_WAITING_TIMEOUT=900 \\
    SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT=900 \\
    numactl \\
    --cpunodebind=0 \\
    --membind=0 /opt/engine/bin/python -m sglang.launch_server \\
    --model-path /models/DeepSeek-V4-Flash-NVFP4 \\
    --served-model-name deepseek-v4-flash \\
    --host 127.0.0.1 \\
    --port 30100 \\
    --disaggregation-mode prefill \\
    --disaggregation-bootstrap-port 8998 \\
    --nccl-port 28100 \\
    --tp-size 4 \\
    --attention-backend dsv4 \\
    --dsv4-attn-backend flashmla \\
    --moe-runner-backend flashinfer_cutlass \\
    --fp8-gemm-backend cutlass \\
    --kv-cache-dtype fp8_e4m3 \\
    --mem-fraction-static 0.85 \\
    --context-length 524288 \\
    --chunked-prefill-size 2048 \\
    --disable-custom-all-reduce \\
    --reasoning-parser deepseek-v4 \\
    --tool-call-parser deepseekv4 \\
    --enable-metrics \\
    --disaggregation-transfer-backend nixl

# decode-0, on local
# GPUs 4 (0000:81:00.0, node 1), 5 (0000:91:00.0, node 1), 6 (0000:a1:00.0, node 1), 7 (0000:b1:00.0, node 1)
env \\
    SPT_NOENV=1 \\
    PYTHONUNBUFFERED=1 \\
    NO_COLOR=1 \\
    DSV4CTL_UNIT=dsv4-rtx-pro-6000-8x-decode-0 \\
    TMPDIR=/tmp/op/dsv4-rtx-pro-6000-8x-decode-0 \\
    CUDA_DEVICE_ORDER=PCI_BUS_ID \\
    CUDA_VISIBLE_DEVICES=4,5,6,7 \\
    SGLANG_DISAGGREGATION_NIXL_BACKEND=UCX \\
    UCX_NET_DEVICES=lo \\
    SGLANG_HOST_IP=127.0.0.1 \\
    SGLANG_SM120_MMA_FLASHMLA=1 \\
    SGLANG_SM120_MMA_TARGET_CTAS=512 \\
    SGLANG_SM120_TRITON_INDEXER=1 \\
    SGLANG_DSV4_BF16_INDEX_K=1 \\
    SGLANG_DSV4_IDXK_CKSUM=0 \\
    SGLANG_OPT_USE_MULTI_STREAM_OVERLAP=0 \\
    SGLANG_DEFAULT_THINKING=1 \\
    SGLANG_DSV4_REASONING_EFFORT=max \\
    NCCL_P2P_LEVEL=PHB \\
    NCCL_IB_DISABLE=1 \\
    NCCL_MIN_NCHANNELS=8 \\
    SGLANG_DSV4_PREFILL_INFLIGHT_TIMEOUT=60 \\
    SGLANG_DSV4_SCHEDULER_STALL_TIMEOUT=180 \\
    SGLANG_DSV4_LOST_DECODE_GRACE=10 \\
    SGLANG_DISAGGREGATION_WAITING_TIMEOUT=900 \\
    SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT=900 \\
    numactl \\
    --cpunodebind=1 \\
    --membind=1 /opt/engine/bin/python -m sglang.launch_server \\
    --model-path /models/DeepSeek-V4-Flash-NVFP4 \\
    --served-model-name deepseek-v4-flash \\
    --host 127.0.0.1 \\
    --port 30200 \\
    --disaggregation-mode decode \\
    --nccl-port 28200 \\
    --tp-size 4 \\
    --attention-backend dsv4 \\
    --dsv4-attn-backend flashmla \\
    --moe-runner-backend flashinfer_cutlass \\
    --fp8-gemm-backend cutlass \\
    --kv-cache-dtype fp8_e4m3 \\
    --mem-fraction-static 0.85 \\
    --context-length 524288 \\
    --chunked-prefill-size 2048 \\
    --disable-custom-all-reduce \\
    --reasoning-parser deepseek-v4 \\
    --tool-call-parser deepseekv4 \\
    --enable-metrics \\
    --disaggregation-transfer-backend nixl \\
    --max-running-requests 96

# router, on local
env \\
    SPT_NOENV=1 \\
    PYTHONUNBUFFERED=1 \\
    NO_COLOR=1 \\
    DSV4CTL_UNIT=dsv4-rtx-pro-6000-8x-router \\
    TMPDIR=/tmp/op/dsv4-rtx-pro-6000-8x-router \\
    /opt/engine/bin/python -m sglang_router.launch_router \\
    --host 127.0.0.1 \\
    --port 30000 \\
    --pd-disaggregation \\
    --prefill http://127.0.0.1:30100 8998 \\
    --decode http://127.0.0.1:30200 \\
    --prometheus-host 127.0.0.1 \\
    --prometheus-port 29000 \\
    --log-level warn \\
    --shutdown-grace-period-secs 2 \\
    --health-check-interval-secs 5 \\
    --health-success-threshold 1 \\
    --health-check-timeout-secs 20 \\
    --retry-max-retries 1 \\
    --disable-circuit-breaker \\
    --request-timeout-secs 3600\
""")


def test_the_control_arm_has_all_that_is_not_disaggregation(gpus: tuple[GpuFact, ...]) -> None:
    pair, arm = stack_of(PAIR, gpus), stack_of(UNIFIED, gpus)
    assert [worker.role for worker in arm.workers] == ["unified", "unified", "router"]
    assert differences(pair.workers[0], arm.workers[0]) == snapshot(
        [
            "- DSV4CTL_UNIT=dsv4-rtx-pro-6000-8x-prefill-0",
            "- TMPDIR=/tmp/op/dsv4-rtx-pro-6000-8x-prefill-0",
            "- SGLANG_DISAGGREGATION_NIXL_BACKEND=UCX",
            "- UCX_NET_DEVICES=lo",
            "- SGLANG_DSV4_IDXK_CKSUM=0",
            "- SGLANG_DSV4_PREFILL_INFLIGHT_TIMEOUT=60",
            "- SGLANG_DSV4_LOST_DECODE_GRACE=10",
            "- SGLANG_DISAGGREGATION_WAITING_TIMEOUT=900",
            "- SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT=900",
            "- --disaggregation-mode prefill",
            "- --disaggregation-bootstrap-port 8998",
            "- --disaggregation-transfer-backend nixl",
            "+ DSV4CTL_UNIT=dsv4-rtx-pro-6000-8x-unified-unified-0",
            "+ TMPDIR=/tmp/op/dsv4-rtx-pro-6000-8x-unified-unified-0",
            "+ --max-running-requests 96",
        ]
    )
    assert differences(pair.workers[1], arm.workers[1]) == snapshot(
        [
            "- DSV4CTL_UNIT=dsv4-rtx-pro-6000-8x-decode-0",
            "- TMPDIR=/tmp/op/dsv4-rtx-pro-6000-8x-decode-0",
            "- SGLANG_DISAGGREGATION_NIXL_BACKEND=UCX",
            "- UCX_NET_DEVICES=lo",
            "- SGLANG_DSV4_IDXK_CKSUM=0",
            "- SGLANG_DSV4_PREFILL_INFLIGHT_TIMEOUT=60",
            "- SGLANG_DSV4_LOST_DECODE_GRACE=10",
            "- SGLANG_DISAGGREGATION_WAITING_TIMEOUT=900",
            "- SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT=900",
            "- --disaggregation-mode decode",
            "- --disaggregation-transfer-backend nixl",
            "+ DSV4CTL_UNIT=dsv4-rtx-pro-6000-8x-unified-unified-1",
            "+ TMPDIR=/tmp/op/dsv4-rtx-pro-6000-8x-unified-unified-1",
        ]
    )
    assert differences(pair.workers[2], arm.workers[2]) == snapshot(
        [
            "- DSV4CTL_UNIT=dsv4-rtx-pro-6000-8x-router",
            "- TMPDIR=/tmp/op/dsv4-rtx-pro-6000-8x-router",
            "- --pd-disaggregation",
            "- --prefill http://127.0.0.1:30100 8998",
            "- --decode http://127.0.0.1:30200",
            "- --retry-max-retries 1",
            "+ DSV4CTL_UNIT=dsv4-rtx-pro-6000-8x-unified-router",
            "+ TMPDIR=/tmp/op/dsv4-rtx-pro-6000-8x-unified-router",
            "+ --worker-urls http://127.0.0.1:30100 http://127.0.0.1:30200",
            "+ --retry-max-retries 2",
            "+ --policy cache_aware",
        ]
    )


def test_two_and_two_of_four(gpus: tuple[GpuFact, ...]) -> None:
    small, big = stack_of(SMALL, gpus), stack_of(PAIR, ())
    assert differences(big.workers[0], small.workers[0]) == snapshot(
        [
            "- DSV4CTL_UNIT=dsv4-rtx-pro-6000-8x-prefill-0",
            "- TMPDIR=/tmp/op/dsv4-rtx-pro-6000-8x-prefill-0",
            "- CUDA_VISIBLE_DEVICES=4 nearest to node 0",
            "- --tp-size 4",
            "- --mem-fraction-static 0.85",
            "- --context-length 524288",
            "+ DSV4CTL_UNIT=dsv4-rtx-pro-6000-4x-prefill-0",
            "+ TMPDIR=/tmp/op/dsv4-rtx-pro-6000-4x-prefill-0",
            "+ CUDA_VISIBLE_DEVICES=0,1",
            "+ --tp-size 2",
            "+ --mem-fraction-static 0.9",
            "+ --context-length 131072",
        ]
    )
    assert differences(big.workers[1], small.workers[1]) == snapshot(
        [
            "- DSV4CTL_UNIT=dsv4-rtx-pro-6000-8x-decode-0",
            "- TMPDIR=/tmp/op/dsv4-rtx-pro-6000-8x-decode-0",
            "- CUDA_VISIBLE_DEVICES=4 nearest to node 1",
            "- --cpunodebind=1",
            "- --membind=1 /opt/engine/bin/python -m sglang.launch_server",
            "- --tp-size 4",
            "- --mem-fraction-static 0.85",
            "- --context-length 524288",
            "- --max-running-requests 96",
            "+ DSV4CTL_UNIT=dsv4-rtx-pro-6000-4x-decode-0",
            "+ TMPDIR=/tmp/op/dsv4-rtx-pro-6000-4x-decode-0",
            "+ CUDA_VISIBLE_DEVICES=2,3",
            "+ --cpunodebind=0",
            "+ --membind=0 /opt/engine/bin/python -m sglang.launch_server",
            "+ --tp-size 2",
            "+ --mem-fraction-static 0.9",
            "+ --context-length 131072",
            "+ --max-running-requests 16",
        ]
    )
    assert differences(big.workers[2], small.workers[2]) == snapshot(
        [
            "- DSV4CTL_UNIT=dsv4-rtx-pro-6000-8x-router",
            "- TMPDIR=/tmp/op/dsv4-rtx-pro-6000-8x-router",
            "+ DSV4CTL_UNIT=dsv4-rtx-pro-6000-4x-router",
            "+ TMPDIR=/tmp/op/dsv4-rtx-pro-6000-4x-router",
        ]
    )


@pytest.mark.parametrize("name", NAMES)
def test_each_card_has_one_worker_and_each_port_too(name: str, tmp_path: Path) -> None:
    box = card_box(tmp_path, ONE_SOCKET, {0: "10"}) if name == SMALL else card_box(tmp_path)
    with closing(box.host()) as host:
        stack = stack_of(name, read_gpus(host, root=box.root))
    cards = [card.index for worker in stack.workers for card in worker.cards]
    assert sorted(cards) == list(range(4 if name == SMALL else 8))
    ports = [port for worker in stack.workers for port in worker.ports.values()]
    assert len(set(ports)) == len(ports)
    assert {worker.listen for worker in stack.workers} == {"127.0.0.1"}
    for worker in stack.engines:
        assert worker.argv[:3] == ("numactl", f"--cpunodebind={worker.numa_node}", f"--membind={worker.numa_node}")
        assert len(worker.cards) == int(worker.argv[worker.argv.index("--tp-size") + 1])


@pytest.fixture(scope="module")
def registry() -> Registry:
    known = bundled("0.5.23")
    assert known is not None
    return known


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_one_that_the_engine_has_or_a_knob_of_ours(name: str, registry: Registry) -> None:
    loaded = load(name)
    assert lint(loaded, {"local": registry}) == ()
    ours = {knob for knob, known in registry.env.items() if known.origin == "dsv4"}
    told = {each for finding in unread(loaded, {"local": registry}) for each in str(finding.evidence["names"]).split()}
    assert told == {knob for knob in ours & loaded.profile.env.keys() if not registry.env[knob].is_read} - {
        "SGLANG_DSV4_IDXK_CKSUM"
    }


@pytest.mark.parametrize("name", [PAIR, SMALL])
def test_the_timers_stand_in_the_order_in_which_they_have_to_end_a_request(name: str) -> None:
    prefill, decode, router = stack_of(name, ()).workers
    inflight, bootstrap = (
        float(prefill.env[f"SGLANG_{timer}"])
        for timer in ("DSV4_PREFILL_INFLIGHT_TIMEOUT", "DISAGGREGATION_BOOTSTRAP_TIMEOUT")
    )
    waiting = float(decode.env["SGLANG_DISAGGREGATION_WAITING_TIMEOUT"])
    stall = float(decode.env["SGLANG_DSV4_SCHEDULER_STALL_TIMEOUT"])
    request = float(router.argv[router.argv.index("--request-timeout-secs") + 1])
    heartbeat = 2 * 5.0
    assert heartbeat < inflight + 2 < waiting <= bootstrap < request
    # SGLang's own watchdog, which ends the worker.
    assert stall < 300


def test_prefill_comes_first_and_may_take_half_an_hour(gpus: tuple[GpuFact, ...]) -> None:
    stack = stack_of(PAIR, gpus)
    steps = {step.id: step for step in serve_plan(stack, load(PAIR).profile.canary)}
    order = list(steps)
    assert order.index("await:prefill-0") < order.index("start:decode-0")
    assert steps["await:prefill-0"].deadline_s == 1800


@pytest.mark.parametrize("name", NAMES)
def test_a_dry_run_and_a_check_need_no_gpu(name: str) -> None:
    checked = CliRunner().invoke(app, ["profile", "check", name])
    assert (checked.exit_code, checked.stdout.startswith(f"{name}: right")) == (0, True)
    dry = CliRunner().invoke(app, ["serve", "--dry-run", name])
    shown = CliRunner().invoke(app, ["profile", "show", name])
    assert (dry.exit_code, shown.exit_code) == (0, 0)
    if not local_gpus():
        assert "finds none: no GPU answers on host local" in dry.stderr
        assert "(not resolved)" in shown.stderr


EXAMPLES = re.findall(
    r"^( *)```toml\n(.*?)^ *```", (ROOT / "docs" / "hardware.md").read_text(), re.DOTALL | re.MULTILINE
)


@pytest.mark.parametrize("text", [dedent(text) for _, text in EXAMPLES])
def test_what_the_page_shows_is_a_profile(text: str, registry: Registry, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(text)
    loaded = load_profile("./p.toml", environ={}, cwd=tmp_path, profiles=builtin_profiles())
    hosts = hosts_of(loaded.profile)
    assert lint(loaded, dict.fromkeys(hosts, registry)) == ()
    stack = build_stack(loaded, dict.fromkeys(hosts, Site("/opt/engine/bin/python", "/state", "/home/op", "/tmp/op")))
    addresses = {worker.listen for worker in stack.engines}
    assert ("127.0.0.1" in addresses) == (len(hosts) == 1)
    for worker in stack.engines:
        assert worker.env["SGLANG_HOST_IP"] == worker.listen


def test_the_page_has_one_for_another_box_and_one_for_two() -> None:
    assert len(EXAMPLES) == 2


_PARSE = """
import argparse, json, sys
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
for line in sys.stdin:
    parser.parse_args(json.loads(line))
print("taken")
"""


@pytest.mark.stack
@pytest.mark.beside
def test_the_real_parser_takes_every_command_line() -> None:
    lines = [
        json.dumps(worker.argv[worker.argv.index("sglang.launch_server") + 1 :])
        for name in NAMES
        for worker in stack_of(name, ()).engines
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "serving" / "cpu" / "standins"), "SGLANG_USE_CPU_ENGINE": "1"}
    answer = subprocess.run(
        [sys.executable, "-c", _PARSE], env=env, input="\n".join(lines), capture_output=True, text=True, timeout=200
    )
    assert (answer.returncode, answer.stdout.splitlines()[-1:]) == (0, ["taken"]), answer.stderr
