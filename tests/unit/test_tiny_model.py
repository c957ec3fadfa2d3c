"""The tiny model: its network computes what its definition says, and its directory is whole or not there."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from serving.cpu.tiny_model import VARIANTS, TinyModelError, Variant, expected_answer, next_token, write_model
from serving.cpu.tiny_model.contents import SENTENCE
from serving.cpu.tiny_model.tokens import codebook, products

pytestmark = pytest.mark.timeout(600)

NEVER_UTF8 = 0xF5


def test_code_words_differ_in_six_places_or_more() -> None:
    assert codebook().shape == (256, 16)
    assert sorted(np.unique(products())) == [-16, -4, 0, 4, 16]
    assert (np.sum(products() == 16, axis=0) == 1).all()


def test_it_continues_a_phrase_as_the_text_did_before() -> None:
    prompt = b"The code word is: PELICAN. Some other things are said here. The code word is:"
    assert expected_answer(prompt, 9) == b" PELICAN."


def test_the_majority_decides_and_a_tie_goes_to_the_smaller_byte() -> None:
    assert expected_answer(b"abcdef1 abcdef2 abcdef2 abcdef", 1) == b"2"
    assert expected_answer(b"abcdef2 abcdef1 abcdef", 1) == b"1"


@seed(20240607)
@settings(max_examples=100, deadline=None)
@given(prompt=st.binary(min_size=1, max_size=60), junk=st.binary(max_size=60))
def test_an_exact_repetition_wins_over_everything_before_it(prompt: bytes, junk: bytes) -> None:
    mark = bytes(range(0xF5, 0xFB))
    answer = expected_answer(junk.translate(None, mark) + mark + prompt + junk.translate(None, mark) + mark, 1)
    assert answer == prompt[:1].replace(b"\xff", b"")


# --- the network ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=sorted(VARIANTS))
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("models") / request.param
    assert write_model(path, VARIANTS[request.param])
    return path


def texts() -> list[bytes]:
    """Prompts with and without anything to match, up to 8,000 tokens; the second is the same byte over and over."""
    rng = np.random.default_rng(3)
    words = [bytes(rng.integers(97, 123, rng.integers(2, 8)).astype(np.uint8)) for _ in range(200)]
    prose = b" ".join(words[i] for i in rng.integers(0, len(words), 2000))
    noise = bytes(rng.integers(0, 256, 3000).astype(np.uint8))
    return [b"a", b"a" * 40, b"ab" * 300, b"hello", prose[:77], prose[:1000], prose[:8000], noise[:200], noise]


def test_the_network_computes_the_definition(directory: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory).eval()
    assert model.dtype == torch.float32
    rng = np.random.default_rng(4)
    for text in texts():
        tokens = np.frombuffer(text, np.uint8).astype(np.int64)
        with torch.inference_mode():
            logits = model(torch.from_numpy(tokens[None])).logits[0]
        places = {len(text) - 1, *rng.integers(0, len(text), 60).tolist()}
        for place in sorted(places):
            best = logits[place].topk(2)
            assert int(best.indices[0]) == next_token(tokens[: place + 1]), (text[:20], place)
            # One step of the tie-break is 0.00035; float32 errors are a hundredth of that.
            assert best.values[0] - best.values[1] > 0.0003, (text[:20], place)


def test_a_clear_answer_is_clear_by_far(directory: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory).eval()
    tokens = np.frombuffer(b"The code word is: PELICAN." + bytes(range(32, 97)) * 40 + b"The code word is:", np.uint8)
    with torch.inference_mode():
        best = model(torch.from_numpy(tokens[None].astype(np.int64))).logits[0, -1].topk(2)
    assert bytes([int(best.indices[0])]) == b" "
    assert best.values[0] - best.values[1] > 10


# --- the tokenizer --------------------------------------------------------------------------------------------------


def test_a_token_is_a_byte(directory: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(directory)
    text = "héllo wörld\n\x00 日本 🙂"
    assert tokenizer(text)["input_ids"] == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text
    assert tokenizer("a<|end|>")["input_ids"] == [0x61, 0xFF]


def chat(directory: Path, *contents: str) -> bytes:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(directory)
    messages = [{"role": "user", "content": content} for content in contents]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    return bytes(ids)


@pytest.mark.parametrize("content", ["hello", "Who are you?", "What is 1 + 1?\nPlease think.", "日本"])
def test_a_chat_gets_one_sensible_sentence(directory: Path, content: str) -> None:
    assert expected_answer(chat(directory, content), 200) == SENTENCE.encode()


def test_a_message_that_ends_with_a_colon_is_continued(directory: Path) -> None:
    assert chat(directory, "The sky is: blue.", "The sky is:") == b"The sky is: blue.\nThe sky is:"
    assert expected_answer(chat(directory, "The sky is: blue.", "The sky is:"), 6) == b" blue."


# --- the directory --------------------------------------------------------------------------------------------------

TINY = VARIANTS["tiny"]


def test_the_sizes_of_kv() -> None:
    assert {name: variant.kv_bytes_per_token for name, variant in VARIANTS.items()} == {
        "tiny": 4096,
        "kv-heavy": 16384,
    }


def test_a_complete_model_is_left_alone(tmp_path: Path) -> None:
    model = tmp_path / "deep" / "model"
    assert write_model(model, TINY)
    written = {file.name: file.stat().st_mtime_ns for file in model.iterdir()}
    assert not write_model(model, TINY)
    assert {file.name: file.stat().st_mtime_ns for file in model.iterdir()} == written
    assert list(model.parent.iterdir()) == [model]


@pytest.mark.parametrize("damage", ["missing", "shorter", "changed", "variant"])
def test_a_damaged_model_is_made_anew(tmp_path: Path, damage: str) -> None:
    model = tmp_path / "model"
    write_model(model, TINY)
    weights = model / "model.safetensors"
    whole = weights.read_bytes()
    variant: Variant = TINY
    match damage:
        case "missing":
            weights.unlink()
        case "shorter":
            weights.write_bytes(whole[:-1])
        case "changed":
            weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        case _:
            variant = VARIANTS["kv-heavy"]
    assert write_model(model, variant)
    assert not write_model(model, variant)
    assert list(tmp_path.iterdir()) == [model]


def test_a_directory_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(TinyModelError, match=r"thesis\.tex"):
        write_model(tmp_path, TINY)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(TinyModelError, match="is a file"):
        write_model(tmp_path / "thesis.tex", TINY)
