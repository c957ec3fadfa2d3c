"""The first error of a log is the one that is named, and the phase is the last one that was reached."""

from hypothesis import given
from hypothesis import strategies as st

from dsv4ctl.loglines import LogDigest, digest

CASCADE = """\
[2026-11-29 17:05:20] server_args=ServerArgs(model_path='/models/x', device='cpu')
[2026-11-29 17:05:24] Load weight begin. avail mem=20.00 GB
[2026-11-29 17:05:25] Scheduler hit an exception: Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/sglang/srt/managers/scheduler.py", line 4000, in run_scheduler_process
    scheduler = Scheduler(server_args)
  File "/opt/venv/lib/python3.11/site-packages/sglang/srt/model_loader/loader.py", line 512, in load
    raise ValueError("no safetensors in the directory")
ValueError: no safetensors in the directory

[2026-11-29 17:05:25] Received sigquit from a child process. It usually means the child failed.
Traceback (most recent call last):
  File "/opt/venv/bin/launch.py", line 9, in <module>
    run()
EOFError
"""


def test_the_first_error_is_named_with_its_place_and_not_the_last_of_the_cascade() -> None:
    found = digest(CASCADE)
    assert found.first_error is not None
    assert found.first_error.message == "ValueError: no safetensors in the directory"
    assert found.first_error.where == "sglang/srt/model_loader/loader.py:512 in load"
    assert found.first_error.line_number == 3


CHAIN = """\
Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/json/decoder.py", line 353, in raw_decode
    obj, end = self.scan_once(s, idx)
json.decoder.JSONDecodeError: Expecting ',' delimiter: line 1 column 62 (char 61)

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/transformers/configuration_utils.py", line 700, in _get_config_dict
    raise OSError(message)
OSError: It looks like the config file at '/m/config.json' is not a valid JSON file.
"""


def test_a_chain_is_told_by_its_last_link_with_its_first_as_the_cause() -> None:
    found = digest(CHAIN + CASCADE).first_error
    assert found is not None
    assert str(found) == (
        "OSError: It looks like the config file at '/m/config.json' is not a valid JSON file. "
        "(transformers/configuration_utils.py:700 in _get_config_dict); "
        "caused by json.decoder.JSONDecodeError: Expecting ',' delimiter: line 1 column 62 (char 61)"
    )
    assert found.line_number == 1


def test_the_phase_is_what_the_worker_waits_for_next() -> None:
    found = LogDigest()
    assert found.waits_for == "its imports"
    for line in CASCADE.splitlines()[:2]:
        found.feed(line)
    assert found.waits_for == "the weights"


def test_a_rejected_argument_is_an_error_without_a_traceback() -> None:
    found = digest("usage: sglang serve [-h]\nsglang serve: error: unrecognized arguments: --tpp 4\n")
    assert found.first_error is not None
    assert found.first_error.message == "sglang serve: error: unrecognized arguments: --tpp 4"


def test_a_scheduler_that_was_killed_is_named_by_its_parent() -> None:
    line = "[2026-11-29 20:01:02] Subprocess scheduler_0 (pid=1058) crashed with exit code -9. Triggering SIGQUIT."
    found = digest(f"[2026-11-29 20:01:00] Decode batch, #running-req: 1\n{line}\nkill_process_tree called\n")
    assert found.first_error is not None
    assert found.first_error.message.startswith("Subprocess scheduler_0 (pid=1058) crashed with exit code -9")


def test_an_exception_that_is_mentioned_in_passing_is_no_error() -> None:
    found = digest("[2026-11-29 17:00:00] WARNING: /v1/responses is off: No module named 'openai_harmony'\nall well\n")
    assert found.first_error is None
    assert found.last_line == "all well"


@given(st.lists(st.text(max_size=60), max_size=30))
def test_any_text_is_a_log(lines: list[str]) -> None:
    found = LogDigest()
    for line in lines:
        found.feed(line)
    assert found.first_error is None or 1 <= found.first_error.line_number <= len(lines)


@given(st.lists(st.sampled_from(CASCADE.splitlines()), max_size=40))
def test_what_follows_never_changes_the_first_error(more: list[str]) -> None:
    found = digest(CASCADE)
    first = found.first_error
    for line in more:
        found.feed(line)
    assert found.first_error == first
