"""What was set stays set until somebody takes it out, and no secret of it is stored."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4ctl.errors import UsageError
from dsv4ctl.profile.overrides import parse_sets
from dsv4ctl.restart.layers import layered, of_role, redacted, refuse_router, restored

KEYS = st.sampled_from(["SGLANG_A", "decode.SGLANG_A", "args.tp", "prefill.args.tp", "SGLANG_B"])
SETS = st.lists(st.tuples(KEYS, st.sampled_from(["1", "2"])).map("=".join), max_size=6)


def test_a_role_is_a_target() -> None:
    assert of_role("decode:SGLANG_LOG_MS=1") == "decode.SGLANG_LOG_MS=1"
    assert of_role("decode-1:args.tp=2") == "decode-1.args.tp=2"
    for wrong in ("decode", "decode:X", ":X=1", "decode=1:X", "decode:=1"):
        with pytest.raises(UsageError, match="--role-set"):
            of_role(wrong)


def test_layers_add_up_and_a_key_is_in_them_once() -> None:
    assert layered(["SGLANG_A=1", "args.tp=2"], ["SGLANG_A=3"], []) == ("args.tp=2", "SGLANG_A=3")
    assert layered(["SGLANG_A=1"], [], ["SGLANG_A"]) == ("-SGLANG_A",)
    assert layered(["env.SGLANG_A=1"], ["SGLANG_A=2"], []) == ("SGLANG_A=2",)
    # What was taken out may be set again, and a value of the profile that was set is the profile's own again.
    assert layered(["-SGLANG_A"], ["SGLANG_A=2"], []) == ("SGLANG_A=2",)
    assert layered(["start_within_s=300"], [], ["start_within_s"]) == ()
    # A narrower key that was set before does not survive a wider one that is taken out.
    assert layered(["decode.SGLANG_A=1"], [], ["SGLANG_A"]) == ("decode.SGLANG_A=1", "-SGLANG_A")


def test_a_key_cannot_be_set_and_taken_out_at_once() -> None:
    with pytest.raises(UsageError, match="SGLANG_A cannot be set and taken out at once"):
        layered([], ["SGLANG_A=1"], ["env.SGLANG_A"])


@given(SETS, SETS, st.lists(KEYS, max_size=3, unique=True))
def test_saying_it_again_changes_nothing(kept: list[str], new: list[str], out: list[str]) -> None:
    out = [key for key in out if key not in {text.partition("=")[0] for text in new}]
    once = layered(kept, new, out)
    assert set(layered(once, new, out)) == set(once)
    overrides, patches = parse_sets(once)
    assert len(overrides) == len(once)
    assert patches == ()


def test_secrets_are_fingerprints_and_are_found_in_what_runs() -> None:
    sets = ("HF_TOKEN=abc", "decode.MY_API_KEY=xyz", "SGLANG_A=1", "-SGLANG_B")
    stored = redacted(sets)
    assert "abc" not in "".join(stored)
    assert stored[2:] == sets[2:]
    assert restored(stored, [{"HF_TOKEN": "other"}, {"HF_TOKEN": "abc", "MY_API_KEY": "xyz"}], []) == sets
    with pytest.raises(UsageError, match="HF_TOKEN was set before, and is a secret that nobody kept"):
        restored(stored, [{"HF_TOKEN": "other"}], [])
    # Set anew it is no fingerprint, and nobody has to have kept it.
    assert restored(layered(stored, ["HF_TOKEN=new"], ["decode.MY_API_KEY"]), [], [])[-2] == "HF_TOKEN=new"


@pytest.mark.parametrize(
    "text", ["args.max-total-tokens=9", "decode.args.num-reserved-decode-tokens=9", "canary.large_tokens=9"]
)
def test_what_only_sounds_like_a_secret_is_stored_as_it_is(text: str) -> None:
    assert redacted([text]) == (text,)
    assert restored([text], [], []) == (text,)


@pytest.mark.parametrize("value", ["sk-1", '"sk-1"'])
@pytest.mark.parametrize("argv", [("python", "--api-key", "sk-1"), ("python", "--api-key=sk-1")])
def test_a_secret_flag_is_found_in_the_command_that_runs(value: str, argv: tuple[str, ...]) -> None:
    stored = redacted([f"args.api-key={value}"])
    assert "sk-1" not in stored[0]
    assert restored(stored, [], [argv]) == ("args.api-key=sk-1",)


@pytest.mark.parametrize(
    "text", ["env.HTTP_PROXY=http://u:hunter22@p", 'args.proxy="http://u:hunter22@p"', "model.path=http://u:hunter22@p"]
)
def test_the_password_of_a_url_is_not_stored_and_is_found_in_what_runs(text: str) -> None:
    stored = redacted([text])
    assert "hunter22" not in stored[0]
    assert "http://u:<redacted" in stored[0]
    url = "http://u:hunter22@p"
    (found,) = restored(stored, [{"HTTP_PROXY": url}], [("python", f"--proxy={url}", "--model-path", url)])
    assert found == text.replace('"', "")
    with pytest.raises(UsageError, match="is a secret that nobody kept"):
        restored(stored, [{"HTTP_PROXY": "http://u:other@p"}], [])


def test_a_role_that_was_forgotten_does_not_show_the_secret() -> None:
    with pytest.raises(UsageError) as caught:
        of_role("HF_TOKEN=hf_abc")
    assert "hf_abc" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["router.port=31001", of_role("router:args.policy=random"), "router.env.RUST_LOG=debug"]
)
def test_what_is_the_routers_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is a setting of the router"):
        refuse_router(["SGLANG_LOG_MS=1", text])
    refuse_router(["SGLANG_ROUTER=1", "prefill.args.tp=2", "policy=router.x"])
