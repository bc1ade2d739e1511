"""The files of KLUE as they are published: each is read by its task as it is, and scored as KLUE scores it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import auc, f1_score, precision_recall_curve

from etude.errors import UserError
from etude.tasks import classify, pair, relation, similarity
from etude.tasks.metrics import Confusion, area_under_curves
from etude.tasks.span import task as span
from etude.tasks.tag import task as tag
from etude.text.tokenizer.tokenizer import Tokenizer
from tests.tasks.test_pairs import examples, learn, model_of


def file(folder: Path, name: str, content: Any) -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content, ensure_ascii=False), encoding="utf-8")
    return path


RE = [
    {
        "guid": "klue-re-v1_dev_00000", "sentence": "20대 남성 A(26)씨가 아버지 치료비를 위해 B 씨의 돈을 훔쳤다.",
        "subject_entity": {"word": "A", "start_idx": 7, "end_idx": 7, "type": "PER"},
        "object_entity": {"word": "26", "start_idx": 9, "end_idx": 10, "type": "NOH"},
        "label": "no_relation", "source": "wikitree",
    },
    {
        "guid": "klue-re-v1_dev_00001", "sentence": "이순신은 조선의 장군이다.",
        "subject_entity": {"word": "조선", "start_idx": 5, "end_idx": 6, "type": "LOC"},
        "object_entity": {"word": "이순신", "start_idx": 0, "end_idx": 2, "type": "PER"},
        "label": "org:members", "source": "wikipedia",
    },
]  # fmt: skip


def test_every_file_is_read_as_it_is(tmp_path: Path) -> None:
    topics = [{"guid": "ynat-v1_dev_00000", "title": "5억원 무이자 융자는 되고", "predefined_news_category": "경제",
               "label": "경제", "annotations": {"annotators": ["18"]}, "date": "2016.06.30."}]  # fmt: skip
    assert classify.read(file(tmp_path, "ynat.json", topics)).items == [
        classify.LabelledText(("5억원 무이자 융자는 되고",), "경제")
    ]
    alike = [{"guid": "klue-sts-v1_dev_00000", "source": "airbnb-rtt", "sentence1": "무엇보다도 호스트분들이",
              "sentence2": "무엇보다", "labels": {"label": 4.9, "real-label": 4.857142857142857, "binary-label": 1},
              "annotations": {}}]  # fmt: skip
    assert similarity.read(file(tmp_path, "sts.json", alike))[0].value == 4.857142857142857
    follows = [{"guid": "klue-nli-v1_dev_00000", "source": "airbnb", "premise": "흡연자는", "hypothesis": "방에서",
                "gold_label": "entailment", "author": "entailment", "label2": "entailment"}]  # fmt: skip
    assert pair.read(file(tmp_path, "nli.json", follows))[0].label == "entailment"
    asked = {"version": "v1.0", "data": [{"title": "기상청", "source": "hankyung", "paragraphs": [{
        "context": "올여름 장마가 17일 제주도에서 시작됐다.", "qas": [
            {"question": "언제?", "answers": [{"text": "17일", "answer_start": 8}], "question_type": 1,
             "is_impossible": False, "guid": "klue-mrc-v1_dev_01835"},
            {"question": "왜?", "answers": [], "plausible_answer": [], "question_type": 3, "is_impossible": True,
             "guid": "klue-mrc-v1_dev_01836"}]}]}]}  # fmt: skip
    found = span.read(file(tmp_path, "mrc.json", asked))
    assert [item.id for item in found] == ["klue-mrc-v1_dev_01835", "klue-mrc-v1_dev_01836"]
    assert found[0].answers == (("17일", 8),) and found[1].answers == ()
    named = "## klue-ner-v1_dev_00000\t<경찰:OG> 은\n경\tB-OG\n찰\tI-OG\n \tO\n은\tO\n\n## klue-ner-1\t나\n나\tO\n"
    tagged = tag.read(file(tmp_path, "ner.tsv", named))
    assert [item.characters for item in tagged] == [True, True], "one without a space among others that have them"
    assert tag.learn(tagged, tag.Settings())["characters"] is True
    related = relation.read(file(tmp_path, "re.json", RE))
    assert [item.label for item in related] == ["no_relation", "org:members"]
    assert related[0].marked(False, "punct").startswith("20대 남성 @ A @ ( # 26 # )씨가 아버지")
    assert related[1].marked(True, "punct") == "# ^ PER ^ 이순신 # 은 @ * LOC * 조선 @ 의 장군이다."


def test_relations_by_words(tmp_path: Path) -> None:
    """TACRED's form; the end of an entity is its last word."""
    line = {"id": "x", "relation": "per:city_of_birth", "token": ["Bill", "Gates", "was", "born", "in", "Seattle", "."],
            "subj_start": 0, "subj_end": 1, "obj_start": 5, "obj_end": 5, "subj_type": "PERSON",
            "obj_type": "CITY"}  # fmt: skip
    (item,) = relation.read(file(tmp_path, "t.jsonl", line)).items
    assert item.marked(False, "punct") == "@ Bill Gates @ was born in # Seattle # ."
    assert item.marked(True, "punct") == "@ * PERSON * Bill Gates @ was born in # ^ CITY ^ Seattle # ."
    assert item.label == "per:city_of_birth"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"subject_entity": {"word": "B", "start_idx": 7, "end_idx": 7}}, 'the entity "B" is not at its offset 7'),
        ({"subject_entity": {"word": "A", "start_idx": 90, "end_idx": 91}}, "reaches from 90 to 92, outside the text"),
        ({"subject_entity": {"start": False, "end": 1}}, "not an object with word, start and end"),
        ({"token": ["A", "B"], "subj_start": False, "subj_end": 0}, "subj_start and subj_end are False and 0"),
        ({"entities": [["Q1", False, 3]]}, "not an entity with its name, start and end"),
        ({"subject_entity": "A"}, "holds \"A\", not an object with word, start and end"),
        ({"object_entity": RE[0]["subject_entity"]}, "the two entities overlap"),
        ({"object_entity": {"word": "A", "start_idx": 7, "end_idx": 7}}, "the two entities overlap"),
        ({"label": ""}, "the label in the column 'label' is empty"),
        ({"sentence": " "}, "the text in the column 'sentence' is empty"),
    ],
)  # fmt: skip
def test_bad_relations(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"re.json: item 2: .*{message}"):
        relation.read(file(tmp_path, "re.json", [RE[0], {**RE[0], **changes}]))
    assert len(relation.read(file(tmp_path, "re.json", [RE[0], {**RE[0], **changes}]), skip_bad=True)) == 1


def test_scores_of_relations_are_those_of_scikit_learn() -> None:
    draw = np.random.default_rng(0)
    gold, chances = draw.integers(0, 5, 300), draw.dirichlet(np.ones(5), 300)
    chances[np.arange(300), gold] += 0.3
    counts = Confusion(5)
    counts.add(gold, chances.argmax(-1))
    kept = [1, 2, 3, 4]
    assert counts.micro_f1(kept) == pytest.approx(f1_score(gold, chances.argmax(-1), labels=kept, average="micro"))
    areas = []
    for number in range(5):
        precision, recall, _ = precision_recall_curve(np.eye(5)[gold][:, number], chances[:, number])
        areas.append(auc(recall, precision))
    assert area_under_curves(gold, chances) == pytest.approx(float(np.mean(areas)))
    assert Confusion(3).micro_f1([1, 2]) == 0.0


def test_ratings_of_3_count_as_alike() -> None:
    """KLUE's F1 of STS: gold and predicted values are cut at 3, which is above."""
    gold, predicted = [3.0, 2.9, 5.0, 0.0], [3.0, 3.0, 5.0, 1.0]
    data = examples([similarity.RatedPair(("a", "b"), value) for value in gold])
    scoring = similarity.scoring(similarity.Settings(threshold=3), {"mean": 2.5, "deviation": 1.0})
    scores = scoring.scores(data, [{"score": value} for value in predicted], intervals=False)
    expected = f1_score(np.array(gold) >= 3, np.array(predicted) >= 3)
    assert scores["f1"].value == pytest.approx(expected) == pytest.approx(0.8)


def test_relations_are_learnt(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train("word:60", ["이순신 은 조선 의 장군 이다 . @ # * ^ PER LOC"] * 3)
    items = [relation.parse(record, {}, "made") for record in RE * 2]
    data, settings = examples(items), relation.Settings(dropout=0.0, typed=True)
    model = model_of("both", tokenizer.vocab)
    task = relation.build(settings, model, tokenizer, relation.learn(data, settings))
    assert learn(task, model, data) < 0.1
    scores = task.evaluate(model, data)
    assert scores["micro_f1"].value == 1.0 and scores["auprc"].value == 1.0 and task.score == "micro_f1"
    assert [answer["label"] for answer in task.predict(model, data)] == [item.label for item in items]
    assert task.judge(data, task.predict(model, data))[1].text.startswith("# ^ PER ^ 이순신")
    with pytest.raises(UserError, match=r"task\.nothing"):
        classify.build(classify.Settings(score="micro_f1"), model, tokenizer, {"labels": ["a", "b"]})
