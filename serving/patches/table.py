"""The patches as a table: for a program, for a person, and for the page of the documentation."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from serving.patches import registry, source
from serving.patches.fingerprint import fingerprint
from serving.patches.patch import Patch, Upstream

SCHEMA_VERSION = 1

_WIDTH = 120


def as_data(environment: Mapping[str, str]) -> dict[str, Any]:
    """All that the patches say, and what would become of each in an engine with this environment, ready for JSON.

    Nothing of it says what a running engine did: that is `dsv4_patch_info` on its /metrics.

    Raises:
        importlib.metadata.PackageNotFoundError: this interpreter has no SGLang.
        registry.BadSetting: one of our variables has a value that means nothing.
    """
    version = registry.installed_version()
    patches = registry.discover()
    standings = registry.judge_all(environment, patches, version)
    try:
        return {
            "schema_version": SCHEMA_VERSION,
            "sglang": str(version),
            "policy": registry.policy_of(environment),
            "patches": [
                _patch(patch) | {"status": standing.status, "reason": standing.reason}
                for patch, standing in zip(patches, standings, strict=True)
            ],
        }
    finally:
        source.forget()


def _patch(patch: Patch) -> dict[str, Any]:
    return {
        "name": patch.name,
        "required": patch.required,
        "defect": patch.defect,
        "safe_because": patch.safe_because,
        "needed_by": patch.needed_by,
        "made_for": patch.made_for,
        "delete_when": patch.delete_when,
        "relies_on": list(patch.relies_on),
        "only_if": None if patch.only_if is None else {patch.only_if: "1"},
        "hooks": [{"target": hook.target, "kind": hook.kind, "function": hook.function} for hook in patch.hooks],
        "upstream": [
            {
                "module": upstream.module,
                "qualname": upstream.qualname,
                "fingerprints": list(upstream.fingerprints),
                "versions": upstream.versions,
                "installed": _installed(upstream),
            }
            for upstream in patch.upstream
        ],
    }


def _installed(upstream: Upstream) -> str | None:
    try:
        return fingerprint(upstream.module, upstream.qualname)
    except source.NotFound:
        return None


def lines(data: Mapping[str, Any]) -> Iterator[str]:
    """The same for a person, a patch a line; `data` is that of `as_data`."""
    yield f"an engine of sglang {data['sglang']} started here, policy {data['policy']}:"
    rows = [(patch["name"], patch["status"], patch["reason"]) for patch in data["patches"]]
    name_width, status_width = (max((len(row[column]) for row in rows), default=0) for column in (0, 1))
    for name, status, reason in rows:
        yield f"{name:{name_width}}  {status:{status_width}}  {reason}"


def would_stop(data: Mapping[str, Any]) -> bool:
    """Whether an engine would end over a required patch that FAILED; `data` is that of `as_data`."""
    failed = any(patch["required"] and patch["status"] == "FAILED" for patch in data["patches"])
    return failed and data["policy"] == "enforce"


def markdown(patches: Sequence[Patch]) -> str:
    """A section of Markdown for each patch."""
    return "\n".join(_section(patch) for patch in patches)


def _section(patch: Patch) -> str:
    relies_on = f"; not without {' and '.join(patch.relies_on)}" if patch.relies_on else ""
    condition = f"; only with `{patch.only_if}=1`" if patch.only_if else ""
    required = "" if patch.required else "\nThe engine runs without it if it FAILED.\n"
    paragraphs = {
        "Defect": patch.defect,
        "Why the change is safe": patch.safe_because,
        "Versions": f"needed by {_specifiers(patch.needed_by)}; made for {_specifiers(patch.made_for)}"
        + condition
        + relies_on,
        "Delete when": patch.delete_when,
    }
    text = "\n".join(
        textwrap.fill(f"**{title}:** {_sentence(body)}", _WIDTH, break_long_words=False, break_on_hyphens=False) + "\n"
        for title, body in paragraphs.items()
    )
    hooks = "\n".join(f"- `{hook.target}` ({hook.kind})" for hook in patch.hooks)
    return f"### {patch.name}\n\n{text}{required}\n{hooks}\n"


def _specifiers(said: str) -> str:
    return f"`{said}`" if said else "every version"


def _sentence(text: str) -> str:
    return text if text.endswith((".", "`")) else f"{text}."
