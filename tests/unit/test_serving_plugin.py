"""The plugin changes nothing on a machine with GPUs, and never lets a CPU engine run without what it needs."""

import subprocess
import sys


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_without_the_cpu_engine_nothing_is_hooked_and_nothing_imported() -> None:
    code = "import sys, serving.plugin as p; p.register(); print(p.registered, [m for m in sys.modules if 'cpu' in m])"
    assert python(code).stdout == "True []\n"


def test_a_function_that_is_not_there_ends_the_engine_with_one_sentence() -> None:
    code = "from serving import plugin; plugin._after('sglang.version.no_such_function', print)"
    ended = python(code, SGLANG_USE_CPU_ENGINE="1")
    assert ended.returncode == 1
    message = ended.stderr.strip().splitlines()[-1]
    assert message.startswith("dsv4: sglang.version.no_such_function cannot be hooked")
    assert "0.5.23" in message


def test_an_engine_whose_plugin_is_kept_out_does_not_start() -> None:
    ended = python(
        "from serving.cpu.engine import main; main(['--model-path', '/nowhere', '--device', 'cpu'])",
        SGLANG_PLUGINS="another",
    )
    assert ended.returncode == 1
    assert "SGLang did not load the plugin" in ended.stderr
