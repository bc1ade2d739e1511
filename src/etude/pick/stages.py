"""The stages of a pick: who is tried, and in which order.

Cheap contenders come first, so that there is something to return at any moment: baselines, then linear heads on the
features of the starts. What is left of the time goes to word vectors of the text, to rounds of pre-training, and to
fine-tuning the encoders whose features were best.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, nullcontext

from etude.baselines import registry as baselines
from etude.pick import candidates as candidate_list
from etude.pick.encoders import Candidate, Encoder
from etude.pick.race import BASELINE_LABELS, Race
from etude.pick.rounds import SharedRounds, pretrain_in_turn, run_rounds
from etude.pick.text import PickText
from etude.pick.worker_pool import WorkerPool

VECTOR_SHARE = 0.1  # of the time for word vectors of the text
PRETRAIN_SHARE = 0.6  # of the time left after the cheap contenders, for pre-training; the rest is for fine-tuning


def run_race(
    race: Race, text: PickText | None, starts: Sequence[tuple[Encoder, Candidate]], scratch: Sequence[Candidate]
) -> None:
    """All stages in their order; `starts` with the candidates that go on from them."""
    continued = [candidate for _, candidate in starts]
    pool = WorkerPool(race.pool.slots, race.pool.folder) if race.pool is not None and text is not None else None
    with closing(pool) if pool is not None else nullcontext():
        shared = None
        if pool is not None and text is not None:
            shared = SharedRounds(race, pool, [*continued, *scratch], text, PRETRAIN_SHARE)
            shared.start()
        race.run_baselines()
        probed = [entry for encoder, _ in starts if (entry := race.run_probe(encoder)) is not None]
        if text is not None:
            run_vectors(race, text)
        order = race.ranking()
        probed.sort(key=lambda entry: order.index(entry.contender.name))
        for entry in probed:  # the best start first
            race.run_tuned(entry)
        if shared is not None:
            shared.finish()
        elif text is not None:
            if continued:
                run_rounds(race, "continued pre-training", continued, text, PRETRAIN_SHARE)
            run_rounds(race, "pre-training from scratch", scratch, text, PRETRAIN_SHARE)


def run_vectors(race: Race, text: PickText) -> None:
    """Word vectors of the user's text, averaged over a text's words, alone and beside the words.

    The processor learns them, also where there is a GPU: it has nothing else to do.
    """
    kind = race.data.labelled.kind
    if any(baselines.needs_vectors(name) and baselines.supports(name, kind) for name in BASELINE_LABELS):
        encoder = pretrain_in_turn(race, candidate_list.VECTORS, text, VECTOR_SHARE * race.clock.total, "cpu")
        if encoder is not None:
            race.run_baselines(encoder)
