"""Few shots: what stands before an answer, what an answer is worth, and which one is taken."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import etude
from etude.cli.main import app
from etude.errors import UserError
from etude.inference.model import LoadedModel
from etude.nn.packed import pack
from etude.recipes.learner import build_learner
from etude.recipes.schema import Recipe
from etude.text.tokenizer.tokenizer import Tokenizer
from etude.transfer.prompt import PromptTask, prompt
from etude.transfer.prompt_file import PromptFile, template_fields
from etude.world import World

TEXTS = [
    "good film",
    "bad plot",
    "very good actor",
    "the end was bad",
    "really good",
    "not a good end",
    "영화 정말 좋다",
]
LABELS = ["1", "0", "1", "0", "1", "0", "1"]


def write(path: Path, records: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(item, ensure_ascii=False) + "\n" for item in records), encoding="utf-8")
    return path


def write_prompt(folder: Path, **settings: object) -> Path:
    said = {"kind": "classify", "train": "train.jsonl", "test": "test.jsonl", "template": "{text}\nlabel:"}
    said |= {"answers": {"0": "bad", "1": "very good"}}
    path = folder / "task.yaml"
    path.write_text(yaml.safe_dump(said | settings, allow_unicode=True), encoding="utf-8")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    records: list[dict[str, object]] = [{"text": t, "label": l} for t, l in zip(TEXTS, LABELS, strict=True)]
    write(tmp_path / "train.jsonl", records)
    write(tmp_path / "test.jsonl", records[::-1])
    return tmp_path


@pytest.fixture(scope="module", params=["bytebpe:300", "word:60"])
def gpt(request: pytest.FixtureRequest, small_gpt: Callable[..., LoadedModel]) -> LoadedModel:
    return small_gpt(request.param, [*TEXTS, "label: bad very good"])


def asked_of(gpt: LoadedModel, folder: Path, same: bool = False, seed: int = 0, **settings: object) -> PromptTask:
    file = PromptFile.load(write_prompt(folder, **settings))
    examples, pool = file.read(folder / "test.jsonl"), file.read(folder / "train.jsonl")
    return PromptTask(gpt, file, pool if same else examples, pool, seed, same, file.labels(examples, pool))


# --- what stands before an answer -------------------------------------------------------------------


def test_a_context_is_the_instruction_the_shots_and_what_is_asked(gpt: LoadedModel, folder: Path) -> None:
    asking = asked_of(gpt, folder, instruction="Good or bad?", separator="\n##\n")
    text, fit = asking.context(2, 2, room=10**6)
    shown = [asking.pool[number] for number in asking.draw_shots(2, 2)]  # type: ignore[index]
    words = {"0": "bad", "1": "very good"}
    expected = ["Good or bad?", *(f"{item.texts[0]}\nlabel: {words[item.label]}" for item in shown)]
    assert text == "\n##\n".join([*expected, f"{TEXTS[-3]}\nlabel:"])
    assert fit == 2


def test_shots_are_drawn_anew_for_each_example_and_fewer_are_the_first_of_more(gpt: LoadedModel, folder: Path) -> None:
    asking = asked_of(gpt, folder)
    drawn = [asking.draw_shots(number, 5) for number in range(7)]
    assert all(len(set(item)) == 5 and set(item) <= set(range(7)) for item in drawn)
    assert len({tuple(item) for item in drawn}) > 3
    assert all(asking.draw_shots(number, 2) == item[:2] for number, item in enumerate(drawn))
    assert drawn == [asked_of(gpt, folder).draw_shots(number, 5) for number in range(7)]
    assert drawn != [asked_of(gpt, folder, seed=1).draw_shots(number, 5) for number in range(7)]


def test_nothing_is_shown_to_itself(gpt: LoadedModel, folder: Path) -> None:
    asking = asked_of(gpt, folder, same=True)
    for number in range(7):
        assert sorted([*asking.draw_shots(number, 6), number]) == list(range(7))


def test_shots_that_do_not_fit_are_left_out_the_first_ones_first(gpt: LoadedModel, folder: Path) -> None:
    asking = asked_of(gpt, folder)
    whole, _ = asking.context(0, 3, room=10**6)
    sizes = [asking._length(asking.context(0, count, 10**6)[0]) for count in range(4)]
    text, fit = asking.context(0, 3, room=sizes[3] - 1)
    assert fit < 3
    assert whole.endswith(text)
    assert asking.context(0, 3, room=sizes[3]) == (whole, 3)
    text, fit = asking.context(0, 3, room=1)
    assert fit == 0
    assert text == asking.file.question(asking.examples[0])


# --- whole tasks ------------------------------------------------------------------------------------


def learn(gpt: LoadedModel, texts: list[str], steps: int = 150) -> None:
    """By heart."""
    packed = pack([gpt.tokenizer.encode(text).ids for text in texts])
    ends = packed.layout.host[1:] - 1
    places = torch.from_numpy(np.setdiff1d(np.arange(packed.layout.total), ends))
    optimizer = torch.optim.AdamW([*gpt.model.parameters(), *gpt.objective.parameters()], lr=5e-3)
    for _ in range(steps):
        scores = gpt.objective.logits(gpt.model, gpt.objective.hidden_for_logits(gpt.model, packed))
        F.cross_entropy(scores[places], packed.tokens[places + 1]).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.fixture(scope="module")
def learnt(small_gpt: Callable[..., LoadedModel]) -> LoadedModel:
    """It knows what these texts are, what follows them, and what was asked about them."""
    texts = [
        f"{text}\nlabel: {'very good' if label == '1' else 'bad'}" for text, label in zip(TEXTS, LABELS, strict=True)
    ]
    texts += ["what is it ? the end", "where was it ? the actor", "영화 정말\nwhat ? 좋다\n"]
    gpt = small_gpt("bytebpe:300", texts)
    learn(gpt, texts)
    return gpt


def test_a_model_that_knows_the_answers_is_right(learnt: LoadedModel, folder: Path) -> None:
    (result,) = (found := prompt(learnt, write_prompt(folder), [0])).results
    assert result.scores["accuracy"].value == 1
    assert result.scores["accuracy"].count == 7
    assert [item["label"] for item in result.answers] == LABELS[::-1]
    assert result.answers[0]["answer"] == "very good"
    assert found.baseline == ("always 'very good'", pytest.approx(4 / 7))
    assert set(result.accuracy_by) == {"sum", "characters", "bytes"}
    (turned,) = prompt(learnt, write_prompt(folder, answers={"1": "bad", "0": "very good"}), [0]).results
    assert turned.scores["accuracy"].value == 0


def test_a_group_changes_nothing(learnt: LoadedModel, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_prompt(folder, compared="unconditional")
    whole = prompt(learnt, file, [0, 2])
    monkeypatch.setattr("etude.transfer.prompt.GROUP", 2)
    parts = prompt(learnt, file, [0, 2])
    assert [item.scores for item in parts.results] == [item.scores for item in whole.results]
    for item, other in zip(whole.results, parts.results, strict=True):
        for mine, its in zip(item.answers, other.answers, strict=True):
            assert mine["log_probabilities"] == pytest.approx(its["log_probabilities"], abs=1e-4)


def test_choices_are_their_own_answers(learnt: LoadedModel, folder: Path) -> None:
    records: list[dict[str, object]] = [
        {"question": "what is it ?", "choices": ["the actor", "the end", "film"], "answer": 1},
        {"question": "where was it ?", "choices": ["the actor", "the end"], "answer": "A"},
    ]
    write(folder / "test.jsonl", records)
    file = write_prompt(folder, kind="choice", template="{question}", answers={}, train="test.jsonl")
    result = prompt(learnt, file, [0, 1])
    assert result.results[0].scores["accuracy"].value == 1
    assert [item["choice"] for item in result.results[0].answers] == [1, 0]
    assert result.baseline == ("a guess", pytest.approx((1 / 3 + 1 / 2) / 2))
    asked = PromptFile.load(write_prompt(folder, kind="choice", template="{question}\n{choices}\n=", answers={}))
    assert asked.question(asked.read(folder / "test.jsonl")[1]) == "where was it ?\nA. the actor\nB. the end\n="


def test_the_word_that_follows(learnt: LoadedModel, folder: Path) -> None:
    records: list[dict[str, object]] = [
        {"context": "what is it ?", "target": "the end"},
        {"context": "where was it ?", "target": "the end"},
    ]
    write(folder / "test.jsonl", records)
    file = write_prompt(folder, kind="word", template="{context}", answers={}, train="test.jsonl")
    alone, with_one = prompt(learnt, file, [0, 1]).results
    assert [item["right"] for item in alone.answers] == [True, False]
    assert alone.scores["accuracy"].value == 0.5
    nats = [-item["log_probability"] for item in alone.answers]
    assert nats[0] < 0.1 < 1 < nats[1]
    assert alone.scores["perplexity"].value == pytest.approx(np.exp(np.mean(nats)))
    assert with_one.mean_shots == 1


def test_answers_are_written_up_to_the_end_of_the_line(learnt: LoadedModel, folder: Path) -> None:
    record = {"context": "영화 정말", "question": "what ?", "answers": [{"text": "정말", "answer_start": 3}]}
    write(folder / "test.jsonl", [record])
    file = write_prompt(
        folder, kind="span", template="{context}\n{question}", answers={}, train="test.jsonl", tokens=8, rules="korquad"
    )
    (result,) = prompt(learnt, file, [0]).results
    assert result.answers == [{"answer": "좋다"}]
    assert result.scores["exact"].value == 0
    assert result.compared == "written"


def test_fewer_are_asked_where_a_limit_is_given(learnt: LoadedModel, folder: Path) -> None:
    told: list[tuple[int, int]] = []
    result = prompt(learnt, write_prompt(folder), [0, 1], limit=3, on_progress=lambda *numbers: told.append(numbers))
    assert [item.scores["accuracy"].count for item in result.results] == [3, 3]
    assert told[-1] == (6, 6)


def test_bad_examples_are_left_out_and_told(
    learnt: LoadedModel, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open(folder / "test.jsonl", "a", encoding="utf-8") as file:
        file.write('{"text": ""}\n')
    with pytest.raises(UserError, match=r"test\.jsonl:8"):
        prompt(learnt, write_prompt(folder), [0])
    (result,) = prompt(learnt, write_prompt(folder), [0], skip_bad=True).results
    assert result.scores["accuracy"].count == 7
    assert "1 bad examples left out" in caplog.text


def test_scores_are_those_of_classification(learnt: LoadedModel, folder: Path) -> None:
    (result,) = prompt(learnt, write_prompt(folder, answers={"0": "bad", "1": "zzz"}), [0]).results
    predicted = [item["label"] for item in result.answers]
    right = [item == gold for item, gold in zip(predicted, LABELS[::-1], strict=True)]
    assert result.scores["accuracy"].value == pytest.approx(np.mean(right))
    both = sum(item == gold == "1" for item, gold in zip(predicted, LABELS[::-1], strict=True))
    expected = 2 * both / max(1, predicted.count("1") + LABELS.count("1"))
    assert result.scores["f1"].value == pytest.approx(expected)
    (result,) = prompt(learnt, write_prompt(folder, answers={"0": "bad", "1": "very good", "2": "end"}), [0]).results
    assert list(result.scores) == ["accuracy", "macro_f1", "mcc"]


def test_a_question_that_is_too_long_keeps_its_end(
    learnt: LoadedModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = {"context": "bad plot " * 80, "question": "what ?", "answers": [{"text": "plot", "answer_start": 4}]}
    write(folder / "test.jsonl", [record])
    file = write_prompt(folder, kind="span", template="{context}\n{question}", answers={}, train=None, tokens=8)
    asked, search = [], learnt.search

    def noting(text: str, *rest: object, **more: object) -> object:
        asked.append(text)
        return search(text, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(learnt, "search", noting)
    (result,) = prompt(learnt, file, [0]).results
    assert result.truncated == 1
    room = learnt.model.context - 8
    assert room - 2 <= len(learnt.tokenizer.encode(asked[0]).ids) <= room + 2
    assert asked[0].endswith("\nwhat ?")


def test_a_question_is_not_cut_inside_a_letter(
    small_gpt: Callable[..., LoadedModel], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A syllable of Hangul is three bytes: what is left of one at the cut is no letter, and is not asked."""
    gpt = small_gpt("bytebpe:300", ["plain words of English"])
    asked: list[str] = []
    search = gpt.search
    monkeypatch.setattr(gpt, "search", lambda text, *rest, **more: asked.append(text) or search(text, *rest, **more))
    for length in (80, 81, 82):
        context = "가" * length
        write(folder / "test.jsonl", [{"context": context, "question": "?", "answers": []}])
        for tokens in (7, 8, 9):
            file = write_prompt(
                folder, kind="span", template="{context}\n{question}", answers={}, train=None, tokens=tokens
            )
            assert prompt(gpt, file, [0]).results[0].truncated == 1
    assert all(text.strip("가") == "\n?" for text in asked) and len(asked) == 9


# --- what can be wrong ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"template": "{txt}:"}, "no field {txt}. Did you mean 'text'?"),
        ({"template": "label:"}, "names no field"),
        ({"columns": {"txt": "review"}}, "has no role 'txt'. Did you mean 'text'?"),
        ({"template": "{text"}, "written twice"),
        ({"template": "{text!r}"}, "write its name alone"),
        ({"separator": ""}, "run into each other"),
        ({"kind": "choice", "template": "{question}"}, "bring their own"),
        ({"compred": "sum"}, "Did you mean 'compared'?"),
        ({"answers": {"0": "bad"}}, "no words for the label '1'"),
        ({"answers": {"0": "bad", "1": "bad"}}, "Two labels have the same words"),
        ({"train": None}, "'train' names no file"),
        ({"test": "nowhere.jsonl"}, "There is no file"),
    ],
)
def test_a_bad_prompt_file_is_told(
    learnt: LoadedModel, folder: Path, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError) as told:
        prompt(learnt, write_prompt(folder, **settings), [1])
    assert message in str(told.value)


@pytest.mark.parametrize(
    ("shots", "message"), [([8], "7 examples, and 8"), ([-1], "0 or more"), ([], "0 or more"), ([1, 1], "twice")]
)
def test_bad_numbers_of_shots_are_told(learnt: LoadedModel, folder: Path, shots: list[int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        prompt(learnt, write_prompt(folder), shots)


def test_a_masked_model_is_refused(base: Callable[[str], Path], folder: Path) -> None:
    with pytest.raises(UserError, match="only a causal Transformer"):
        etude.prompt(base("bert"), write_prompt(folder), shots=[0])


@given(st.text(alphabet="{}ab! :", max_size=12))
def test_a_template_is_read_or_refused(template: str) -> None:
    try:
        named = template_fields(template)
    except ValueError:
        return
    assert all(name.isidentifier() for name in named)


def test_the_files_of_the_documentation_are_read(tmp_path: Path) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "prompting.md"
    files = re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert len(files) == 4
    for text in files:
        (tmp_path / "task.yaml").write_text(text, encoding="utf-8")
        said = PromptFile.load(tmp_path / "task.yaml")
        assert template_fields(said.template)


def test_examples_in_another_encoding(base: Callable[[str], Path], folder: Path) -> None:
    file = write_prompt(folder)
    plain = etude.prompt(base("gpt"), file, shots=2)
    for name in ("train.jsonl", "test.jsonl"):
        path = folder / name
        path.write_bytes(path.read_text(encoding="utf-8").encode("cp949"))
    assert etude.prompt(base("gpt"), file, shots=2, encoding="cp949").json() == plain.json()
    with pytest.raises(UserError, match=r"test\.jsonl:\d: not UTF-8.*name that, --encoding cp949"):
        etude.prompt(base("gpt"), file, shots=2)


# --- the command line -------------------------------------------------------------------------------


def test_the_command_prints_a_table_and_writes_answers(base: Callable[[str], Path], folder: Path) -> None:
    file, answers = write_prompt(folder), folder / "answers.jsonl"
    words = ["prompt", str(base("gpt")), str(file), "--shots", "0,2", "--predictions", str(answers)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[0].split() == ["shots", "accuracy", "macro_f1", "mcc", "f1"]
    assert "7 examples; answers compared by log-probability a token" in done.output
    written = [json.loads(line) for line in answers.read_text(encoding="utf-8").splitlines()]
    assert [item["shots"] for item in written] == [0] * 7 + [2] * 7
    done = CliRunner().invoke(app, [*words[:5], "--json"])
    assert [item["shots"] for item in json.loads(done.output)["results"]] == [0, 2]
    lost = ["--predictions", str(folder / "nowhere" / "answers.jsonl")]
    assert "There is no folder" in str(CliRunner().invoke(app, [*words[:5], *lost]).exception)
    assert "whole numbers" in str(CliRunner().invoke(app, [*words[:4], "0,x"]).exception)


def test_a_context_too_short_for_any_shot_names_the_setting(
    small_gpt: Callable[..., LoadedModel], folder: Path
) -> None:
    """All columns of the table would be zero-shot: that is no result."""
    gpt = small_gpt("word:60", [*TEXTS, "label: bad very good"])
    long = " ".join(["really very good"] * 20)
    write(folder / "train.jsonl", [{"text": long, "label": label} for label in ("1", "0")])
    write(folder / "test.jsonl", [{"text": TEXTS[0], "label": "1"}])
    room = gpt.model.max_length
    with pytest.raises(UserError, match=rf"Not one shot fits into the {room} tokens.*model\.context=\d+ for 2 shots"):
        prompt(gpt, write_prompt(folder), [0, 2])
    assert prompt(gpt, write_prompt(folder), [0]).results[0].mean_shots == 0


@pytest.mark.parametrize("language", ["en", "ko"])
def test_four_shots_of_the_world_fit_into_the_toy_for_them(tmp_path: Path, language: str) -> None:
    town = World(0, language)
    tokenizer = Tokenizer.train("bytebpe:1000", list(town.text(0.1)))
    recipe = Recipe.load("gpt3-shots-toy").resolve(vocab=tokenizer.vocab)
    loaded = LoadedModel(*build_learner(recipe, tokenizer), tokenizer, "cpu")
    town.write_prompts(tmp_path / "prompts")
    (tmp_path / "tasks").mkdir()
    for file in sorted((tmp_path / "prompts").iterdir()):
        for split in ("train", "test"):
            write(tmp_path / "tasks" / f"{file.stem}.{split}.jsonl", town.task(file.stem, split, 32))
        (result,) = prompt(loaded, file, [4], limit=8).results
        assert result.mean_shots == 4 and result.truncated == 0
    assert [file.stem for file in sorted((tmp_path / "prompts").iterdir())] == ["sentiment", "topic"]


def test_a_missing_column_is_named_in_the_prompt_file(tmp_path: Path) -> None:
    """`etude prompt` has no option -c."""
    (tmp_path / "a.csv").write_text("review,stars\nGood film,5\n", encoding="utf-8")
    (tmp_path / "p.yaml").write_text('kind: classify\ntest: a.csv\ntemplate: "{text}"\n', encoding="utf-8")
    with pytest.raises(UserError, match=r"no column 'label'.*in the prompt file .*, as in columns: \{label: stars\}\."):
        PromptFile.load(tmp_path / "p.yaml").read(tmp_path / "a.csv")
