"""Which passages tell the user's language, which script they are in, and whether a narrative is in it."""

from __future__ import annotations

import pytest

from proxy.core import language
from proxy.core.conversation import Message
from proxy.core.fence import SECTIONS
from tests.core.histories import PICTURE, model, system, user
from tests.data import conversations

SPOKEN = {
    "zh": "han",
    "zh-TW": "han",
    "ja": "japanese",
    "ko": "hangul",
    "ru": "cyrillic",
    "de": "latin",
    "fr": "latin",
    "pt": "latin",
    "it": "latin",
    "id": "latin",
    "sv": "latin",
    "cs": "latin",
    "vi": "latin",
}
"""Every language but English of the recorded conversations, with its script."""


FILES = ("crosswoz", "cursor-pt", "languages", "llama-factory", "mt-bench", "virtual-stories", "xpersona")


def recorded(lang: str) -> list[tuple[str, tuple[Message, ...]]]:
    """The recorded conversations in `lang`, texts only."""
    made = {"user": user, "assistant": model, "system": system}
    found = []
    for conversation in conversations(*FILES):
        if conversation.row["lang"] == lang:
            texts = [(each["role"], each.get("content")) for each in conversation.messages]
            said = [(role, text) for role, text in texts if role in made and isinstance(text, str) and text.strip()]
            found.append((conversation.id, tuple(made[role](text) for role, text in said)))
    return found


def notes(messages: tuple[Message, ...]) -> str:
    """A narrative as a model might write it: English titles, lines in the words of the conversation's own answers, and
    among them code, paths and quotations in English."""
    answers = [item.text.replace("\n", " ")[:200] for item in messages if item.role == "assistant"]
    filler = '- `make test` in src/app/main.py: "the quick brown fox jumps over the lazy dog", https://example.com/a'
    lines = [f"## {title}\n- {answers[place % len(answers)]}\n{filler}" for place, title in enumerate(SECTIONS)]
    return "\n\n".join(lines)


@pytest.mark.data
@pytest.mark.parametrize("lang", SPOKEN)
def test_the_script_of_each_recorded_language_is_told_and_held(lang: str) -> None:
    found = recorded(lang)
    assert found
    for name, messages in found:
        passages = language.sample(messages)
        allowed = language.scripts(passages)
        assert 0 < len(passages) <= 8, name
        # Some practise a foreign language: then both are theirs.
        assert SPOKEN[lang] in allowed and set(allowed) <= {SPOKEN[lang], "latin"}, name
        assert language.written_in(notes(messages), allowed), name


@pytest.mark.data
@pytest.mark.parametrize("lang", SPOKEN)
def test_a_narrative_in_the_script_of_another_language_is_not_taken(lang: str) -> None:
    others = {other: recorded(other)[0][1] for other in ("zh", "ja", "ko", "ru", "de") if SPOKEN[other] != SPOKEN[lang]}
    for name, messages in recorded(lang):
        allowed = language.scripts(language.sample(messages))
        if allowed == (SPOKEN[lang],):
            for other, foreign in others.items():
                assert not language.written_in(notes(foreign), allowed), (name, other)


def test_what_is_no_passage_is_left_out() -> None:
    messages = (
        system("Be brief and answer in English please."),
        user("Bitte bau das Wehr fertig."),
        model("Ja, das mache ich."),
        user("/compact keep the paths of everything"),
        model("Conversation compacted: turn 1, 9,000 -> 900 tokens."),
        user("/run scripts/pip-compile.sh --upgrade now"),
        user("<system-reminder>Remember to be very careful here.</system-reminder>"),
        user("This session is being continued from a previous conversation that ran out of context."),
        user("ja bitte"),
        user("/home/ann/wehr.txt ist jetzt fertig, oder?"),
        user("", PICTURE),
        user("```\nthe quick brown fox jumps over\n```"),
    )
    assert language.sample(messages) == ("Bitte bau das Wehr fertig.", "/home/ann/wehr.txt ist jetzt fertig, oder?")
    assert language.sample(messages, frozenset({1})) == ("/home/ann/wehr.txt ist jetzt fertig, oder?",)
    assert language.sample(()) == ()


def test_the_latest_eight_are_taken_in_order_and_long_ones_are_cut_at_a_word() -> None:
    messages = tuple(user(f"this is passage number {number} " + "and more " * 60) for number in range(20))
    passages = language.sample(messages)
    assert [passage.split()[4] for passage in passages] == [str(number) for number in range(12, 20)]
    assert all(len(passage) <= 244 and passage.endswith(("and ...", "more ...")) for passage in passages)


@pytest.mark.parametrize(
    ("text", "enough"),
    [
        ("ok", False),
        ("go on", False),
        ("yes please do", True),
        ("src/a.py tests/b.py src/c.py", True),
        ("1 2 3 4 5", False),
        ("你好", False),
        ("谢谢你", False),
        ("继续", False),
        ("帮我找一个酒店", True),
        ("从东京到悉尼呢？", True),
        ("はい", False),
        ("ありがとう", False),
        ("もう一度テストを実行してください", True),
        ("ครับ", False),
        ("ขอบคุณ", False),
        ("ช่วยแก้โค้ดในไฟล์นี้ให้หน่อย", True),
        ("다시 해줘", False),
        ("이 파일을 다시 고쳐줘", True),
        ("да конечно", False),
        ("исправь все тесты", True),
        ("कृपया इसे ठीक करें", True),
        ("", False),
    ],
)
def test_three_words_are_counted_in_every_script(text: str, enough: bool) -> None:
    assert (language.words(text) >= language.LEAST_WORDS) is enough


@pytest.mark.parametrize(
    ("letters", "script"),
    [
        ("aZéÿĀẞ", "latin"),
        ("αΩἀ", "greek"),
        ("яЁ", "cyrillic"),
        ("אב", "hebrew"),
        ("سپ", "arabic"),
        ("कि", "devanagari"),
        ("ไทย", "thai"),
        ("漢字々", "han"),
        ("かカｶ", "kana"),
        ("한ㅎ", "hangul"),
        ("ქა", "georgian"),
        ("አ", "ethiopic"),
        (" 1.-!—“😀\u0301", ""),
    ],
)
def test_each_letter_has_its_script(letters: str, script: str) -> None:
    assert {language.script_of(letter) for letter in letters} == {script}


def test_chinese_is_told_from_japanese() -> None:
    assert language.shares("今天天气很好")[0][0] == "han"
    assert language.shares("今日は天気がいいですね")[0][0] == "japanese"
    assert (
        language.shares("他们喜欢ラーメン吗？我们今天晚上去吃吧，然后一起去看电影，大家都说那部电影非常好看，值得一看")[
            0
        ][0]
        == "han"
    )


def test_what_is_copied_is_no_language() -> None:
    russian = ("Исправь, пожалуйста, все тесты.",)
    allowed = language.scripts(russian)
    assert allowed == ("cyrillic",)
    quoted = "## Facts\n" + "\n".join(
        [
            'Пользователь сказал: "please never push to the main branch without asking me first".',
            "`git push --force-with-lease origin main` в src/weirgate/core/exchange.py",
            "```\nfor name in names: print(name)\n```",
            "> quoted text in English that goes on and on for a while",
            "https://example.com/the/quick/brown/fox",
            "[res_abcdefghijklmnopabcdefgh]",
        ]
    )
    assert language.written_in(quoted, allowed)
    english = "## Facts\nThe user asked for all of the tests to be fixed before the end of the day and was told yes."
    assert not language.written_in(english, allowed)
    assert language.written_in(english, ())
    assert language.written_in("## Facts\nOK, all done.", allowed), "too few words to tell"


def test_users_of_two_scripts_may_be_answered_in_either() -> None:
    mixed = ("исправь все тесты сейчас", "now run the linter too", "и собери пакет потом")
    assert language.scripts(mixed) == ("cyrillic", "latin")
    assert language.scripts((*mixed, "ещё раз всё проверь", "и ещё раз потом")) == ("cyrillic",)
    assert language.scripts(("`make test` now_or_never",)) == ()
    assert language.scripts(()) == ()
