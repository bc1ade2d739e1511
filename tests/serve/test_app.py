"""Runs behind HTTP: answers are those of Python, errors are in the words of HTTP, several runs stand in one server."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import etude
from etude.errors import UserError
from etude.kinds import list_kinds
from etude.serve.app import Service
from etude.serve.endpoints import Endpoint
from etude.serve.examples import TEXT as TEXT_OF_EXAMPLES
from etude.serve.examples import choose_words, make_task_example
from etude.serve.limits import Limits
from etude.serve.problems import encode_json
from etude.serve.requests import EncodeRequest
from etude.serve.served_model import ServedModel
from etude.serve.server import Server
from etude.view.attention import compute_attention
from tests.serve.toy_runs import TEXT, ToyRuns, ask, post, serving


@pytest.mark.parametrize(
    ("name", "abilities"),
    [
        ("bert-toy", ["fill", "attention", "encode", "similarity"]),
        ("gpt2-toy", ["generate", "attention", "encode", "similarity"]),
        ("skipgram-toy", ["encode", "similarity", "neighbours", "analogy"]),
        ("tuned", ["predict", "attention", "encode", "similarity"]),
        ("transformer-toy", ["translate", "attention", "encode", "similarity"]),
    ],
)
def test_a_run_serves_what_it_can(runs: ToyRuns, name: str, abilities: list[str]) -> None:
    with serving(runs.open(name)) as server:
        [about] = ask(server, "GET", "/about").json["runs"]
        assert about["name"] == name and about["endpoints"] == abilities
        assert about["inputs"] == (["text"] if name == "tuned" else [])
        assert about["task"] == ("classify" if name == "tuned" else "")
        paths = ask(server, "GET", "/openapi.json").json["paths"]
        assert {f"/{ability}" for ability in abilities} == {path for path in paths if "post" in paths[path]}
        answer = ask(server, "POST", "/predicted", {})
        assert answer.status == 404 and f"POST /{abilities[0]}" in answer.json["detail"]
        assert ask(server, "GET", f"/{abilities[0]}").status == 405


def test_answers_are_those_of_python(runs: ToyRuns) -> None:
    with serving(*(runs.open(name) for name in ("bert-toy", "gpt2-toy", "transformer-toy", "tuned"))) as server:
        model = etude.load(runs("bert-toy"))
        [filled] = post(server, "fill", input="the [MASK] sat [MASK]", top=2)
        wanted: Any = model.fill_blanks("the [MASK] sat [MASK]", top=2)
        assert [[guess["token"] for guess in row] for row in filled["blanks"]] == [
            [guess.token for guess in row] for row in wanted
        ]
        assert filled["blanks"][0][0]["text"] == wanted[0][0].text
        vectors = [row["vector"] for row in post(server, "encode", run="bert-toy", input=[TEXT, "a dog"], pool="start")]
        np.testing.assert_allclose(vectors, model.encode([TEXT, "a dog"], pool="start"), atol=1e-5)
        cosines = [row["cosine"] for row in post(server, "similarity", run="bert-toy", input=[TEXT, "a dog"])]
        left, right = model.encode([TEXT, "a dog"])
        np.testing.assert_allclose(cosines, [1, left @ right / np.sqrt((left @ left) * (right @ right))], atol=1e-5)
        [maps] = post(server, "attention", run="bert-toy", input=TEXT)
        assert maps["tokens"] == compute_attention(model, TEXT).tokens
        np.testing.assert_allclose(maps["weights"], compute_attention(model, TEXT).weights, atol=1e-4)
        [continued] = post(server, "generate", input="the cat", tokens=5, seed=3)
        text: Any = etude.load(runs("gpt2-toy")).generate("the cat", tokens=5, seed=3)
        assert (continued["text"], continued["ended"]) == (text.text, text.ended)
        translated = post(server, "translate", input=[TEXT, "a dog"], beams=2)
        best = [rows[0].text for rows in etude.load(runs("transformer-toy")).translate([TEXT, "a dog"], beams=2)]
        assert [row["text"] for row in translated] == best
        [both] = post(server, "translate", input=TEXT, beams=3, best=2)
        [rows] = etude.load(runs("transformer-toy")).translate([TEXT], beams=3, best=2)
        assert [each["text"] for each in both["nbest"]] == [row.text for row in rows] and both["text"] == rows[0].text
        drawing = {"temperature": 2.0, "top_k": 40, "top_p": 0.95}
        model = etude.load(runs("transformer-toy"))
        drawn = {}
        for seed in (0, 1):
            drawn[seed] = [
                row["text"] for row in post(server, "translate", input=[TEXT, "a dog"], seed=seed, **drawing)
            ]
            expected = model.translate([TEXT, "a dog"], seed=seed, **drawing)
            assert drawn[seed] == [rows[0].text for rows in expected]
        assert drawn[0] != drawn[1]
        assert [row["text"] for row in post(server, "translate", input=TEXT, temperature=0)] == [
            rows[0].text for rows in model.translate([TEXT], beams=1)
        ]
        [maps] = post(server, "attention", run="transformer-toy", input="the cat", second="a dog ran")
        assert len(maps["keys"]) != len(maps["tokens"]) and len(maps["weights"][0][0]) == len(maps["tokens"])
        answers = post(server, "predict", input=[TEXT, {"text": "a dog"}])
        assert answers == json.loads(json.dumps(etude.load(runs("tuned")).predict([TEXT, {"text": "a dog"}])))


def test_every_endpoint_takes_an_input_or_a_list(runs: ToyRuns) -> None:
    """One result an input, in order, whatever else was asked in the same request."""
    names = ("bert-toy", "gpt2-toy", "transformer-toy", "tuned", "skipgram-toy")
    others: dict[str, Any] = {"generate": {"tokens": 3}, "similarity": {"reference": "a dog"}}
    inputs: dict[str, list[Any]] = {
        "fill": ["the [MASK] sat", "a [MASK]"],
        "neighbours": ["cat", "dog"],
        "analogy": [["cat", "sat", "dog"], ["dog", "ran", "cat"]],
        "paths": [],
    }
    with serving(*(runs.open(name) for name in names)) as server:
        for kind in server.service.kinds:
            values = {"run": server.service.find_models(kind.name)[0], **others.get(kind.name, {})}
            both = inputs.get(kind.name, [TEXT, "a dog ran"])
            together = post(server, kind.name, input=both, **values)
            alone = [post(server, kind.name, input=each, **values) for each in both]
            assert [len(results) for results in alone] == [1, 1] and len(together) == 2, kind.name
            for result, [wanted] in zip(together, alone, strict=True):
                assert result.keys() == wanted.keys() and str(result)[:20] == str(wanted)[:20], kind.name
        schema = ask(server, "GET", "/openapi.json").json["components"]["schemas"]
        requests = [schema[kind.request.__name__] for kind in server.service.kinds]
        assert all(
            {"array"} <= {each.get("type") for each in request["properties"]["input"]["anyOf"]} for request in requests
        )


def test_similarity_has_a_reference_or_takes_the_first(runs: ToyRuns) -> None:
    with serving(runs.open("bert-toy")) as server:
        with_first = post(server, "similarity", input=[TEXT, "a dog", "the mat"])
        with_reference = post(server, "similarity", input=["a dog", "the mat"], reference=TEXT)
        assert with_first[0]["cosine"] == pytest.approx(1)
        wanted = [row["cosine"] for row in with_first[1:]]
        assert [row["cosine"] for row in with_reference] == pytest.approx(wanted, abs=1e-5)
        maps = post(server, "attention", input=[TEXT, "a dog"], second=["the mat", "the cat sat"])
        [alone] = post(server, "attention", input="a dog", second="the cat sat")
        assert maps[1]["tokens"] == alone["tokens"] and len(maps) == 2


def test_word_vectors_have_neighbours(runs: ToyRuns) -> None:
    with serving(runs.open("skipgram-toy")) as server:
        [result] = post(server, "neighbours", input="cat", top=3)
        wanted = etude.show.neighbours(runs("skipgram-toy"), "cat", top=3)["cat"]
        assert [(row["word"], pytest.approx(row["cosine"])) for row in result["neighbours"]] == wanted
        [result] = post(server, "analogy", input=["cat", "sat", "dog"], top=2)
        assert len(result["neighbours"]) == 2
        answer = ask(server, "POST", "/neighbours", {"input": "xyzzy"})
        assert answer.status == 422 and "xyzzy" in answer.json["detail"]


def test_requests_at_once_get_their_own_answers(runs: ToyRuns) -> None:
    """Of one pass, and beside requests that are wrong."""
    texts = [f"the cat sat {'on ' * count}" for count in range(1, 13)]
    with serving(runs.open("bert-toy")) as server, ThreadPoolExecutor(12) as pool:
        results = list(pool.map(lambda text: post(server, "encode", input=text)[0]["vector"], texts))
        wrong = [pool.submit(ask, server, "POST", "/fill", {"input": "no blank"}) for _ in range(4)]
        guesses = list(
            pool.map(lambda top: post(server, "fill", input="a [MASK]", top=top)[0]["blanks"][0], range(1, 9))
        )
        assert [each.result().status for each in wrong] == [422] * 4
        metrics = ask(server, "GET", "/metrics").text
    np.testing.assert_allclose(results, etude.load(runs("bert-toy")).encode(texts), atol=1e-5)
    assert [len(row) for row in guesses] == list(range(1, 9))
    assert 'etude_requests_total{endpoint="encode",run="bert-toy",status="200"} 12.0' in metrics


@pytest.fixture(scope="module")
def two_runs(runs: ToyRuns) -> Iterator[Server]:
    with serving(runs.open("bert-toy"), runs.open("tuned")) as server:
        yield server


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/fill", b"{oops", 400, "not JSON"),
        ("/fill", b"\xff", 400, "not JSON"),
        ("/fill", b"[" * 100_000, 400, "not JSON"),
        ("/fill", [1], 422, "a JSON object"),
        ("/fill", {}, 422, "'input' is missing"),
        ("/fill", {"input": "no blank"}, 422, "There is no [MASK]"),
        ("/fill", {"input": "[MASK]", "tpo": 3}, 422, "Did you mean 'top'?"),
        ("/fill", {"input": "[MASK]", "top": 0}, 422, "'top' must be greater than or equal to 1."),
        ("/fill", {"input": "[MASK]", "top": "5"}, 422, "'top' is a text; it must be a whole number."),
        ("/fill", b'{"input": "\\ud800 [MASK]"}', 400, "not JSON"),
        ("/fill", {"input": "[MASK]", "run": "bret"}, 404, "no run 'bret'"),
        ("/fill", {"input": "[MASK]", "run": "tuned"}, 404, "has no /fill. Those that have: bert-toy"),
        ("/encode", {"input": "a"}, 422, "Several runs have /encode: name one in the field 'run'"),
        ("/encode", {"input": [], "run": "tuned"}, 422, "input"),
        ("/encode", {"input": ["a"] * 2000, "run": "tuned"}, 422, "input"),
        ("/attention", {"input": " ", "run": "tuned"}, 422, "leaves nothing"),
        ("/similarity", {"input": "a", "run": "tuned"}, 422, "a reference"),
        ("/similarity", {"input": ["a"], "run": "tuned"}, 422, "a reference"),
        ("/attention", {"input": "a", "second": ["b"], "run": "tuned"}, 422, "'second' is a text where input is one"),
        ("/attention", {"input": ["a", "b"], "second": ["b"], "run": "tuned"}, 422, "one for each"),
        ("/predict", {"input": {"txet": "a"}}, 422, "input 1: there is no column 'text'. Did you mean 'txet'?"),
    ],
)
def test_errors_are_in_the_words_of_http(two_runs: Server, path: str, body: Any, status: int, message: str) -> None:
    answer = ask(two_runs, "POST", path, body)
    assert answer.status == status, answer.text
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.json["status"] == status and message in answer.json["detail"]
    assert answer.json["title"] == {400: "Bad Request", 404: "Not Found", 422: "Unprocessable Content"}[status]


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ({"input": {"txet": "a"}}, "input 1: there is no column 'text'. Did you mean 'txet'?"),
        ({"input": ["a", " "]}, "input 2: the text in the column 'text' is empty."),
    ],
)
def test_a_client_is_not_told_of_options_of_the_command_line(two_runs: Server, body: Any, detail: str) -> None:
    assert ask(two_runs, "POST", "/predict", body).json["detail"] == detail


def test_a_client_is_not_told_where_a_run_lies(runs: ToyRuns) -> None:
    folder = runs("bert-toy").resolve()

    def fail(requests: Sequence[EncodeRequest]) -> list[list[dict[str, Any]]]:
        raise UserError(f"{folder}/vocab.txt is damaged, and so is {folder}.")

    with serving(ServedModel("bert-toy", "", {"encode": Endpoint(fail)}, None, folder=folder)) as server:
        answer = ask(server, "POST", "/encode", {"input": "a"})
    assert answer.status == 422 and answer.json["detail"] == "vocab.txt is damaged, and so is bert-toy."


def test_two_runs_of_one_name_are_refused(runs: ToyRuns) -> None:
    with pytest.raises(UserError, match="same name"):
        Service.create([runs.open("tuned"), runs.open("tuned")], Limits())


def test_a_fault_of_ours_is_said_and_logged(
    runs: ToyRuns, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    served = runs.open("bert-toy")
    with serving(served) as server:
        monkeypatch.setattr(served.model, "encode", lambda *_, **__: 1 / 0)
        answer = ask(server, "POST", "/encode", {"input": "a"})
    assert answer.status == 500 and "see its log" in answer.text and "ZeroDivision" not in answer.text
    assert "ZeroDivisionError" in caplog.text


def test_json_has_no_numbers_that_are_none() -> None:
    assert encode_json({"text": "서울 NaN", "cosine": 1e-7}) == '{"text":"서울 NaN","cosine":1e-07}'.encode()
    assert json.loads(encode_json([0.1, None, True, "é"])) == [0.1, None, True, "é"]
    with pytest.raises(ValueError, match="JSON"):
        encode_json({"vector": [1.0, float("nan")]})


@pytest.mark.parametrize("name", ["bert-toy", "gpt2-toy", "skipgram-toy", "tuned", "transformer-toy", "fasttext-toy"])
def test_every_endpoint_answers_its_example(runs: ToyRuns, name: str) -> None:
    with serving(runs.open(name)) as server:
        [about] = ask(server, "GET", "/about").json["runs"]
        assert list(about["examples"]) == about["endpoints"]
        for kind, example in about["examples"].items():
            assert ask(server, "POST", f"/{kind}", {"input": example}).status == 200, kind
        words = shlex.split(server.curl)
        assert words[:2] == ["curl", f"{server.address}/{about['endpoints'][0]}"] and words[-2] == "-d"
        assert json.loads(words[-1]) == {"input": about["examples"][about["endpoints"][0]]}


def test_the_example_of_a_task_is_one_of_its_examples() -> None:
    for kind, module in list_kinds("tasks").items():
        columns = {role: usual[0] for role, usual in module.COLUMNS.items()}
        example = make_task_example(kind, module.INPUTS, columns)
        record = example if isinstance(example, dict) else {columns[module.INPUTS[0]]: example}
        assert module.parse(record, columns, "input 1", False) is not None, kind
    assert make_task_example("of a plug-in", (), {"role": "name"}) == {"name": TEXT_OF_EXAMPLES}


def test_the_words_of_an_example_are_those_of_the_run() -> None:
    assert choose_words(["woman", None, "the", "king", "man", "queen"]) == ["man", "king", "woman"]
    assert choose_words(["##orange", "the", "street", "x-ray", "baker", "water"]) == ["street", "baker", "water"]
    assert choose_words([None, "a", "b", "king"]) == ["a", "b", "king"]
