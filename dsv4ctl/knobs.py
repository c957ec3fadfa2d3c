"""Names of environment variables and flags, checked against what the engine and our half of it know.

The engine ignores a misspelt environment variable, and takes the default in place of a bad value. So both are errors
here, before anything starts. What is known comes from the engine's own host, or from a snapshot bundled with us.
"""

import importlib.resources
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsv4ctl.errors import DeadlineExceeded, HostUnreachable, OperationFailed
from dsv4ctl.findings import Finding, Severity
from dsv4ctl.names import did_you_mean, within
from dsv4ctl.redaction import redact

if TYPE_CHECKING:
    from dsv4ctl.hosts.base import Host
    from dsv4ctl.profile import LoadedProfile, Problem, Valued
    from dsv4ctl.profile.schema import ArgScalar

_ASK_DEADLINE_S = 30.0
_SCHEMA_VERSION = 1

LINTED_PREFIXES = ("SGLANG_", "SGL_", "DSV4")
"""Only names like these are the engine's or ours; all others pass, unless one is a slip away from such a name."""

_FOREIGN_PREFIXES = (
    *("CUDA_", "CUBLAS", "NCCL_", "NVIDIA_", "NVSHMEM_", "NIXL_", "UCX_", "MC_", "MOONCAKE_"),
    *("TORCH", "PYTORCH_", "TRITON_", "FLASHINFER_", "DG_", "HF_", "TRANSFORMERS_", "TOKENIZERS_"),
    *("OMP_", "MKL_", "KMP_", "GLOO_", "PYTHON", "LD_", "MALLOC_", "SPT_", "RUST_", "OTEL_"),
)
_MAX_GUESSES = 3
_FALSE = frozenset({"false", "0", "no", "n"})
_TRUE_OR_FALSE = frozenset({"true", "1", "yes", "y"}) | _FALSE


@dataclass(frozen=True)
class EnvKnob:
    """A variable that the engine knows. `type` is None where only its name is known; `deprecated` says what instead."""

    type: str | None
    default: str | None
    origin: str
    meaning: str | None
    deprecated: str | None
    is_read: bool


@dataclass(frozen=True)
class FlagKnob:
    """A flag: a `switch` takes no value, `value` one, `list` several. `type` (int or float) and `choices` are of each
    of them; None where they are anything, or nobody knows."""

    kind: str
    type: str | None = None
    choices: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Registry:
    """All names of one engine. `source` says where this was learnt."""

    source: str
    version: str
    env: Mapping[str, EnvKnob]
    engine_flags: Mapping[str, FlagKnob]
    router_flags: Mapping[str, FlagKnob]


def parse_registry(text: str, source: str) -> Registry:
    """What `python -m serving knobs --json` printed.

    Raises:
        OperationFailed: it is something else.
    """
    try:
        data: dict[str, Any] = json.loads(text)
        if data["schema_version"] != _SCHEMA_VERSION:
            raise OperationFailed(
                f"{source} speaks version {data['schema_version']} of the knob registry, and we know {_SCHEMA_VERSION}",
                hint="install the same dsv4ctl on the host as here",
            )
        return Registry(
            source=source,
            version=data["sglang"],
            env={
                name: EnvKnob(
                    knob.get("type"),
                    knob.get("default"),
                    knob["origin"],
                    knob.get("meaning"),
                    knob.get("deprecated"),
                    knob["is_read"],
                )
                for name, knob in data["env"].items()
            },
            engine_flags=_flags(data["engine_flags"]),
            router_flags=_flags(data["router_flags"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise OperationFailed(f"{source} gave no knob registry", why=f"{type(error).__name__}: {error}") from error


def _flags(data: Mapping[str, Any]) -> dict[str, FlagKnob]:
    return {
        name: FlagKnob(flag["kind"], flag.get("type"), tuple(flag["choices"]) if "choices" in flag else None)
        for name, flag in data.items()
    }


def snapshot(version: str) -> Registry | None:
    """The bundled registry of that version of the engine; None when there is none."""
    path = importlib.resources.files("dsv4ctl") / "data" / f"knobs-{version}.json"
    if not path.is_file():
        return None
    return parse_registry(path.read_text(encoding="utf-8"), f"the bundled snapshot of sglang {version}")


def ask(host: "Host", python: str, *, deadline_s: float = _ASK_DEADLINE_S) -> Registry:
    """What the engine on that host knows, from its own interpreter; about a second.

    Raises:
        OperationFailed: it has no engine, or not our half of it.
        HostUnreachable, DeadlineExceeded
    """
    answer = host.run([python, "-m", "serving", "knobs", "--json"], deadline_s=deadline_s)
    return parse_registry(answer.text, f"{python} on {host.name}")


@dataclass(frozen=True)
class Linted:
    """What a lint found. `sources` says for each host what its names were checked against; `notes` what a person should
    know about that: a host that could not be asked, or names that nobody could check. `findings` are what is right, and
    yet not as it looks."""

    problems: "tuple[Problem, ...]"
    sources: Mapping[str, str]
    notes: tuple[str, ...]
    findings: tuple[Finding, ...] = ()

    def raise_problems(self) -> None:
        """Raises:
        ProfileError: there are any.
        """
        from dsv4ctl.profile import ProfileError

        if self.problems:
            raise ProfileError(self.problems)


def lint_on(loaded: "LoadedProfile", hosts: "Mapping[str, Host]", pythons: Mapping[str, str]) -> Linted:
    """Lint against the engine of each host, or, for a host that is not in `hosts` or cannot tell, the snapshot.

    `hosts` and `pythons` (the engine's interpreter) go by the profile's host names.
    """
    version = loaded.profile.engine.version
    places = [worker.spec.host for worker in loaded.profile.workers]
    places += [loaded.profile.router.host] if loaded.profile.router else []
    registries: dict[str, Registry] = {}
    notes: list[str] = []
    for name in dict.fromkeys(places):
        registry: Registry | None = None
        if name in hosts:
            try:
                registry = ask(hosts[name], pythons[name])
            except (OperationFailed, HostUnreachable, DeadlineExceeded) as error:
                notes.append(f"the engine on {name} could not be asked for the names it knows: {error}")
        registry = registry or snapshot(version)
        if registry:
            registries[name] = registry
        else:
            notes.append(f"names for {name} were not checked: there is no snapshot of sglang {version}")
    sources = {name: registry.source for name, registry in registries.items()}
    return Linted(lint(loaded, registries), sources, tuple(notes), unread(loaded, registries))


def lint(loaded: "LoadedProfile", registries: Mapping[str, Registry]) -> "tuple[Problem, ...]":
    """Every name and value that the engine would ignore or refuse. `registries` by the profile's host names.

    Workers of a host that is not in `registries` are left out.
    """
    found: dict[Problem, None] = {}
    for worker in loaded.profile.workers:
        if registry := registries.get(worker.spec.host):
            found |= dict.fromkeys(_lint_env(loaded.worker_env(worker), registry))
            found |= dict.fromkeys(_lint_flags(loaded.worker_args(worker), registry.engine_flags, "SGLang's server"))
    router = loaded.profile.router
    if router and (registry := registries.get(router.host)):
        found |= dict.fromkeys(_lint_env(loaded.router_env(), registry))
        found |= dict.fromkeys(_lint_flags(loaded.router_args(), registry.router_flags, "the router"))
    return tuple(found)


def unread(loaded: "LoadedProfile", registries: Mapping[str, Registry]) -> tuple[Finding, ...]:
    """KNOB_NOT_READ for each host where knobs of ours are set that our half of its engine does not read.

    This is told, and is no error as a misspelt name is: the name is right, and a profile that is written for a box
    states what it wants there before the kernel behind it is installed, and after. A knob that says what is the case
    without it is not told of.
    """
    findings: list[Finding] = []
    for host, registry in registries.items():
        users: dict[str, list[str]] = {}
        for worker in loaded.profile.workers:
            for name, valued in loaded.worker_env(worker).items() if worker.spec.host == host else ():
                knob = registry.env.get(name)
                if knob is not None and not knob.is_read and not _says_nothing_new(knob, valued.value):
                    users.setdefault(name, []).append(worker.name)
        if users:
            names = ", ".join(sorted(users))
            workers = ", ".join(dict.fromkeys(worker for own in users.values() for worker in own))
            findings.append(
                Finding(
                    "KNOB_NOT_READ",
                    Severity.WARNING,
                    f"{names} {'is' if len(users) == 1 else 'are'} set for {workers} on {host}, and nothing reads "
                    f"{'it' if len(users) == 1 else 'them'} there ({registry.source})",
                    "install a version of dsv4ctl whose half of the engine has what they switch on, or take them out",
                    {"host": host, "names": " ".join(sorted(users)), "source": registry.source},
                )
            )
    return tuple(findings)


def _says_nothing_new(knob: EnvKnob, value: str) -> bool:
    if knob.type == "bool":
        return value.lower() in _FALSE and (knob.default or "").lower() in _FALSE
    return value == knob.default


def _lint_env(env: "Mapping[str, Valued[str]]", registry: Registry) -> "Iterator[Problem]":
    from dsv4ctl.profile import Problem

    for name, valued in env.items():
        wrong = wrong_name(name, registry) or wrong_value(name, valued.value, registry)
        if wrong:
            yield Problem(valued.origin, valued.origin.key, wrong)


def wrong_name(name: str, registry: Registry) -> str | None:
    """Why the engine would not heed a variable of this name, and what to write instead; None when all is well."""
    knob = registry.env.get(name)
    if knob is not None:
        if knob.deprecated:
            return f"is deprecated in sglang {registry.version}: {knob.deprecated.rstrip('.')}"
        return None
    modern = name.replace("SGL_", "SGLANG_", 1)
    if name.startswith("SGL_") and modern in registry.env:
        return f"is an old spelling; write {modern}"
    if name.upper().startswith(LINTED_PREFIXES):
        guess = did_you_mean(name.upper(), registry.env)
        instead = f"did you mean {guess}?" if guess else f"take it out, or see {_ALL}"
        return f"is not known to sglang {registry.version} or to us, and would be silently ignored; {instead}"
    if name.startswith(_FOREIGN_PREFIXES):
        return None
    guess = within(name, (known for known in registry.env if known.startswith(LINTED_PREFIXES)), 2)
    return f"looks like a slip, and would be silently ignored; did you mean {guess}?" if guess else None


_ALL = "`python -m serving knobs`"


def wrong_value(name: str, value: str, registry: Registry) -> str | None:
    """Why the engine would not take this value (it would warn, and go on with its default), or a library below it would
    not; None when they would."""
    if name in _OF_LIBRARIES and (wrong := _OF_LIBRARIES[name](value)):
        return wrong
    knob = registry.env.get(name)
    check = _CHECKS.get(knob.type) if knob and knob.type else None
    if knob is None or check is None or check(value):
        return None
    default = f" ({knob.default})" if knob.default else ""
    return f'must be {_KINDS[str(knob.type)]}, not "{redact(name, value)}"; the engine would use its default{default}'


_P2P_LEVELS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "DIS")
# Others may be installed, so that only a slip in one of these is told.
_NIXL_BACKENDS = (
    "UCX",
    "UCX_MO",
    "LIBFABRIC",
    "Mooncake",
    "GDS",
    "GDS_MT",
    "POSIX",
    "HF3FS",
    "OBJ",
    "GPUNETIO",
    "UCCL",
)


def _wrong_p2p_level(value: str) -> str | None:
    if value in _P2P_LEVELS or value.isdigit():
        return None
    return f'must be one of {", ".join(_P2P_LEVELS)}, not "{value}", which NCCL would ignore'


def _wrong_nixl_backend(value: str) -> str | None:
    if value in _NIXL_BACKENDS:
        return None
    guess = within(value.upper(), (known.upper() for known in _NIXL_BACKENDS), 2 if len(value) > 2 else 0)
    meant = next((known for known in _NIXL_BACKENDS if known.upper() == guess), None)
    return f'must be a backend of NIXL as NIXL writes it, not "{value}"; did you mean {meant}?' if meant else None


_OF_LIBRARIES: Mapping[str, Callable[[str], str | None]] = {
    "NCCL_P2P_LEVEL": _wrong_p2p_level,
    "SGLANG_DISAGGREGATION_NIXL_BACKEND": _wrong_nixl_backend,
}


def _is_number(kind: type[int] | type[float], value: str) -> bool:
    try:
        kind(value)
    except ValueError:
        return False
    return True


def _is_json(value: str) -> bool:
    # The engine also takes the path of a file, which we cannot see from here.
    if not value.lstrip().startswith(("{", "[")):
        return True
    try:
        json.loads(value)
    except ValueError:
        return False
    return True


_CHECKS: Mapping[str, Callable[[str], bool]] = {
    "bool": lambda value: value.lower() in _TRUE_OR_FALSE,
    "int": lambda value: _is_number(int, value),
    "float": lambda value: _is_number(float, value),
    "json": _is_json,
}
_KINDS = {"bool": "true or false (1 or 0)", "int": "an integer", "float": "a number", "json": "JSON"}


def _lint_flags(args: "Mapping[str, Valued[ArgScalar]]", flags: Mapping[str, FlagKnob], of: str) -> "Iterator[Problem]":
    from dsv4ctl.profile import Problem

    for name, valued in args.items():
        if wrong := wrong_flag(name, valued.value, flags, of):
            yield Problem(valued.origin, valued.origin.key, wrong)


def wrong_flag(name: str, value: "ArgScalar", flags: Mapping[str, FlagKnob], of: str) -> str | None:
    """Why `of` would refuse this flag, this kind of value or this value; None when it would take it."""
    flag = flags.get(name)
    if flag is None:
        guess = _flag_guess(name, flags)
        return f"is not a flag of {of}" + (f"; did you mean {guess}?" if guess else "; take it out")
    if flag.kind == "switch" and not isinstance(value, bool):
        return "takes no value: write true, or false to leave it out"
    if flag.kind == "value" and value is True:
        return "takes a value, and true would leave it without one"
    if flag.kind == "value" and isinstance(value, tuple):
        return "takes one value, not a list"
    # A false leaves the flag out, and a true has it stand alone.
    values = value if isinstance(value, tuple) else () if isinstance(value, bool) else (value,)
    return next((wrong for each in values if (wrong := _wrong_value_of_flag(name, str(each), flag))), None)


_SHOWN_CHOICES = 8
# Shares of something, which the engine's parser takes any number for.
_SHARES = frozenset({"mem-fraction-static"})


def _wrong_value_of_flag(name: str, value: str, flag: FlagKnob) -> str | None:
    if flag.choices is not None and value not in flag.choices:
        if guess := did_you_mean(value, flag.choices):
            return f'cannot be "{value}"; did you mean "{guess}"?'
        more = f" and {len(flag.choices) - _SHOWN_CHOICES} more" if len(flag.choices) > _SHOWN_CHOICES else ""
        return f'cannot be "{value}"; it takes {", ".join(flag.choices[:_SHOWN_CHOICES])}{more}'
    if flag.type is not None and not _CHECKS[flag.type](value):
        return f'must be {_KINDS[flag.type]}, not "{value}"'
    if name in _SHARES and not 0 < float(value) < 1:
        return f"must be between 0 and 1, not {value}"
    return None


def _flag_guess(name: str, flags: Iterable[str]) -> str | None:
    dashed = name.replace("_", "-").lower()
    if dashed in flags:
        return dashed
    # argparse takes an unambiguous beginning for the flag, so people write them; here a flag is written whole.
    begun = sorted(flag for flag in flags if flag.startswith(dashed))
    return " or ".join(begun) if 0 < len(begun) <= _MAX_GUESSES else did_you_mean(dashed, flags)
