"""The trained model that `etude.load` returns: states, vectors, logits, fill-mask, generation, perplexity."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal, overload

import numpy as np

from etude.baselines.base import is_baseline
from etude.errors import UserError
from etude.inference import beam_search, generation, translation
from etude.inference import fill as fill_mask
from etude.inference import perplexity as perplexities
from etude.inference.base import InferenceModel
from etude.inference.fill import Guess
from etude.inference.generation import Continuation, Overflow, Rule, Sampling
from etude.inference.lacking import BASELINE_USE, LacksGraph
from etude.inference.opening import Dtype, open_model
from etude.inference.predictor import Inputs
from etude.inference.task_model import TaskModel
from etude.inference.text_inputs import require_text, require_texts
from etude.inference.text_vectors import VectorPooling, encode_texts, encode_tokens
from etude.inference.translation import Search, TargetSampling, Translation
from etude.notebook import render_card, render_facts
from etude.runs.run import TASK
from etude.tasks.base import Answer
from etude.tasks.bootstrap import Score
from etude.tasks.translate.search import Convention
from etude.text.corpus.corpus import Corpus


class LoadedModel(InferenceModel, LacksGraph):
    """A trained model for inference: hidden states, logits, fill-mask, generation, perplexity."""

    folder: Path | None = None  # of a fine-tuned run

    def __repr__(self) -> str:
        facts = [f"{name} {value}" for name, value in self.describe() if value not in (None, "")]
        return f"LoadedModel({type(self.model).__name__}, {', '.join(facts)})"

    def _repr_html_(self) -> str:
        """The model in a notebook: what it is, and how large."""
        return render_card(type(self.model).__name__, render_facts(self.describe()))

    def describe(self) -> list[tuple[str, object]]:
        """Facts of the model by name, for a reader."""
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        return [
            ("parameters", f"{parameters:,}"),
            ("width", f"{self.model.width:,}"),
            ("vocabulary", f"{self.tokenizer.vocab:,}"),
            ("longest text", "any" if self.model.context is None else f"{self.model.context:,} tokens"),
            ("objective", type(self.objective).__name__),
            ("device", self.device),
            ("fine-tuned", self.folder),
            ("not trained", ", ".join(sorted(self.untrained))),
        ]

    @overload
    def fill(self, text: str, top: int = 5) -> list[Guess]: ...

    @overload
    def fill(self, text: list[str] | tuple[str, ...], top: int = 5) -> list[list[Guess]]: ...

    def fill(self, text: str | list[str] | tuple[str, ...], top: int = 5) -> list[Guess] | list[list[Guess]]:
        """Return the likeliest tokens for the [MASK] of a text, best first; of several texts, one list each."""
        if isinstance(text, (list, tuple)):
            return fill_mask.fill(self, text, top)
        return fill_mask.fill(self, [require_text(text, "fill")], top)[0]

    def fill_blanks(self, text: str, top: int = 5) -> list[list[Guess]]:
        """Return the likeliest tokens for each [MASK] of a text that may have several: one list a blank."""
        return fill_mask.fill_blanks(self, text, top)

    def generate(
        self,
        prompts: str | Iterable[str],
        tokens: int = 40,
        *,
        samples: int = 1,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        top_p_rule: Rule = "usual",
        seed: int = 0,
        stop: Sequence[str] = (),
        past_end: bool = False,
        overflow: Overflow = "slide",
    ) -> Continuation | list[Continuation]:
        """Continue a prompt, or each of a list; temperature 0 is greedy decoding. See etude.inference.generation.

        One prompt and one sample give one Continuation (`str` of it is the whole text); otherwise a list of them, the
        samples of the first prompt first.
        """
        sampling = Sampling(tokens, temperature, top_k, top_p, top_p_rule, seed, stop, past_end, overflow)
        listed = [prompts] if isinstance(prompts, str) else require_texts(prompts, "generate")
        texts = generation.generate(self, listed, sampling, samples)
        return texts[0] if isinstance(prompts, str) and samples == 1 else texts

    def stream(
        self,
        prompt: str,
        tokens: int = 40,
        *,
        sample: int = 0,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        top_p_rule: Rule = "usual",
        seed: int = 0,
        stop: Sequence[str] = (),
        past_end: bool = False,
        overflow: Overflow = "slide",
    ) -> Iterator[str]:
        """Yield the text of `generate`'s sample number `sample` piece by piece; no piece ends inside a character."""
        sampling = Sampling(tokens, temperature, top_k, top_p, top_p_rule, seed, stop, past_end, overflow)
        text = generation.Sample(self, prompt, sampling, sample)
        return (piece for _, piece in generation.write(self, [text], sampling))

    def search(
        self, prompt: str, tokens: int = 40, *, beams: int = 4, penalty: float = 0.6, stop: Sequence[str] = ()
    ) -> list[Continuation]:
        """Return the texts of a beam search, best first; the defaults are GPT-3's. See etude.inference.beam_search."""
        return beam_search.search(self, prompt, tokens, beams=beams, penalty=penalty, stop=stop)

    def translate(
        self,
        texts: Iterable[str],
        *,
        beams: int = 4,
        penalty: float = 0.6,
        coverage: float = 0.0,
        best: int = 1,
        convention: Convention = "wu",
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        before: int = 0,
    ) -> list[list[Translation]]:
        """Return the `best` translations of each text; one beam is greedy. See etude.inference.translation.

        With a temperature, `top_k` or `top_p` they are drawn at random, `best` of each text, and nothing is searched.
        `before`: texts of a longer list that stand before these, for messages.
        """
        listed = require_texts(texts, "translate")
        if (temperature, top_k, top_p) != (None, None, None):
            drawing = TargetSampling(1.0 if temperature is None else temperature, top_k, top_p, seed, best)
            return translation.translate(self, listed, drawing, before)
        return translation.translate(self, listed, Search(beams, penalty, coverage, best, convention), before)

    def perplexity(self, source: str | Corpus, stride: int | None = None) -> perplexities.Perplexity:
        """Measure the perplexity of a text or a part of a corpus. See etude.inference.perplexity."""
        if not isinstance(source, Corpus):
            source = require_text(source, "perplexity")
        return perplexities.perplexity(self, source, stride)

    @overload
    def encode(self, texts: Iterable[str], layer: int = -1, pool: VectorPooling = "mean") -> np.ndarray: ...

    @overload
    def encode(self, texts: Iterable[str], layer: int = -1, *, pool: Literal["none"]) -> list[np.ndarray]: ...

    def encode(
        self, texts: Iterable[str], layer: int = -1, pool: VectorPooling | Literal["none"] = "mean"
    ) -> np.ndarray | list[np.ndarray]:
        """Return one vector a text, (texts, width), pooled over tokens and markers; a text is cut to the context.

        With pool="none" nothing is pooled: one array a text, (tokens, width), markers among them.
        """
        return encode_tokens(self, texts, layer) if pool == "none" else encode_texts(self, texts, layer, pool)

    # --- the task of a fine-tuned run -----------------------------------------------------------------

    @cached_property
    def task_model(self) -> TaskModel:
        """The fine-tuned run with its task head; UserError where the model has none."""
        if self.folder is None:
            raise UserError(
                "This model was not fine-tuned, so it has no task to predict. 'etude finetune' gives it one."
            )
        return TaskModel.open(self.folder, self.device)

    def predict(self, inputs: Inputs) -> list[Answer]:
        """Return one answer an input of a fine-tuned run. See etude.inference.predictor."""
        return self.task_model.predict(inputs)

    def evaluate(self, examples: str | Path | Inputs, intervals: bool = True) -> dict[str, Score]:
        """Return the scores of a fine-tuned run on labelled records, rows of a table, or a file of examples."""
        return self.task_model.evaluate(examples, intervals)


def load(source: str | Path, device: str | None = None, dtype: Dtype | None = None) -> LoadedModel:
    """Open a run (finished, or its last checkpoint), a folder of transformers, or an id on the hub."""
    if is_baseline(source):
        raise UserError(f"{source} is a baseline and has no hidden states: {BASELINE_USE}.")
    loaded = open_model(source, LoadedModel, device, dtype)
    if (Path(source) / TASK).is_file():
        loaded.folder = Path(source)
    return loaded
