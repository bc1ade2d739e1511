"""The page in Chromium: every ability of every kind of run, two languages, light and dark, phone, keyboard."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import pytest

from etude.serve.server import Server
from tests.serve.toy_runs import ToyRuns, serving

TOKEN = "a-token-of-many-letters"
RUNS = ("bert-toy", "gpt2-toy", "tuned", "transformer-toy", "skipgram-toy")
PAGE = files("etude.serve").joinpath("page")
ASKED = "() => document.querySelector('#answer').childElementCount && !document.querySelector('#ask').disabled"


@pytest.fixture(scope="module")
def server(runs: ToyRuns) -> Iterator[Server]:
    with serving(*(runs.open(name) for name in RUNS)) as server:
        yield server


@pytest.fixture
def page(browser: Any, server: Server) -> Iterator[Any]:
    """A page of a phone or a desktop, that has no errors and asks nobody else."""
    context = browser.new_context(viewport={"width": 1200, "height": 800}, locale="en-GB", color_scheme="light")
    page = context.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text) if is_fault(message) else None)
    page.on("request", lambda request: None if request.url.startswith(server.address) else faults.append(request.url))
    yield page
    context.close()
    assert not faults


def is_fault(message: Any) -> bool:
    """Whether the page itself complains; an error status is an answer, which it shows."""
    return message.type == "error" and "Failed to load resource" not in message.text


def ask(page: Any, server: Server, run: str, ability: str, **fields: str) -> str:
    """The text of the answer."""
    page.goto("about:blank")
    page.goto(f"{server.address}/#{run}/{ability}")
    page.wait_for_selector("#ask")
    for name, value in fields.items():
        page.fill(f"#field-{name}", value)
    page.click("#ask")
    page.wait_for_function(ASKED)
    assert page.query_selector(".problem") is None, page.inner_text("#answer")
    return str(page.inner_text("#answer"))


def test_every_ability_has_its_answer(page: Any, server: Server) -> None:
    assert "%" in ask(page, server, "bert-toy", "fill", input="the [MASK] sat")
    assert page.query_selector("#answer mark") is not None
    page.click("#answer .bar >> nth=2")  # another guess is put in its place
    assert page.inner_text("#answer mark") == page.inner_text("#answer .bar >> nth=2 >> span")
    written = ask(page, server, "gpt2-toy", "generate", input="the cat")
    assert written.startswith("the cat") and len(written) > len("the cat") + 10
    assert re.search(r"a second · (It stopped at the number of tokens|The model ended the text)", written)
    labels = ask(page, server, "tuned", "predict", input="the cat sat\na dog ran")
    assert labels.count("cat") >= 2 and page.inner_text("#tab-predict") == "Classify"
    assert len(page.query_selector_all("#answer .case")) == 2
    assert "1.000" in ask(page, server, "bert-toy", "similarity", input="the cat\nthe cat\na dog")
    assert "cat" in ask(page, server, "skipgram-toy", "neighbours", input="cat")
    assert ask(page, server, "skipgram-toy", "analogy", a="cat", b="sat", c="dog")
    assert ask(page, server, "transformer-toy", "translate", input="the cat sat")
    assert re.search(r"-?\d+\.\d\d$", page.inner_text("#answer .quote")), "the best translation has its score, too"
    page.click("#answer .nbest summary")
    assert len(page.query_selector_all("#answer .nbest li")) == 2  # three translations, the best of which stands above
    ask(page, server, "bert-toy", "attention", input="the cat sat on the mat")
    heads = page.query_selector_all(".heads button")
    heads[-1].click()
    assert heads[-1].get_attribute("aria-pressed") == "true"
    assert page.query_selector(".map canvas[aria-label]") is not None
    assert "“the” looks at" in page.inner_text("#answer")


def test_word_vectors_begin_with_words_that_they_know(page: Any, server: Server) -> None:
    for ability in ("neighbours", "analogy"):
        assert ask(page, server, "skipgram-toy", ability)  # as the page comes
        assert page.inner_text("kbd") == "↵"


def test_all_heads_of_a_layer_are_in_sight(page: Any, server: Server) -> None:
    page.goto(f"{server.address}/")
    page.wait_for_selector("#ask")
    widths = page.evaluate("""async () => {
      const {showAttention} = await import("/static/attention.js");
      const map = [[0.6, 0.4], [0.1, 0.9]], names = ["a", "b"], entropy = [Array(12).fill(1)];
      const maps = {tokens: names, keys: names, weights: [Array(12).fill(map)], cut: false, habits: {entropy}};
      const answer = document.querySelector("#answer");
      answer.parentElement.className = "panel wide";
      answer.append(...showAttention([maps]));
      const heads = answer.querySelector(".heads");
      return [heads.scrollWidth, heads.clientWidth];
    }""")
    assert widths[0] <= widths[1]


def test_a_translation_can_be_drawn(page: Any, server: Server) -> None:
    page.goto(f"{server.address}/#transformer-toy/translate")
    page.wait_for_selector("#ask")
    page.click("#panel summary")
    labels = page.locator("#panel .options label")
    for name, value in (("Temperature", "1.5"), ("Seed", "3")):
        labels.filter(has_text=name).locator("input").fill(value)
    with page.expect_request("**/translate") as sent:
        page.click("#ask")
    assert {**sent.value.post_data_json, "input": None} == {
        "run": "transformer-toy", "beams": 4, "best": 3, "temperature": 1.5, "seed": 3, "input": None,
    }  # fmt: skip
    page.wait_for_selector("#answer .quote")


def test_what_is_wrong_is_shown(page: Any, server: Server) -> None:
    page.goto(f"{server.address}/#bert-toy/fill")
    page.fill("#field-input", "no blank")
    with page.expect_response("**/fill"):
        page.click("#ask")
    page.wait_for_selector(".problem")
    assert "There is no [MASK]" in page.inner_text("#answer")


def test_the_keyboard_is_enough(page: Any, server: Server) -> None:
    page.goto(f"{server.address}/#bert-toy/fill")
    page.wait_for_selector("#ask")
    page.focus("#tab-fill")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.id") == "tab-attention"
    page.keyboard.press("End")
    assert page.evaluate("document.activeElement.id") == "tab-similarity"
    page.focus("#field-input")
    page.keyboard.press("Control+Enter")
    page.wait_for_function(ASKED)
    assert "1.000" in page.inner_text("#answer")


def test_the_keyboard_stays_where_it_was(page: Any, server: Server) -> None:
    """What is drawn again has the focus it had: a run, the theme, the language, the button that asks, a token."""
    page.goto(f"{server.address}/#bert-toy/attention")
    page.wait_for_selector("#ask")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"  # the first Tab is at the top
    for name in ("theme", "language", "language", "run gpt2-toy", "run bert-toy"):
        page.focus(f"[id='{name}']")
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == name
    page.click("#tab-attention")
    page.focus("#ask")
    page.keyboard.press("Enter")
    page.wait_for_function(ASKED)
    assert page.evaluate("document.activeElement.id") == "ask"
    page.focus("[id='token 2']")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "token 2"
    assert page.get_attribute("[id='token 2']", "aria-pressed") == "true"


def test_what_is_missing_is_said_without_asking_the_server(page: Any, server: Server) -> None:
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.method))
    page.goto(f"{server.address}/#tuned/predict")
    page.wait_for_selector("#ask")
    page.fill("#field-input", "  ")
    page.click("#ask")
    assert page.inner_text(".problem") == "Write something in “Texts”."
    assert page.evaluate("document.activeElement.id") == "field-input"
    assert page.get_attribute("#field-input", "aria-invalid") == "true"
    page.fill("#field-input", 'the cat\n{"text": ')
    page.click("#ask")
    page.wait_for_selector(".problem:text('Line 2 is not valid JSON.')")
    assert page.get_attribute("#field-input", "aria-invalid") == "false"
    assert "POST" not in requests


def test_enter_asks_where_one_word_is_wanted(page: Any, server: Server) -> None:
    page.goto(f"{server.address}/#skipgram-toy/neighbours")
    page.fill("#field-input", "cat")
    page.keyboard.press("Enter")
    page.wait_for_function(ASKED)
    assert page.query_selector("#answer .bar") is not None
    page.goto(f"{server.address}/#bert-toy/similarity")
    page.reload()
    page.focus("#field-input")
    page.keyboard.press("Enter")  # a line of its own: several texts are wanted
    assert "\n" in page.input_value("#field-input") and not page.inner_text("#answer")


def test_scores_that_are_shares_are_drawn_as_they_are(page: Any, server: Server) -> None:
    page.goto(f"{server.address}/")
    page.wait_for_selector("#ask")
    widths = page.evaluate("""async () => {
      const {showPrediction} = await import("/static/answers.js");
      const show = scores => showPrediction([{scores}], [{question: "?", choices: ["a", "b"]}], {})[0];
      const read = part => [part.querySelector("i").style.width, part.querySelector("b").textContent];
      return [[0.9, 0.1], [3, 1]].map(scores => read(show(scores)));
    }""")
    assert widths[0] == ["90%", "90.0 %"]
    assert widths[1][0].startswith("88.07") and widths[1][1] == "3.000"  # a softmax of logits


def test_a_tag_has_one_colour_in_all_texts(page: Any, server: Server) -> None:
    page.goto(f"{server.address}/")
    page.wait_for_selector("#ask")
    classes = page.evaluate("""async () => {
      const {showPrediction} = await import("/static/answers.js");
      const answers = [{tokens: ["sat"], tags: ["VERB"]}, {tokens: ["the", "sat"], tags: ["DET", "VERB"]}];
      const parts = showPrediction(answers, ["sat", "the sat"], {});
      return parts.map(part => part.querySelector(".span:last-child").className);
    }""")
    assert classes == ["span t1", "span t1"]


def test_tagged_words_stand_as_in_a_sentence(page: Any, server: Server) -> None:
    page.goto(f"{server.address}/")
    page.wait_for_selector("#ask")
    texts = page.evaluate("""async () => {
      const {showPrediction} = await import("/static/answers.js");
      const tokens = ["She", "left", "(", "Seoul", ")", ",", "New", "York", "."], place = {type: "LOC"};
      const entities = [{...place, start: 3, end: 4}, {...place, start: 6, end: 8}];
      const part = showPrediction([{tokens, tags: tokens.map(() => "O"), entities}], ["…"], {})[0];
      part.querySelectorAll("sup").forEach(each => each.remove());
      return [".tagged", ".span", ".span:last-of-type"].map(each => part.querySelector(each).textContent);
    }""")
    assert texts == ["She left (Seoul), New York.", "Seoul", "New York"]


@pytest.mark.parametrize("path", ["/", "/api"])
def test_a_server_that_is_away_is_named_and_asked_again(page: Any, server: Server, path: str) -> None:
    page.route("**/about", lambda route: route.abort())
    page.goto(f"{server.address}{path}")
    page.wait_for_selector("#again")
    assert "The server cannot be reached." in page.inner_text("#main")
    page.click("#language")
    assert "써 보기" in page.inner_text(".top")
    page.unroute("**/about")
    page.click("#again")
    page.wait_for_selector("#ask, .route")
    assert page.query_selector("#again") is None


def test_a_run_says_what_it_was_fine_tuned_for(page: Any, server: Server) -> None:
    page.goto(f"{server.address}/#tuned/predict")
    page.wait_for_selector("#ask")
    assert [pill.split("\n")[1] for pill in page.locator(".pill").all_inner_texts()][2] == "BERT · Classify"
    assert page.inner_text("#lead") == "BERT · Classify"


def test_both_texts_of_a_pair_are_wanted(page: Any, server: Server) -> None:
    """The second text of attention is optional, that of a pair is not."""

    def as_pair(route: Any) -> None:
        about = route.fetch().json()
        run = next(run for run in about["runs"] if run["name"] == "tuned")
        run.update(task="pair", inputs=["first", "second"], columns=["text_a", "text_b"])
        route.fulfill(json=about)

    page.route("**/about", as_pair)
    page.goto(f"{server.address}/#tuned/predict")
    page.wait_for_selector("#ask")
    assert page.locator(".fields label span").all_inner_texts() == ["First text", "Second text"]
    page.click("#tab-attention")
    assert "(optional)" in page.locator(".fields label span").all_inner_texts()[1]


def test_a_task_begins_with_what_it_needs(page: Any, server: Server) -> None:
    """A question says what becomes of it; a task whose input is JSON begins with an example."""
    told = {"task": "", "inputs": []}

    def as_task(route: Any) -> None:
        about = route.fetch().json()
        run = next(run for run in about["runs"] if run["name"] == "tuned")
        run.update(told, columns=told["inputs"], examples={**run["examples"], "predict": {"start": 4}})
        route.fulfill(json=about)

    page.route("**/about", as_task)
    for task, inputs, lead in (
        ("span", ["question", "context"], "Ask something that the context answers; the answer is marked in it."),
        ("entity_typing", [], "One JSON object per line."),
    ):
        told.update(task=task, inputs=inputs)
        page.goto("about:blank")
        page.goto(f"{server.address}/#tuned/predict")
        page.wait_for_selector("#ask")
        assert page.inner_text("form .lead") == lead
    assert page.input_value("#field-input") == '{"start":4}'


@pytest.mark.parametrize("language", ["en", "ko"])
def test_the_head_of_a_phone_has_whole_words(page: Any, server: Server, language: str) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    page.goto(f"{server.address}/api")
    page.wait_for_selector(".route")
    if language == "ko":
        page.click("#language")
    heights = page.evaluate("[...document.querySelectorAll('.top nav a')].map(a => a.getBoundingClientRect().height)")
    assert max(heights) < 40, "a word of the head is broken over two lines"
    assert page.inner_text(".route >> nth=0").startswith("POST /")
    assert ("첫 글과의 코사인" in page.inner_text("#routes")) == (language == "ko")


def test_two_languages_light_and_dark(page: Any, server: Server) -> None:
    page.goto(f"{server.address}/#bert-toy/fill")
    page.wait_for_selector("#ask")
    assert page.inner_text("#ask") == "Ask"
    page.click("#language")
    assert page.inner_text("#ask") == "묻기" and page.evaluate("document.documentElement.lang") == "ko"
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    page.reload()
    page.wait_for_selector("#ask")
    assert page.inner_text("#ask") == "묻기" and page.evaluate("document.documentElement.dataset.theme") == "dark"


@pytest.mark.parametrize("path", ["/#bert-toy/attention", "/#tuned/predict", "/api"])
def test_a_phone_needs_no_sideways_scrolling(page: Any, server: Server, path: str) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    page.goto(f"{server.address}{path}")
    page.wait_for_selector("#ask, .route")
    if path != "/api":
        page.click("#ask") if "attention" in path else page.fill("#field-input", "the cat")
        page.wait_for_timeout(200)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("path", ["/api", "/docs"])
def test_the_documentation_of_the_api(page: Any, server: Server, path: str) -> None:
    """Under its own name, and where FastAPI has it; the page asks nobody else."""
    page.goto(f"{server.address}{path}#fill")
    page.wait_for_selector("#fill[open]")
    text = page.inner_text("#fill")
    assert "POST /fill" in text and "input" in text and "curl" in text and "429" in text


def test_a_token_is_asked_for_once(browser: Any, runs: ToyRuns) -> None:
    with serving(runs.open("bert-toy"), token=TOKEN) as server:
        page = browser.new_page()
        page.goto(server.address)
        page.fill("dialog input", TOKEN)
        page.keyboard.press("Enter")
        page.wait_for_selector("#ask")
        page.click("#ask")
        page.wait_for_function(ASKED)
        assert "%" in page.inner_text("#answer")
        page.close()


def test_files_are_small_and_ask_nobody_else() -> None:
    for entry in PAGE.iterdir():
        text = entry.read_text(encoding="utf-8")
        assert len(text) < 25_000, f"{entry.name} is large"
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), entry.name
        assert "innerHTML" not in text and "eval(" not in text


def test_every_word_is_there_in_both_languages() -> None:
    for entry in PAGE.iterdir():
        if not entry.name.endswith(".js"):
            continue
        text = entry.read_text(encoding="utf-8")
        for key, values in re.findall(r'^  (\w+): \[("(?:[^"\\]|\\.)*",\s*"(?:[^"\\]|\\.)*")\],?$', text, re.MULTILINE):
            assert len(re.findall(r'"(?:[^"\\]|\\.)+"', values)) == 2, key
