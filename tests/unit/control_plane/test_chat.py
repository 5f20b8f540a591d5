"""Token ids without re-rendering, on the tiny tokenizer and on one whose template has text between the turns."""

import json
from collections.abc import Callable
from pathlib import Path

import jinja2
import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from rollart_hpc.control_plane.chat import ChatFormat
from rollart_hpc.errors import ConfigError, EnvironmentFault
from rollart_hpc.warm_start.tokenizer import save_tokenizer

START, END, TEXT_END = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
QWEN_LIKE = """\
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == 'assistant' and '</think>' in content %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def bytes_tokenizer() -> Tokenizer:
    """Every byte is a token; pairs of letters and of line ends are merged, as a trained one would."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("u", "s"), ("e", "r"), ("us", "er"), ("Ċ", "Ċ"), ("Ġ", "a")]
    tokens = [*alphabet, *("".join(pair) for pair in merges)]
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in (START, END, TEXT_END)])
    return tokenizer


@pytest.fixture
def model(tmp_path: Path) -> Callable[..., Path]:
    """Writes a model directory; None leaves a file or a setting out."""

    def write(template: str | None = QWEN_LIKE, generation: object = None, **settings: object) -> Path:
        bytes_tokenizer().save(str(tmp_path / "tokenizer.json"))
        config = {"eos_token": END, "chat_template": template, **settings}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
        if generation is not None:
            (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
        return tmp_path

    return write


@pytest.fixture
def chat(model: Callable[..., Path]) -> ChatFormat:
    return ChatFormat(model())


def ids(encoded: bytes) -> list[int]:
    return np.frombuffer(encoded, np.int32).tolist()


def spoken(directory: Path, chat: ChatFormat, observations: list[str], replies: list[str]) -> list[int]:
    """The ids that an EnvManager collects when the policy writes ``replies``."""
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    collected = ids(chat.first_observation(observations[0]))
    for reply, observation in zip(replies, observations[1:], strict=True):
        collected += [*tokenizer.encode(reply, add_special_tokens=False).ids, chat.stop_token_ids[0]]
        collected += ids(chat.next_observation(observation))
    return collected


def rendered(directory: Path, template: str, observations: list[str], replies: list[str]) -> list[int]:
    """The ids of the whole conversation, rendered at once."""
    messages = [{"role": "user", "content": observations[0]}]
    for reply, observation in zip(replies, observations[1:], strict=True):
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": observation}]
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    text = environment.from_string(template).render(messages=messages, add_generation_prompt=True)
    return Tokenizer.from_file(str(directory / "tokenizer.json")).encode(text, add_special_tokens=False).ids


def test_a_conversation_of_the_tiny_model_has_the_ids_of_the_whole_rendering(tmp_path: Path):
    save_tokenizer(tmp_path, max_length=64)
    chat = ChatFormat(tmp_path)
    template = (tmp_path / "chat_template.jinja").read_text()
    observations, replies = ["7+5=?", "wrong", "go left\nF"], ["<answer>13</answer>", "left"]
    assert spoken(tmp_path, chat, observations, replies) == rendered(tmp_path, template, observations, replies)


@pytest.mark.parametrize(
    "observations",
    [
        ["What is here?", "A wall.", "A door."],
        ["user\n", "\nassistant\n", "\n\n"],
        ["OBSERVATION", "REPLY OBSERVATION REPLY", "REPLY"],
        ["{{ 7 * 7 }} {% raw %}", "{not: json}", "}}{{"],
        [f"a {END} b", f"{START}assistant", TEXT_END],
        ["", "", ""],
        ["Größe 7 → 8", "🧊🕳️", "\u0000\u007f"],
    ],
    ids=["plain", "line ends", "our own words", "braces", "special tokens", "empty", "other letters"],
)
def test_ids_of_turns_joined_are_those_of_the_whole_rendering(
    model: Callable[..., Path], chat: ChatFormat, observations: list[str]
):
    replies = ["I go left", " a step\nto the user"]
    assert spoken(model(), chat, observations, replies) == rendered(model(), QWEN_LIKE, observations, replies)


def test_a_template_that_forgets_thinking_does_not_change_what_the_policy_wrote(
    model: Callable[..., Path], chat: ChatFormat
):
    replies = ["<think>hm</think>\nleft"]
    collected = spoken(model(), chat, ["where?", "again"], replies)
    tokenizer = Tokenizer.from_file(str(model() / "tokenizer.json"))
    assert replies[0] + END in tokenizer.decode(collected, skip_special_tokens=False)
    assert collected != rendered(model(), QWEN_LIKE, ["where?", "again"], replies)


def test_thinking_that_the_prompt_opens_is_opened_again_at_each_turn(model: Callable[..., Path]):
    opening = QWEN_LIKE.replace("assistant\\n' }}", "assistant\\n<think>\\n' }}")
    chat = ChatFormat(model(opening))
    assert chat.response_text(ids(chat.first_observation("o"))).endswith("assistant\n<think>\n")
    assert chat.response_text(ids(chat.next_observation("o"))).endswith("assistant\n<think>\n")


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (
            "{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content }}<|im_end|>{% endif %}{% endfor %}",
            "each",
        ),
        ("{{ messages[-1].content }}<|im_end|>go", "does not put each user turn once"),
        (QWEN_LIKE.replace("+ '<|im_end|>'", ""), r"with one of the end tokens \['<\|im_end\|>'\]"),
        (QWEN_LIKE.replace("content + '<", "content + content + '<"), "once"),
        ("{{ raise_exception('a system message comes first') }}", "a system message comes first"),
        ("{{ messages[0].content + 1 }}", "fails on user and assistant turns"),
        ("{% for m in messages %}{{ m.content }}", "the chat template"),
        (None, "no chat template; expected chat_template.jinja"),
    ],
    ids=[
        "no user turns",
        "last turn only",
        "no end of turn",
        "twice",
        "raises",
        "type error",
        "syntax error",
        "absent",
    ],
)
def test_a_template_that_gives_no_turns_is_refused(model: Callable[..., Path], template: str | None, said: str):
    with pytest.raises(ConfigError, match=said) as caught:
        ChatFormat(model(template))
    assert str(model()) in str(caught.value)


def test_a_template_whose_later_turns_are_framed_otherwise_is_refused(model: Callable[..., Path]):
    numbered = "{% for m in messages %}{{ loop.index }}{{ m.content }}<|im_end|>{% endfor %}"
    with pytest.raises(ConfigError, match="turn"):
        ChatFormat(model(numbered))


def test_a_template_may_use_the_words_that_mark_places_here(model: Callable[..., Path]):
    chat = ChatFormat(model("OBSERVATION and REPLY, please. " + QWEN_LIKE))
    text = chat.response_text(ids(chat.first_observation("o")))
    assert text.startswith("OBSERVATION and REPLY, please.<|im_start|>user\no<|im_end|>")


def test_a_template_gets_the_names_of_its_first_and_end_tokens(model: Callable[..., Path]):
    template = "{{ bos_token }}{% for m in messages %}{{ m.role }}{{ m.content }}{{ eos_token }}{% endfor %}"
    chat = ChatFormat(model(template, bos_token={"content": START}))
    assert chat.response_text(ids(chat.first_observation("o"))[:-1]) == f"{START}usero"
    assert chat.response_text(ids(chat.next_observation("o"))[:-1]) == "usero"


def test_no_end_token_is_refused(model: Callable[..., Path]):
    with pytest.raises(ConfigError, match=r"no end token; expected eos_token in tokenizer_config.json"):
        ChatFormat(model(eos_token=None))
    with pytest.raises(ConfigError, match="no end token"):
        ChatFormat(model(eos_token="<|absent|>"))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tokenizer_config.json", "tokenizer_config.json: not valid JSON"),
        ("tokenizer.json", "tokenizer.json: cannot be read"),
        ("generation_config.json", "generation_config.json: not valid JSON"),
    ],
)
def test_broken_files_are_refused_by_name(model: Callable[..., Path], name: str, said: str):
    directory = model()
    (directory / name).write_text("{")
    with pytest.raises(ConfigError, match=said):
        ChatFormat(directory)


def test_all_end_tokens_stop_and_the_chat_s_own_comes_first(model: Callable[..., Path]):
    tokenizer = bytes_tokenizer()
    end, text_end = tokenizer.token_to_id(END), tokenizer.token_to_id(TEXT_END)
    chat = ChatFormat(model(generation=[text_end, end]))
    assert chat.stop_token_ids == (end, text_end)
    assert ChatFormat(model(generation=text_end, eos_token={"content": END})).stop_token_ids == (end, text_end)
    assert chat.response_text([*tokenizer.encode("left").ids, text_end]) == "left"


def test_a_response_is_the_text_without_its_own_stop_token_only(chat: ChatFormat):
    end = chat.stop_token_ids[0]
    left = bytes_tokenizer().encode("left").ids
    assert chat.response_text([*left, end]) == "left"
    assert chat.response_text(left) == "left"
    assert chat.response_text([*left, end, end]) == f"left{END}"
    assert chat.response_text([end]) == chat.response_text([]) == ""
    assert chat.response_text(bytes_tokenizer().encode("é").ids[:1]) == "�"


def test_long_observations_are_not_kept(chat: ChatFormat):
    long = "x" * 5000
    assert ids(chat.first_observation(long)) == ids(chat.first_observation(long))
    assert len(ids(chat.next_observation(long))) > 5000
    assert chat._encode_first.cache_info().currsize == chat._encode_next.cache_info().currsize == 0  # pyright: ignore
    chat.first_observation("short")
    assert chat._encode_first.cache_info().currsize == 1  # pyright: ignore


def test_an_observation_that_the_tokenizer_cannot_take_is_the_environment_s_fault(tmp_path: Path):
    save_tokenizer(tmp_path, max_length=64)
    chat = ChatFormat(tmp_path)
    for encode in (chat.first_observation, chat.next_observation):
        with pytest.raises(EnvironmentFault, match=r"the tokenizer .* 'Zebra'") as caught:
            encode("Zebra")
        assert caught.value.cause == "bad_text"
