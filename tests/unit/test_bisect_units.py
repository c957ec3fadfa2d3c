"""Two environments are taken apart into units, and put together from them again."""

from hypothesis import given
from hypothesis import strategies as st

from dsv4ctl.bisect.units import Kind, Place, Setting, Side, difference, mixed

VARIABLES = ("decode", Kind.VARIABLE)
SIDES = st.dictionaries(
    st.tuples(st.sampled_from(["prefill", "decode"]), st.sampled_from(Kind)),
    st.dictionaries(st.sampled_from("ABCD"), st.sampled_from(["", "0", "1"])),
).map(Side)
TOGETHER = st.lists(st.frozensets(st.sampled_from("ABCD"), max_size=3), max_size=2)


def everything(_: Place) -> bool:
    return True


def values(side: Side) -> dict[Place, str | None]:
    return {place: side.get(place) for place in side.places()}


@given(SIDES, SIDES, TOGETHER)
def test_all_units_make_the_bad_side_and_none_the_good_one(
    good: Side, bad: Side, together: list[frozenset[str]]
) -> None:
    units = difference(good, bad, is_read=everything, together=together).units
    assert values(mixed(good, units)) == values(bad)
    assert values(mixed(good, ())) == values(good)
    assert len({unit.name for unit in units}) == len(units)


def test_absent_empty_and_set_are_three_values() -> None:
    good = Side({VARIABLES: {"EMPTY": "", "GONE": "", "SAME": "1"}})
    bad = Side({VARIABLES: {"EMPTY": "1", "NEW": "", "SAME": "1"}})
    units = difference(good, bad, is_read=everything).units
    assert [(unit.name, unit.settings[0].good, unit.settings[0].bad) for unit in units] == [
        ("decode:EMPTY", "", "1"),
        ("decode:GONE", "", None),
        ("decode:NEW", None, ""),
    ]
    assert mixed(good, units[1:]).values[VARIABLES] == {"EMPTY": "", "NEW": "", "SAME": "1"}


def test_a_child_travels_with_its_parent_within_its_role() -> None:
    good = Side({})
    bad = Side({(role, Kind.VARIABLE): {"CHILD": "8", "OTHER": "1", "PARENT": "1"} for role in ("decode", "prefill")})
    together = [frozenset({"PARENT", "CHILD"}), frozenset({"CHILD", "ABSENT"})]
    units = difference(good, bad, is_read=everything, together=together).units
    assert [unit.name for unit in units] == ["decode:CHILD+1", "decode:OTHER", "prefill:CHILD+1", "prefill:OTHER"]


def test_what_nothing_reads_is_no_unit() -> None:
    bad = Side({VARIABLES: {"READ": "1", "UNREAD": "1"}, ("decode", Kind.ARGUMENT): {"page-size": "64"}})
    found = difference(Side({}), bad, is_read=lambda place: place.name != "UNREAD")
    assert [unit.name for unit in found.units] == ["decode:--page-size", "decode:READ"]
    assert found.unread == (Setting(Place("decode", Kind.VARIABLE, "UNREAD"), None, "1"),)
