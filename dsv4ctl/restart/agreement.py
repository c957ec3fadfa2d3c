"""Whether prefill and decode fit together: settings that both must have alike, as each engine says that it has them.

An engine completes its flags by itself (a page size, a data type), so its own account is better than its command line;
an engine that does not answer is judged by its command line.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsv4ctl.engine_keys import headers_by
from dsv4ctl.findings import Finding, Severity

if TYPE_CHECKING:
    import httpx

PATH = "/server_info"
_ALIKE = (
    *("model_path", "served_model_name", "dtype", "quantization", "kv_cache_dtype", "page_size"),
    *("disaggregation_transfer_backend", "version"),
)
"""Where the halves differ in one of these, KV is misread, refused, or answers are another model's."""

_BETTER_ALIKE = ("context_length", "tp_size", "pp_size", "dp_size")
"""Prefill and decode may differ in these, and it is seldom meant: what one takes the other may refuse."""


@dataclass(frozen=True)
class Settings:
    """What one engine has. `source` is where that was learnt."""

    worker: str
    role: str
    source: str
    values: Mapping[str, str]


def settings_of(
    client: "httpx.Client", worker: str, role: str, url: str, argv: Sequence[str] | None
) -> Settings | None:
    """What an engine says of itself, or what its command line says; None where neither can be read."""
    import httpx

    try:
        response = client.get(f"{url}{PATH}", headers=headers_by(argv or ()))
        if response.status_code == 200:
            told: Mapping[str, Any] = response.json()
            names = (*_ALIKE, *_BETTER_ALIKE)
            return Settings(worker, role, PATH, {name: str(told[name]) for name in names if name in told})
    except (httpx.HTTPError, ValueError):
        pass
    return settings_of_argv(worker, role, argv)


def settings_of_argv(worker: str, role: str, argv: Sequence[str] | None) -> Settings | None:
    """What an engine's command line says of it; None where that cannot be read."""
    return None if argv is None else Settings(worker, role, "its command line", by_argv(argv))


def by_argv(argv: Sequence[str]) -> dict[str, str]:
    """The settings that a command line names."""
    found: dict[str, str] = {}
    words = list(argv)
    for at, word in enumerate(words):
        flag, equals, value = word.removeprefix("--").partition("=")
        name = flag.replace("-", "_")
        if word.startswith("--") and name in (*_ALIKE, *_BETTER_ALIKE):
            found[name] = value if equals else words[at + 1] if at + 1 < len(words) else ""
    return found


def one_sided(settings: Sequence[Settings]) -> tuple[Finding, ...]:
    """PAIR_DISAGREES for what the command lines of one half name and those of the other do not: an engine's own choice
    may be the same, and nobody knows before it has started."""
    found: list[Finding] = []
    roles = {one.role for one in settings}
    for name in _ALIKE:
        naming = {one.role for one in settings if name in one.values}
        if roles == {"prefill", "decode"} and len(naming) == 1:
            (role,) = naming
            found.append(
                Finding(
                    "PAIR_DISAGREES",
                    Severity.WARNING,
                    f"only {role} is given {name}, and the other half chooses for itself",
                    "give both the same, in [args] of the profile",
                    {"setting": name},
                )
            )
    return tuple(found)


def disagreements(settings: Sequence[Settings]) -> tuple[Finding, ...]:
    """PAIR_DISAGREES for each setting that the halves have differently. Only what both say is compared."""
    found: list[Finding] = []
    prefills = [one for one in settings if one.role == "prefill"]
    decodes = [one for one in settings if one.role == "decode"]
    for name in (*_ALIKE, *_BETTER_ALIKE):
        values = {one.worker: one.values[name] for one in (*prefills, *decodes) if name in one.values}
        if len(set(values.values())) < 2:
            continue
        severity = Severity.ERROR if name in _ALIKE else Severity.WARNING
        words = ", ".join(f"{worker} has {value}" for worker, value in values.items())
        found.append(
            Finding(
                "PAIR_DISAGREES",
                severity,
                f"prefill and decode differ in {name}: {words}",
                "give both the same, in [args] of the profile",
                {"setting": name, **values},
            )
        )
    return tuple(found)
