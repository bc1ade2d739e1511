"""The trained model that `etude.load` returns: states, vectors, logits, fill-mask, generation, perplexity."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from etude.inference import beam_search, generation
from etude.inference import fill as fill_mask
from etude.inference import perplexity as perplexities
from etude.inference.base import InferenceModel
from etude.inference.fill import Guess
from etude.inference.generation import Continuation, Overflow, Rule, Sampling
from etude.inference.opening import open_model
from etude.text.corpus.corpus import Corpus


class LoadedModel(InferenceModel):
    """A trained model for inference: hidden states, logits, fill-mask, generation, perplexity."""

    def fill(self, text: str, top: int = 5) -> list[Guess] | list[list[Guess]]:
        """Return the likeliest tokens for each [MASK]: a list of guesses, or a list of lists for several blanks."""
        return fill_mask.fill(self, text, top)

    def generate(
        self,
        prompts: str | Sequence[str],
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
        texts = generation.generate(self, [prompts] if isinstance(prompts, str) else prompts, sampling, samples)
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

    def perplexity(self, source: str | Corpus, stride: int | None = None) -> perplexities.Perplexity:
        """Measure the perplexity of a text or a part of a corpus. See etude.inference.perplexity."""
        return perplexities.perplexity(self, source, stride)


def load(source: str | Path, device: str | None = None) -> LoadedModel:
    """Open a run (finished, or its last checkpoint), a folder of transformers, or an id on the hub."""
    return open_model(source, LoadedModel, device)
