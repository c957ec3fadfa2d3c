"""The patches of the embedded stack: what a start would apply, and what a running engine says it has applied."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dsv4ctl.errors import CannotLook, OperationFailed
from dsv4ctl.metrics.exposition import parse_exposition
from dsv4ctl.serving_module import serving_argv, serving_input

if TYPE_CHECKING:
    import httpx

    from dsv4ctl.hosts.base import Host
    from dsv4ctl.stack import Worker

METRIC = "dsv4_patch_info"
_DEADLINE_S = 60.0
FAILED = "FAILED"

Table = Mapping[str, str]
"""Status by the patch's name: applied, not needed, skipped, FAILED."""


def expected_table(host: "Host", python: str, env: Mapping[str, str]) -> Table:
    """What an engine that is started with `env`, and nothing else, would do with each patch. Nothing is started.

    Raises:
        OperationFailed: that interpreter has no serving stack of ours, or one of our variables means nothing to it.
        HostUnreachable, DeadlineExceeded
    """
    document = _asked(host, python, env, "patches", "--json")
    return {patch["name"]: patch["status"] for patch in document["patches"]}


def present_hazards(
    host: "Host", python: str, env: Mapping[str, str], flags: Sequence[str]
) -> tuple[tuple[str, str, str], ...]:
    """Settings that do harm together and that `env` and `flags` have: (name, severity, sentence) of each.

    Raises: as `expected_table`.
    """
    document = _asked(host, python, env, "hazards", "--json", "--", *flags)
    return tuple(
        (entry["name"], entry["severity"], f"{' and '.join(entry['settings'])}: {entry['effect']}; {entry['remedy']}")
        for entry in document["hazards"]
        if entry["present"]
    )


def _asked(host: "Host", python: str, env: Mapping[str, str], *words: str) -> Mapping[str, Any]:
    # Exit status 1 says that an engine would not start so: the answer is there all the same.
    done = host.run(serving_argv(python, words), deadline_s=_DEADLINE_S, stdin=serving_input(env), check=False)
    what = f"{python} -m serving {words[0]} on {host.name} gave no answer"
    if done.returncode not in {0, 1}:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise OperationFailed(what, why=lines[-1] if lines else f"exit status {done.returncode}")
    try:
        document: Mapping[str, Any] = json.loads(done.text)
    except ValueError as error:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise OperationFailed(what, why=lines[-1] if lines else str(error)) from error
    return document


class DoesNotAnswer(CannotLook):
    """An engine says nothing at all, in the time that it was given."""


def running_table(client: "httpx.Client", url: str) -> Table:
    """What a running engine exports; empty on one without our plugin.

    Raises:
        DoesNotAnswer
        CannotLook: it answers, and not with metrics.
    """
    import httpx

    try:
        response = client.get(f"{url}/metrics")
    except httpx.HTTPError as error:
        raise DoesNotAnswer(f"{url}/metrics does not answer", why=str(error) or type(error).__name__) from error
    if response.status_code != 200:
        raise CannotLook(f"{url}/metrics answers HTTP {response.status_code}", hint="enable-metrics in the profile")
    points = parse_exposition(response.text).named(METRIC)
    return {point.labels["patch"]: point.labels["status"] for point in points if point.value}


def tells(worker: "Worker") -> bool:
    """Whether an engine that is started so exports its patches."""
    return "--enable-metrics" in worker.argv


def differences(expected: Table, running: Table) -> tuple[str, ...]:
    """Patches that are not as they were planned, in words."""
    names = sorted(expected.keys() | running.keys())
    return tuple(
        f"{name} is {running.get(name, 'not there')} and should be {expected.get(name, 'not there')}"
        for name in names
        if running.get(name) != expected.get(name)
    )
