"""Every page of the documentation: links lead somewhere, commands parse, Python compiles, all is in the navigation."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import re
from collections import Counter
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest
import typer
import yaml
from docs.generator import outside, results_list
from docs.generator.commands import commands
from docs.generator.results_list import reports

from etude.cli.adapter import Call
from etude.cli.main import app
from etude.kinds import list_kinds
from etude.models.transfer_settings import TransferSettings
from etude.recipes.schema import Recipe
from etude.train.settings import Settings as Train
from tests.docs.code_blocks import DOCS, PAGES, ROOT, etude_lines, read_blocks, split_command

GROUP = typer.main.get_command(app)
COMMANDS = dict(commands())
RECORDS = ("results", "studies")  # folders of laboratory records; how a study is written is taught in their README.md
TEACHING = [page for page in PAGES if page.name == "README.md" or page.relative_to(DOCS).parts[0] not in RECORDS]
SYSTEMS = [page for page in sorted((DOCS / "systems").glob("*.md")) if page.stem != "index"]
LABORATORY = re.compile(
    r"\bcommit [0-9a-f]{7}\b|커밋 [0-9a-f]{7}\b"  # what was measured has a commit,
    r"|\b20\d\d-[01]\d-[0-3]\d\b"  # a date,
    r"|\bone H[12]00\b|\bcores? of an? (?:aarch64|x86)|\b(?:busy|slow|shared|Arm|ARM) cores?\b"  # a machine,
    r"|\d ?± ?\d|\d \[\d[\d.]*, \d[\d.]*\]"  # a deviation or an interval,
    r"|(?<!-)\b(?:MRR|BLEU|chrF2?|F1|accuracy|hits@\d+|perplexity)(?: of| is| was)? \d+\.\d"  # a score
)


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def name_of(page: Path) -> str:
    return str(page.relative_to(DOCS))


@pytest.fixture(params=PAGES, ids=name_of)
def page(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def anchors(text: str) -> set[str]:
    """Anchors of the headings, as mkdocs and GitHub make them; a second one of a name gets a number."""
    text = re.sub(r"^(```+|~~~+).*?^\1", "", text, flags=re.MULTILINE | re.DOTALL)
    names: Counter[str] = Counter()
    found = set(re.findall(r"\{ ?#([\w-]+)", text))
    for title in re.findall(r"^#+ (.+?)(?: *\{.*\})?$", text, re.MULTILINE):
        plain = re.sub(r"\]\([^)]*\)|[`*\[\]]", "", title)
        slug = re.sub(r"\s", "-", re.sub(r"[^\w\- ]", "", plain.lower()).strip())
        found.add(f"{slug}_{names[slug]}" if names[slug] else slug)
        names[slug] += 1
    return found


def test_links_lead_somewhere(page: Path) -> None:
    text = read(page)
    for link in outside.LINK.findall(outside.without_code(text)):
        if link.startswith("#"):
            assert link[1:] in anchors(text), link
        elif (target := outside.target_of(link, page)) is not None:
            file, anchor = target
            assert file.exists(), link
            generated = file.suffix == ".md" and "<!-- generated:" in file.read_text(encoding="utf-8")
            if anchor and file.suffix == ".md" and not generated:
                assert anchor in anchors(file.read_text(encoding="utf-8")), link


def test_commands_parse(page: Path) -> None:
    """By the parser of the command line, places and settings included."""
    for block in read_blocks(read(page)):
        for line in etude_lines(block):
            for words in split_command(line):
                check_command(words, f"{page.name}, line {block.line}: {line}")


def check_command(words: list[str], place: str) -> None:
    names = words[:3] if words[1:2] == ["show"] else words[:2]
    if words[1].startswith("-"):
        return  # etude --help
    name = " ".join(names)
    assert name in COMMANDS, f"{place}: there is no {name}"
    command = GROUP
    for word in names[1:]:
        command = command.commands[word]  # type: ignore[attr-defined]
    rest = words[len(names) :]
    try:
        context = command.make_context(name, list(rest))
    except Exception as error:
        pytest.fail(f"{place}: {error}")
    if "--resume" in rest:
        return  # takes no places: the run knows them
    arguments = Call[object](COMMANDS[name], context.params).fit_words()
    check_settings(name, arguments, place)


@cache
def check_recipe(name: str, settings: str) -> None:
    """Raise UserError where a shipped recipe has no such settings; pages repeat the same few commands."""
    Recipe.load(name, json.loads(settings))


def check_settings(name: str, arguments: dict[str, object], place: str) -> None:
    """Settings of a shipped recipe and of a fine-tuning, by the schema."""
    settings = arguments.get("settings") or {}
    assert isinstance(settings, dict)
    recipe = arguments.get("recipe") or arguments.get("name")
    shipped = isinstance(recipe, str) and "/" not in recipe and not recipe.endswith(".yaml")
    if shipped and name in ("etude pretrain", "etude check", "etude bench", "etude recipes"):
        check_recipe(str(recipe), json.dumps(settings))
    if name == "etude finetune":
        known = {"train": Train.model_fields, "transfer": TransferSettings.model_fields}
        kinds = list_kinds("tasks")
        if arguments.get("task") in kinds:
            known["task"] = kinds[str(arguments["task"])].Settings.model_fields
        for setting in settings:
            group, _, rest = setting.partition(".")
            if group in known:
                assert rest.partition(".")[0] in known[group], f"{place}: {setting}"


def test_there_are_many_commands() -> None:
    """So that a change of the reader cannot pass by finding none."""
    texts = [read(page) for page in PAGES]
    assert sum(1 for text in texts for block in read_blocks(text) for _ in etude_lines(block)) > 100


def test_python_compiles_and_imports_exist(page: Path) -> None:
    for block in read_blocks(read(page)):
        if block.language not in ("python", "py"):
            continue
        tree = ast.parse(block.text, filename=f"{page.name}, line {block.line}")
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    assert importlib.util.find_spec(alias.name), alias.name
            elif isinstance(node, ast.ImportFrom) and node.module:
                if node.module.startswith("etude"):
                    module = importlib.import_module(node.module)
                    assert not [alias.name for alias in node.names if not hasattr(module, alias.name)], node.module
                else:
                    assert importlib.util.find_spec(node.module.partition(".")[0]), node.module


def test_yaml_blocks_are_yaml(page: Path) -> None:
    for block in read_blocks(read(page)):
        if block.language == "yaml":
            assert yaml.safe_load(block.text) is not None, block.line


@pytest.mark.parametrize("page", TEACHING, ids=name_of)
def test_teaching_pages_carry_no_laboratory_figures(page: Path) -> None:
    """Figures stand in docs/results, with all that belongs to them; addresses of links may name a date."""
    prose = re.sub(r"\]\([^)]*\)", "]", read(page))
    assert not (figure := LABORATORY.search(prose)), f"{page.name}: {figure[0]!r} belongs to docs/results"


@pytest.mark.parametrize(
    "figure",
    ["at commit 12ab34f", "2026-11-16", "on one H200", "two cores of an aarch64 CPU", "4.5 ± 0.3", "0.55 [0.50, 0.59]",
     "MRR 0.59", "BLEU of 71.0"],
)  # fmt: skip
def test_laboratory_figures_are_recognised(figure: str) -> None:
    assert LABORATORY.search(f"It was {figure}.")


@pytest.mark.parametrize("page", SYSTEMS, ids=name_of)
def test_page_of_a_system_is_complete(page: Path) -> None:
    """The idea in words and a picture, the formula, where it is in the code, how to run it, what was measured."""
    sections = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", read(page), re.MULTILINE | re.DOTALL))
    assert list(sections) == ["The idea", "The formula", "In the code", "Run it", "Measured"]
    assert f"](pictures/{page.stem}.svg)" in sections["The idea"] and len(sections["The idea"].split()) > 50
    assert "$$" in sections["The formula"]
    assert "](../../src/etude/" in sections["In the code"]
    assert [line for block in read_blocks(sections["Run it"]) for line in etude_lines(block)]
    assert re.search(r"\]\(\.\./(?:\.\./benchmarks/)?results/", sections["Measured"])


def test_every_system_has_a_page() -> None:
    systems = "word2vec glove fasttext taglm elmo bilstm-crf seq2seq-rnn transformer gpt1 gpt2 gpt3 bert albert electra"
    systems += " two-tower distilbert tinybert transe ernie kagnet"
    assert {page.stem for page in SYSTEMS} >= set(systems.split())
    index = read(DOCS / "systems" / "index.md")
    assert all(f"]({page.name})" in index for page in SYSTEMS)


@pytest.mark.parametrize("picture", sorted((DOCS / "systems").rglob("*.svg")), ids=name_of)
def test_pictures_load_nothing(picture: Path) -> None:
    text = picture.read_text(encoding="utf-8")
    ElementTree.fromstring(text)
    assert not re.search(r'(?:href|src)="(?:https?:)?//|<script|@import|url\(', text)


class Loader(yaml.SafeLoader):
    """Reads mkdocs.yml without the objects it names."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: None)


def navigation() -> list[str]:
    def pages(entry: object) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        inner = entry.values() if isinstance(entry, dict) else entry
        return [page for value in inner for page in pages(value)]  # type: ignore[attr-defined]

    with open(ROOT / "mkdocs.yml", encoding="utf-8") as file:
        return pages(yaml.load(file, Loader)["nav"])


def test_every_page_is_in_the_navigation_once() -> None:
    """Reports of single studies and results are reached from their lists."""
    entries = navigation()
    assert len(entries) == len(set(entries))
    missing = {name_of(page) for page in PAGES} - set(entries)
    linked = {outside.site_path(target) for page in PAGES for target in outside.targets(page, read(page))}
    assert {name for name in missing if "/" in name} <= linked | {outside.site_path(file) for file in reports()}
    assert not {name for name in missing if name.split("/")[0] not in ("results", "studies")} - linked
    reached = {outside.site_path(file) for file in [*PAGES, *outside.outside_files(), *results_list.reports()]}
    assert set(entries) <= reached


def test_results_are_all_listed() -> None:
    """Every report of benchmarks/results and docs/results, with a date and a commit."""
    rows = results_list.page().splitlines()[2:]
    assert len(rows) == len(results_list.reports()) >= 9
    assert all(
        re.match(r"\| <span class=.date.>20\d\d-\d\d-\d\d</span> \| \[.+\]\(.+\.md\) \| (?:`|not recorded)", row)
        for row in rows
    ), rows
