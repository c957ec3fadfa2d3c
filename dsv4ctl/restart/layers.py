"""What was set on top of the profile, from one start to the next: a restart keeps it until somebody takes it out."""

from collections.abc import Iterable, Mapping, Sequence

from dsv4ctl.errors import UsageError
from dsv4ctl.profile.overrides import is_override, taken_out
from dsv4ctl.profile.schema import ROUTER
from dsv4ctl.redaction import fingerprint, has_fingerprint, redact_text
from dsv4ctl.secret_names import is_secret, is_secret_flag

Sets = tuple[str, ...]
"""The texts that `overrides.parse_sets` reads, in their order."""

_QUOTES = "\"'"


def of_role(text: str) -> str:
    """The `--set` text of a `--role-set decode:K=V`.

    Raises:
        UsageError: it has no role, or no value.
    """
    role, colon, rest = text.partition(":")
    key, equals, _ = rest.partition("=")
    if not colon or not equals or not role or not key or "=" in role:
        # Without its value, which may be a secret.
        shown = text.partition("=")[0]
        raise UsageError(f"--role-set {shown}: must be ROLE:KEY=VALUE", hint="e.g. --role-set decode:SGLANG_LOG_MS=1")
    return f"{role}.{rest}"


def refuse_router(sets: Iterable[str]) -> None:
    """A restart leaves the router as it is, and would end the engines for a setting that they do not have.

    Raises:
        UsageError: one of these texts is a setting of the router.
    """
    for key in map(_key, sets):
        if key.partition(".")[0] == ROUTER:
            raise UsageError(
                f"{key} is a setting of the router, which a restart of prefill and decode leaves as it is",
                hint="`dsv4ctl stop` and `dsv4ctl serve` start the router anew",
            )


def layered(kept: Sequence[str], sets: Iterable[str], unsets: Iterable[str]) -> Sets:
    """What was set before, then what is set now, then what is taken out. What is said again is in it once.

    Raises:
        UsageError: one key is set and taken out at once.
    """
    new, out = list(sets), list(unsets)
    both = {_key(text) for text in new} & {_key(key) for key in out}
    if both:
        raise UsageError(f"{', '.join(sorted(both))} cannot be set and taken out at once")
    before = {_key(text): text for text in kept}
    # A value of the profile that was set before is the profile's own again; a variable or a flag may be in the profile.
    out = [key for key in out if before.pop(_key(key), None) is None or is_override(key)]
    layers: dict[str, str] = {}
    for text in (*before.values(), *new, *map(taken_out, out)):
        # The last one goes to the end: it beats a wider key that came between.
        layers.pop(_key(text), None)
        layers[_key(text)] = text
    return tuple(layers.values())


def redacted(sets: Iterable[str]) -> Sets:
    """The layers as they may be stored: secrets are fingerprints."""
    return tuple(_redacted(text) for text in sets)


def restored(sets: Iterable[str], environs: Iterable[Mapping[str, str]], argvs: Iterable[Sequence[str]]) -> Sets:
    """The layers with their secrets, which are found by their fingerprints in what runs: environments and commands.

    Raises:
        UsageError: one is not there; it has to be set again.
    """
    values = [value for environ in environs for value in environ.values()]
    values += [part for argv in argvs for word in argv for part in (word, word.partition("=")[2])]
    known = {shown: value for value in values for shown in (fingerprint(value), redact_text(value))}
    return tuple(_restored(text, known) for text in sets)


def _key(text: str) -> str:
    key = text.partition("=")[0] if "=" in text else text.removeprefix(taken_out(""))
    target, dot, name = key.rpartition("env.")
    return f"{target}{name}" if dot else key


def _redacted(text: str) -> str:
    key, equals, value = text.partition("=")
    # A flag's value may stand in quotes, which it has not in a command line.
    bare = value.strip(_QUOTES)
    if equals and bare and _holds_secret(key):
        return f"{key}={fingerprint(bare)}"
    return f"{key}{equals}{redact_text(value)}"


def _restored(text: str, known: Mapping[str, str]) -> str:
    key, equals, stored = text.partition("=")
    if not equals or not has_fingerprint(stored):
        return text
    for shown in (stored, stored.strip(_QUOTES)):
        if shown in known:
            return f"{key}={known[shown]}"
    raise UsageError(
        f"{key} was set before, and is a secret that nobody kept",
        why="no engine that has it is running",
        hint=f"set it again (--set {key}=...), or take it out (--unset {key})",
    )


def _holds_secret(key: str) -> bool:
    """Whether what is set under this key is a secret: that of a variable or a flag may be, a profile's other values
    are none."""
    if not is_override(key):
        return False
    return is_secret_flag(_name(key)) if "args." in key else is_secret(_name(key))


def _name(key: str) -> str:
    return key.rpartition(".")[2]
