"""Models in use: `load`, `evaluate`, `predict`, `features`, `generate`, `translate`, `fill`, `perplexity`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from etude.errors import UserError, quote_path
from etude.text.line_ends import split_returns
from etude.verbs.columns import check_roles, name_columns
from etude.verbs.input_lines import explain_decoding, input_path, open_lines, require_lines
from etude.verbs.limits import refuse_given, require_device, require_folder_of
from etude.verbs.opened import open_language_model, open_task
from etude.verbs.paths import require_path
from etude.verbs.random_state import keeps_random_state
from etude.verbs.text_sources import read_source

if TYPE_CHECKING:
    from etude.inference.baseline_model import BaselineModel
    from etude.inference.fill import Guess
    from etude.inference.generation import Continuation
    from etude.inference.graph_model import GraphModel
    from etude.inference.model import LoadedModel
    from etude.inference.perplexity import Perplexity
    from etude.inference.predictor import Predictor
    from etude.inference.translation import Translation
    from etude.runs.run import Run
    from etude.tasks.bootstrap import Score
    from etude.text.corpus.corpus import Corpus
    from etude.verbs.opened import OpenedModel


@keeps_random_state
def load(
    source: str | Path | Run,
    *,
    device: str | None = None,
    dtype: Literal["float32", "bfloat16", "float16"] | None = None,
) -> LoadedModel | BaselineModel | GraphModel:
    """Open a model for use: hidden states, logits, vectors, filled blanks, generated text, answers of its task.

    A run on a graph gives vectors of entities by name, scores of triples, and likely heads and tails.

    Args:
        source: A run (finished, or its last checkpoint), a saved baseline, a folder of transformers, or hf:ID.
        device: Where to compute: cpu, cuda or cuda:N; a GPU where there is one, unless given.
        dtype: Type of the weights of a language model; half precision is faster on a GPU. Answers of a task stay in
            float32.
    """
    from etude.baselines.base import is_baseline
    from etude.inference import model
    from etude.inference.baseline_model import BaselineModel
    from etude.inference.graph_model import GraphModel, is_graph_run
    from etude.runs.run import Run

    source = require_path("source", source, "a run or a folder of transformers")
    require_device(device)
    if dtype is not None and (is_graph_run(source) or is_baseline(source)):
        raise UserError(f"{source} is no language model: leave dtype out.")
    if is_graph_run(source):
        return GraphModel(Run.open(source), device)
    return BaselineModel.open(source) if is_baseline(source) else model.load(source, device, dtype)


@keeps_random_state
def evaluate(
    run: str | Path | Run | Predictor | OpenedModel,
    file: str | Path | None = None,
    *,
    columns: Mapping[str, str] | None = None,
    text: str | None = None,
    label: str | None = None,
    encoding: str | None = None,
    skip_bad: bool = False,
    report: str | Path | None = None,
    predictions: str | Path | None = None,
    relations: bool = False,
    graph: str | Path | None = None,
) -> dict[str, Score]:
    """Score a run on a labelled file by its task's official measures, with 95 % intervals.

    Translations are scored by BLEU and chrF; a run on a graph by the filtered rank of the true head and tail of each
    triple: MRR, mean rank, hits@1/3/10.

    Args:
        run: A fine-tuned run, a saved baseline, a translation run, or a run on a graph.
        file: Labelled examples, or pairs to translate; of a graph a file of triples, or a split: test unless given.
        columns: Which column holds what, where it is not called as in training, as role=name: -c text=review
        text: Name of the column that holds the text, where it is not called as in training.
        label: Name of the column that holds the label, where it is not called as in training.
        encoding: Encoding of a file that is not UTF-8: cp1252 (Windows), cp949 (Korean), utf-16 or another of Python's
            names.
        skip_bad: Leave out invalid examples and count them, instead of stopping.
        report: Write an HTML page here: confusion matrix, worst errors.
        predictions: Write the answers to this file, too.
        relations: Of a run on a graph: print the scores of each relation, too.
        graph: Of a run on a graph: the folder of the graph, if it was moved.
    """
    from etude.inference.graph_model import is_graph_run
    from etude.inference.translation_evaluation import is_translation_run
    from etude.tasks.data.decoding import decoding
    from etude.tasks.example_filter import warn_bad, warn_once

    require_folder_of(report, "report")
    require_folder_of(predictions, "predictions")
    file = None if file is None else require_path("file", file, "a file of examples")
    if isinstance(run, os.PathLike):
        run = os.fspath(run)
    named = name_columns(columns, text=text, label=label)
    if isinstance(run, str) and is_graph_run(run):
        if report is not None or named or skip_bad or encoding is not None:
            raise UserError(
                "A run on a graph ranks entities: leave out --report, --column, --text, --label, --encoding and "
                "--skip-bad."
            )
        return _evaluate_graph(run, file, predictions, relations, graph)
    if relations or graph is not None:
        raise UserError("--relations and --graph need a run on a graph: leave them out.")
    if file is None:
        raise UserError(
            f"Give a file of examples: etude evaluate {quote_path(run) if isinstance(run, str) else 'RUN'} FILE."
        )
    if isinstance(run, str) and is_translation_run(run):
        if report is not None:
            raise UserError("A report shows confusion and errors of a task; translations are in --predictions FILE.")
        with decoding(encoding):
            return _evaluate_translation(run, file, named, skip_bad, predictions)
    model = open_task(run)
    with decoding(encoding):
        examples = model.read(file, check_roles(named, model.module.COLUMNS, model.kind), skip_bad)
    warn_bad(examples)
    with warn_once():
        answers = model.answer_labelled(examples)
    scores = model.score(examples, answers)
    if predictions is not None:
        model.write(answers, predictions)
    if report is not None:
        from etude.transfer.error_report import write_report

        judged, counts = model.judge(examples, answers), model.confusion(examples, answers)
        title = f"{model.folder.name} on {Path(file).name}"
        write_report(Path(report), title, scores, examples, judged, counts)
    return scores


def _evaluate_graph(
    run: str | Path,
    triples: str | Path | None,
    predictions: str | Path | None,
    relations: bool,
    graph: str | Path | None,
) -> dict[str, Score]:
    from etude.inference.graph_model import GraphModel
    from etude.runs.run import Run

    outcome = GraphModel(Run.open(run)).evaluate(triples, graph)
    if predictions is not None:
        outcome.write(predictions)
    return outcome.scores | (outcome.relation_scores() if relations else {})


def _evaluate_translation(
    run: str | Path, file: str | Path, columns: Mapping[str, str], skip_bad: bool, predictions: str | Path | None
) -> dict[str, Score]:
    from etude.inference.translation_evaluation import admit_sources, evaluate_translation, read_pairs
    from etude.runs.run import Run
    from etude.tasks.example_filter import warn_bad

    examples = read_pairs(file, Run.open(run).pairs, columns, skip_bad)
    model = open_language_model(run, "evaluate", None)
    examples = admit_sources(model, examples, skip_bad)
    warn_bad(examples)
    outcome = evaluate_translation(model, examples)
    if predictions is not None:
        outcome.write(predictions)
    return outcome.scores


@keeps_random_state
def predict(
    run: str | Path | Run | Predictor | OpenedModel,
    file: str | Path | None = None,
    *,
    columns: Mapping[str, str] | None = None,
    text: str | None = None,
    encoding: str | None = None,
    skip_bad: bool = False,
) -> Iterator[dict[str, Any]]:
    """Answer texts, JSON objects or the examples of a file (.csv …) by a fine-tuned run: one JSON line each.

    Lines of a file that cannot be read are refused before the first answer; those of standard input when they come.

    Args:
        run: A fine-tuned run, or a saved baseline.
        file: Lines, each a text or a JSON object, or a file of examples; standard input if left out, or for -.
        columns: Which column holds what, where it is not called as in training, as role=name: -c text=review
        text: Name of the column that holds the text, where it is not called as in training.
        encoding: Encoding of input that is not UTF-8: cp1252 (Windows), cp949 (Korean), utf-16 or another of Python's
            names.
        skip_bad: Answer an invalid line, an empty one too, with {"error": ...}, and leave invalid records of a table
            out, instead of stopping.
    """
    from etude.inference.predictor import holds_lines
    from etude.tasks.data.decoding import decoding
    from etude.tasks.example_filter import warn_bad
    from etude.text.encodings import check_encoding

    codec = check_encoding(encoding)
    model = open_task(run)
    model = model.with_columns(check_roles(name_columns(columns, text=text), model.module.COLUMNS, model.kind))
    path = input_path(file)
    require_lines(path, "predict")
    if path is not None and not holds_lines(path):
        with decoding(encoding):
            examples = model.read(path, skip_bad=skip_bad, labelled=False)
        if not skip_bad:
            yield from model.predict(examples)
            return
        model.require_trained_head()
        responses = model.respond(examples)
        refused = [response for response in responses if isinstance(response, UserError)]
        if len(refused) == len(responses):
            raise refused[0]
        examples.bad += map(str, refused)
        warn_bad(examples)
        yield from (response for response in responses if not isinstance(response, UserError))
        return
    name = str(path or "standard input")
    try:
        if path is not None and not skip_bad:
            with open_lines(path, codec) as lines:
                model.check_lines(split_returns(lines), name)
        with open_lines(path, codec) as lines:
            yield from model.stream(split_returns(lines), name, skip_bad)
    except UnicodeError:  # UTF-16 without its mark is no UnicodeDecodeError
        raise explain_decoding(path, encoding) from None


@dataclass(frozen=True)
class FeatureFile:
    """A file of hidden states."""

    path: Path
    contents: str  # in words


@keeps_random_state
def features(
    run: str | Path | Run,
    file: str | Path,
    *,
    out: str | Path,
    layers: str = "last",
    pool: Literal["mean", "max", "start", "last", "none"] = "mean",
    text: str | None = None,
    encoding: str | None = None,
    skip_bad: bool = False,
    force: bool = False,
) -> FeatureFile:
    """Write the hidden states of texts as arrays: (texts, layers, width), or one array a text with --pool none.

    Args:
        run: A run of a model of text.
        file: One text a line, or examples with a text column; - reads lines of standard input.
        out: The .npz file to write.
        layers: Layers to write: last, last4, all, or numbers such as 0,-1; 0 is the embedding, -1 the last layer.
        pool: How the states of a text become one vector; start is that of its first token, and none writes one for each
            token.
        text: Name of the column that holds the text.
        encoding: Encoding of input that is not UTF-8: cp1252 (Windows), cp949 (Korean), utf-16 or another of Python's
            names.
        skip_bad: Give an empty line or an invalid record a row of NaN (with --pool none an array without tokens), so
            that rows stay those of the file, instead of stopping.
        force: Replace a file that is already there.
    """
    from etude.inference.features import extract_file
    from etude.tasks.data.decoding import decoding

    run = require_path("run", run, "a run")
    with decoding(encoding):
        return FeatureFile(Path(out), extract_file(run, input_path(file), out, layers, pool, text, skip_bad, force))


@keeps_random_state
def generate(
    run: str | Path | Run | OpenedModel,
    prompts: str | Sequence[str] = (),
    *,
    tokens: int = 40,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    top_p_rule: Literal["usual", "gpt2"] = "usual",
    samples: int = 1,
    seed: int = 0,
    stop: Sequence[str] = (),
    past_end: bool = False,
    overflow: Literal["slide", "stop"] = "slide",
    beams: int | None = None,
    penalty: float = 0.6,
    device: str | None = None,
    dtype: Literal["float32", "bfloat16", "float16"] = "float32",
    on_text: Callable[[int, str], None] | None = None,
) -> list[Continuation]:
    """Continue a text with a causal model.

    Args:
        run: A run, a folder of transformers, or hf:ID of the hub.
        prompts: Texts to continue; without one, the model begins a text of its own.
        tokens: Most tokens to generate.
        temperature: Of sampling: 0 takes the likeliest token each time, 1 draws by the model's own probabilities.
        top_k: Draw only from this many of the likeliest tokens.
        top_p: Draw only from the likeliest tokens that together have this share of the probability.
        top_p_rule: Whether the token that crosses the share of top_p may be drawn: usual, yes; gpt2, no (as GPT-2's
            code).
        samples: Number of continuations of each prompt.
        seed: Seed of sampling: another seed is another text.
        stop: End a continuation before this text; may be given several times.
        past_end: Do not stop at the end-of-text token.
        overflow: When the context is full, slide drops its older half and goes on, and stop ends the text.
        beams: Search with this many beams, in place of sampling.
        penalty: Length penalty of the beam search: 0 prefers short texts, larger values longer ones.
        device: Where to compute: cpu, cuda or cuda:N; a GPU where there is one, unless given.
        dtype: Type of the weights; half precision is faster on a GPU.
        on_text: Receives the text as it is written: the number of the continuation, and the next piece of it.
    """
    from etude.inference.generation import Sample, Sampling, write
    from etude.inference.generation import generate as generate_all
    from etude.inference.text_inputs import require_texts

    sampling = Sampling(tokens, temperature, top_k, top_p, top_p_rule, seed, tuple(stop), past_end, overflow)
    if beams is not None and (on_text is not None or samples > 1):
        raise UserError("--beams gives one text, known only at its end: leave out --stream and --samples.")
    if beams is None:
        refuse_given({"penalty": (penalty, 0.6)}, "applies to a beam search: give --beams, too.")
    else:
        refuse_given(
            {
                "temperature": (temperature, 1.0), "top_k": (top_k, None), "top_p": (top_p, None), "seed": (seed, 0),
                "top_p_rule": (top_p_rule, "usual"), "past_end": (past_end, False), "overflow": (overflow, "slide"),
            },
            "applies to sampling, and --beams searches for the likeliest text: leave one of them out.",
        )  # fmt: skip
    model = open_language_model(run, "generate", device, dtype)
    texts = [prompts] if isinstance(prompts, str) else require_texts(prompts, "generate") or [""]
    if beams is not None:
        return [model.search(text, tokens, beams=beams, penalty=penalty, stop=stop)[0] for text in texts]
    if on_text is None:
        return generate_all(model, texts, sampling, samples)
    written: list[Continuation] = []
    for text in texts:
        for number in range(samples):
            on_text(len(written), text)
            sample = Sample(model, text, sampling, number)
            for _, piece in write(model, [sample], sampling):
                on_text(len(written), piece)
            written.append(sample.result())
    return written


LINES = 1024  # translated at a time: enough to sort by length, few enough to see the first soon


@keeps_random_state
def translate(
    run: str | Path | Run | OpenedModel,
    file: str | Path | None = None,
    *,
    beams: int = 4,
    penalty: float = 0.6,
    coverage: float = 0.0,
    best: int = 1,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    encoding: str | None = None,
    device: str | None = None,
    dtype: Literal["float32", "bfloat16", "float16"] = "float32",
) -> Iterator[list[Translation]]:
    """Translate the lines of a file, or of standard input, in order; an empty line stays empty.

    Args:
        run: A run of a translation recipe, or one that was fine-tuned for the task translate.
        file: One text a line; standard input if left out, or for -.
        beams: Number of beams (hypotheses kept); 1 takes the likeliest token each time.
        penalty: Length penalty: 0 prefers short translations, 0.6 is the Transformer paper's.
        coverage: Coverage penalty: the cost of source tokens that no target token attends to; 0 for none.
        best: Number of translations to write of each line, best first.
        temperature: Draw each token at random instead of searching: 1 by the model's probabilities, below 1 likelier
            ones.
        top_k: Draw only from this many of the likeliest tokens.
        top_p: Draw only from the likeliest tokens that together have this share of the probability.
        seed: Seed of the draw.
        encoding: Encoding of input that is not UTF-8: cp1252 (Windows), cp949 (Korean), utf-16 or another of Python's
            names.
        device: Where to compute: cpu, cuda or cuda:N; a GPU where there is one, unless given.
        dtype: Type of the weights; half precision is faster on a GPU.
    """
    if (temperature, top_k, top_p) == (None, None, None):
        refuse_given({"seed": (seed, 0)}, "applies to random draws: give --temperature, --top-k or --top-p, too.")
    else:
        refuse_given(
            {"beams": (beams, 4), "penalty": (penalty, 0.6), "coverage": (coverage, 0.0)},
            "applies to a beam search, and --temperature, --top-k and --top-p draw at random: leave one out.",
        )
    from etude.text.encodings import check_encoding

    codec = check_encoding(encoding)
    path = input_path(file)
    require_lines(path, "translate")
    model = open_language_model(run, "translate", device, dtype)
    done = 0
    with open_lines(path, codec) as lines:
        try:
            texts_of_lines = split_returns(lines)
            while block := list(islice(texts_of_lines, LINES)):
                texts = [line.rstrip("\r\n") for line in block]
                yield from model.translate(
                    texts, beams=beams, penalty=penalty, coverage=coverage, best=best, temperature=temperature,
                    top_k=top_k, top_p=top_p, seed=seed, before=done,
                )  # fmt: skip
                done += len(block)
        except UnicodeError:
            raise explain_decoding(path, encoding) from None


@keeps_random_state
def fill(
    run: str | Path | Run | OpenedModel, text: str, *, top: int = 5, device: str | None = None
) -> list[list[Guess]]:
    """Fill the blanks of a text with a masked model.

    Args:
        run: A run, a folder of transformers, or hf:ID of the hub.
        text: A text with blanks, each written [MASK]: "The [MASK] sat."
        top: Number of guesses for each blank.
        device: Where to compute: cpu, cuda or cuda:N; a GPU where there is one, unless given.
    """
    return open_language_model(run, "fill", device).fill_blanks(text, top)


@keeps_random_state
def perplexity(
    run: str | Path | Run | OpenedModel,
    text: str | Path | Corpus,
    *,
    stride: int | None = None,
    part: Literal["train", "valid"] = "valid",
    device: str | None = None,
) -> Perplexity:
    """Measure how well a model predicts a text: nats a token and a word, bits a byte.

    Args:
        run: A run, a folder of transformers, or hf:ID of the hub.
        text: A text file, or a prepared corpus, by its folder or its URL.
        stride: Tokens from the start of one window to the next; half the context unless given.
        part: Which part of a corpus: train, or valid, the held-out one.
        device: Where to compute: cpu, cuda or cuda:N; a GPU where there is one, unless given.
    """
    from etude.inference.perplexity import perplexity as measure
    from etude.inference.perplexity import pseudo_perplexity
    from etude.text.corpus.corpus import Corpus

    if isinstance(text, Corpus):
        source: str | Corpus = text
    else:
        source = read_source(require_path("text", text, "a text file or a corpus"), part)
    if isinstance(source, str):
        refuse_given({"part": (part, "valid")}, f"applies to a corpus, and {text} is a text: leave it out.")
    model = open_language_model(run, "perplexity", device)
    if model.model.causal:
        return measure(model, source, stride)
    if model.objective.predicts_next:
        raise UserError("Only a causal Transformer reads a text for this; a biLM's held-out loss is in metrics.jsonl.")
    refuse_given(
        {"stride": (stride, None)}, "applies to a causal model; a masked one fills in each token: leave it out."
    )
    return pseudo_perplexity(model, source)
