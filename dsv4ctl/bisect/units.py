"""What two environments differ in, as units that can be taken from one side or the other."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

Settings = Mapping[str, str]
"""Values by name. A name that is not there is absent, which is neither empty nor any other value."""


class Kind(StrEnum):
    """How a setting reaches its worker."""

    VARIABLE = "variable"
    ARGUMENT = "argument"


@dataclass(frozen=True, order=True)
class Place:
    """Where a setting is set: `role` is that of the workers that get it."""

    role: str
    kind: Kind
    name: str

    def __str__(self) -> str:
        return f"{self.role}:{'--' if self.kind is Kind.ARGUMENT else ''}{self.name}"


@dataclass(frozen=True)
class Setting:
    """One that differs: its value on either side, None where it is absent."""

    place: Place
    good: str | None
    bad: str | None


@dataclass(frozen=True)
class Unit:
    """Settings that are taken from the bad side together or not at all, by the name of the first of them."""

    settings: tuple[Setting, ...]

    @property
    def name(self) -> str:
        """`decode:NAME` or `decode:--name`, with `+n` where n more travel with it."""
        more = f"+{len(self.settings) - 1}" if len(self.settings) > 1 else ""
        return f"{self.settings[0].place}{more}"


@dataclass(frozen=True)
class Side:
    """An environment: the settings of each role, by kind."""

    values: Mapping[tuple[str, Kind], Settings]

    def get(self, place: Place) -> str | None:
        """The value there; None where it is absent."""
        return self.values.get((place.role, place.kind), {}).get(place.name)

    def places(self) -> set[Place]:
        """All that is set."""
        return {Place(role, kind, name) for (role, kind), settings in self.values.items() for name in settings}


@dataclass(frozen=True)
class Difference:
    """`units`, by name; `unread`: settings that differ and that nothing reads, so that they cannot matter."""

    units: tuple[Unit, ...]
    unread: tuple[Setting, ...]


def difference(
    good: Side, bad: Side, *, is_read: Callable[[Place], bool], together: Iterable[frozenset[str]] = ()
) -> Difference:
    """What the sides differ in. `together` are names that only make sense with each other, such as a switch and what it
    switches on: those of one role that differ are one unit. Groups that share a name are one group."""
    differing = [
        Setting(place, good.get(place), bad.get(place))
        for place in sorted(good.places() | bad.places())
        if good.get(place) != bad.get(place)
    ]
    groups = _joined(together)
    units: dict[tuple[str, frozenset[str]], list[Setting]] = {}
    for setting in differing:
        if is_read(setting.place):
            name = setting.place.name
            group = next((group for group in groups if name in group), frozenset({f"{setting.place.kind}:{name}"}))
            units.setdefault((setting.place.role, group), []).append(setting)
    return Difference(
        tuple(sorted((Unit(tuple(settings)) for settings in units.values()), key=lambda unit: unit.name)),
        tuple(setting for setting in differing if not is_read(setting.place)),
    )


def _joined(groups: Iterable[frozenset[str]]) -> list[frozenset[str]]:
    joined: list[frozenset[str]] = []
    for group in groups:
        touching = [other for other in joined if other & group]
        joined = [other for other in joined if not other & group]
        joined.append(group.union(*touching))
    return joined


def mixed(good: Side, units: Iterable[Unit]) -> Side:
    """The good side with these units taken from the bad one."""
    values = {key: dict(settings) for key, settings in good.values.items()}
    for unit in units:
        for setting in unit.settings:
            at = values.setdefault((setting.place.role, setting.place.kind), {})
            if setting.bad is None:
                at.pop(setting.place.name, None)
            else:
                at[setting.place.name] = setting.bad
    return Side(values)
