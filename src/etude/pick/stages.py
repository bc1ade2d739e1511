"""The stages of a pick: who is tried, and in which order.

Cheap contenders come first, so that there is something to return at any moment: TF-IDF, then linear heads on the
features of the starts. What is left of the time goes to word vectors of the text (after fine-tuning the starts where
one of them is clearly ahead), to the bag of n-grams, which wins least often, to rounds of pre-training, and to
fine-tuning the encoders whose features were best. Time that is left after that goes to what was refused under load, to
more folds for ties, and to longer fine-tunings; a pick that has nothing left to try ends early.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, nullcontext

from etude.baselines import registry as baselines
from etude.pick import candidates as candidate_list
from etude.pick.encoders import Candidate, Encoder
from etude.pick.fine_tuning import retry_refused, run_longer, run_tuned
from etude.pick.race import BASELINE_LABELS, Entry, Race
from etude.pick.rounds import SharedRounds, describe_untrained, pretrain_in_turn, run_rounds, text_share
from etude.pick.text import PickText
from etude.pick.ties import describe_ending, settle_ties
from etude.pick.worker_pool import WorkerPool
from etude.pick.worth import bound_speed, drop_unpaying

VECTOR_SHARE = 0.12  # of the time for word vectors of the text, at most
LONG_VECTOR_SHARE = 0.3  # where no encoder from scratch can read enough: their time is better spent so
PRETRAIN_SHARE = 0.6  # of the time left after the cheap contenders, for pre-training; the rest is for fine-tuning


def run_race(
    race: Race, text: PickText | None, starts: Sequence[tuple[Encoder, Candidate]], scratch: Sequence[Candidate],
    *, must_pay: bool = True,
) -> None:  # fmt: skip
    """All stages in their order; `starts` with the candidates that go on from them.

    Recipes that the user named are tried whether they can pay or not (`must_pay`).
    """
    continued = [candidate for _, candidate in starts]
    on_cluster = race.pool is not None and not race.pool.shares_device
    pool = open_pool(race) if race.device == "cuda" and text is not None and not on_cluster else None
    with closing(pool) if pool is not None else nullcontext():
        shared = None
        if pool is not None and text is not None:
            shared = SharedRounds(race, pool, [*continued, *scratch], text, PRETRAIN_SHARE)
            shared.start()
        race.run_baselines()
        probed = [entry for encoder, _ in starts if (entry := race.run_probe(encoder)) is not None]
        if text is not None:
            left, share = PRETRAIN_SHARE * (race.clock.left - race.reserve()), text_share(race, text)
            if must_pay:
                scratch = drop_unpaying(race, scratch, text, share, left)
            continued = [  # each by itself: starts are of any size
                candidate
                for encoder, each in starts
                for candidate in drop_unpaying(
                    race, [each], text, share, left, bound_speed(race, [e for e in probed if e.encoder is encoder])
                )
            ]
        order = race.ranking()
        probed.sort(key=lambda entry: order.index(entry.contender.name))  # the best start first
        vectors_first = not is_ahead(race, probed)
        if text is not None and vectors_first:
            run_vectors(race, text, VECTOR_SHARE if scratch else LONG_VECTOR_SHARE)
        race.run_late_baseline()
        for entry in probed:
            run_tuned(race, entry)
        if text is not None and not vectors_first:
            run_vectors(race, text, VECTOR_SHARE)
        if shared is not None:
            shared.finish()
        elif text is not None and on_cluster and (continued or scratch):
            assert race.pool is not None
            shared = SharedRounds(race, race.pool, [*continued, *scratch], text, PRETRAIN_SHARE)
            shared.start()
            shared.finish()
        elif text is not None:
            if continued:
                run_rounds(race, "continued pre-training", continued, text, PRETRAIN_SHARE)
            if scratch:
                run_rounds(race, "pre-training from scratch", scratch, text, PRETRAIN_SHARE)
        use_time_left(race, text)


def use_time_left(race: Race, text: PickText | None = None) -> None:
    """Try what was refused, more folds and longer fine-tunings while there is time, and say how it ended."""
    if text is not None and describe_untrained(candidate_list.VECTORS) in race.notes:
        run_vectors(race, text, VECTOR_SHARE, again=True)
    retry_refused(race)
    settle_ties(race)
    while retry_refused(race) or run_longer(race):
        settle_ties(race)
    race.notes.append(race.journal.decide("how it ended", lambda: describe_ending(race)))
    race.on_progress(race.notes[-1]["en"])


def is_ahead(race: Race, probed: Sequence[Entry]) -> bool:
    """Whether a start clearly leads all that read plain text: then fine-tuning it pays more than word vectors."""
    entries = {name: entry for name, entry in race.entries.items() if entry.is_selectable and entry.trials.answers}
    names = {entry.contender.name for entry in probed}
    return bool(names) and set(race.comparison.find_ties({n: e.trials for n, e in entries.items()})) <= names


def open_pool(race: Race) -> WorkerPool:
    """Processes for pre-training: one at least, so that the GPU works while the processor tries cheap contenders."""
    return WorkerPool(race.pool.slots if race.pool is not None else 1, race.journal.path.parent)


def run_vectors(race: Race, text: PickText, share: float, *, again: bool = False) -> None:
    """Word vectors of the user's text, averaged over a text's words, alone and beside the words.

    The processor learns them, also where there is a GPU: it has nothing else to do.
    """
    kind = race.data.labelled.kind
    if any(baselines.needs_vectors(name) and baselines.supports(name, kind) for name in BASELINE_LABELS):
        encoder = pretrain_in_turn(race, candidate_list.VECTORS, text, share * race.clock.total, "cpu", again=again)
        if encoder is not None:
            race.run_baselines(encoder)
