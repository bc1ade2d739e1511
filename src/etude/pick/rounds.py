"""Rounds of pre-training, each longer than the one before; the better half goes on.

In turn where there is one process, at once where several share a GPU: there the first round begins before anything
else, and cheap contenders are tried by the processor meanwhile. Encoders are ranked by the linear head on their frozen
features, and the last ones are fine-tuned, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

from etude.errors import UserError
from etude.pick import candidates as candidate_list
from etude.pick.candidates import Round, plan_parallel_rounds, plan_rounds, plan_shared_rounds
from etude.pick.clock import OutOfTime, format_seconds
from etude.pick.contenders import Label
from etude.pick.encoders import Candidate, Encoder, Pretraining, plan_pretraining, read_encoder, run_pretraining
from etude.pick.fine_tuning import run_tuned
from etude.pick.memory_errors import explain_memory_error
from etude.pick.race import KOREAN_ERROR, Entry, Race
from etude.pick.text import PickText
from etude.pick.worker_pool import Job, WorkerPool

READ_SHARE = 0.08  # of the time for preparing one corpus
BYTES_PER_SECOND = 1.5e6  # of text prepared by two cores, tokenizer included; measured on a slow one
OVERHEAD = {"cpu": 6.0, "cuda": 20.0}  # seconds beside training: opening, the trial of speed; processes, kernels
STAGES = {  # in Korean
    "pre-training": "사전 학습",
    "continued pre-training": "추가 사전 학습",
    "pre-training from scratch": "처음부터 사전 학습",
}
SLOWER = 1.2  # a pre-training may take so many times its seconds, and is shortened to that


def text_share(race: Race, text: PickText) -> float:
    """Share of the text that can be prepared in time; rounded, so that a corpus is found again."""
    usable = READ_SHARE * race.clock.total * BYTES_PER_SECOND
    share = min(1.0, usable / max(1, text.size))
    return share if share == 1.0 else max(0.001, float(f"{share:.2g}"))


def plan_candidate(
    race: Race, candidate: Candidate, text: PickText, seconds: float, device: str, *, is_timed: bool
) -> Pretraining | None:
    """Settle a pre-training of about so many seconds; None, and a note, where that cannot be."""
    minutes = float(f"{seconds / 60:.2g}")
    try:
        return plan_pretraining(
            candidate, text, text_share(race, text), minutes, device, race.seed, race.on_progress,
            is_timed=is_timed,
        )  # fmt: skip
    except UserError as error:
        race.note(f"{candidate.label['en']}: {error}", f"{candidate.label['ko']}: {KOREAN_ERROR}")
        return None


def pretrain_in_turn(
    race: Race, candidate: Candidate, text: PickText, seconds: float, device: str, *, again: bool = False
) -> Encoder | None:
    """Pre-train a candidate in this process; None, and a note, where there is no time or it fails.

    `again`: there was no time before, and the machine may have become faster.
    """
    key, reading = f"begin {candidate.name} {seconds:.0f}", text_share(race, text) * text.size / BYTES_PER_SECOND
    key += " again" if again else ""
    needed = reading + OVERHEAD[device] + race.scoring_seconds()
    untrained = describe_untrained(candidate)
    if untrained in race.notes:  # an earlier try
        race.notes.remove(untrained)
    if not race.journal.decide(key, lambda: race.room() > needed):
        race.notes.append(untrained)
        return None
    length = "at most " if candidate.epochs is not None else ""  # that many epochs may take less
    race.on_progress(f"pre-training {candidate.label['en']} for {length}{format_seconds(seconds)}")
    planned = plan_candidate(race, candidate, text, seconds, device, is_timed=device == "cpu")
    if planned is None:
        return None
    deadline = race.clock.deadline(race.reserve() + race.scoring_seconds(), SLOWER * seconds + 2 * OVERHEAD[device])
    try:
        with explain_memory_error():
            run_pretraining(race.store, planned, deadline)
    except OutOfTime:
        race.notes.append(untrained)
        return None
    except UserError as error:
        race.note(f"{candidate.label['en']}: {error}", f"{candidate.label['ko']}: {KOREAN_ERROR}")
        return None
    finally:
        race.journal.save()
    return read_encoder(race.store, planned)


def run_rounds(race: Race, stage: str, entering: Sequence[Candidate], text: PickText, share: float) -> None:
    """Pre-train candidates in turn, in rounds; the last one is fine-tuned, too."""
    overhead = OVERHEAD[race.device] + READ_SHARE * race.clock.total / 3
    seconds = race.journal.decide(f"pretrain {stage}", lambda: share * (race.clock.left - race.reserve()))
    minimum = candidate_list.FIRST_ROUND_SECONDS[race.device]
    count, rounds = plan_rounds(len(entering), seconds, overhead, minimum)
    if not count:
        if entering:
            _note_no_time(race, stage, (overhead + minimum) / share)
        return
    alive = _let_enter(race, entering, count, rounds[0].seconds)
    results: list[tuple[Candidate, Entry]] = []
    for planned in rounds:
        encoders = ((each, pretrain_in_turn(race, each, text, planned.seconds, race.device)) for each in alive)
        results = rank_round(
            race, stage, planned, [(each, encoder) for each, encoder in encoders if encoder is not None]
        )
        if not results:
            return
        alive = [candidate for candidate, _ in results[: planned.survivors]]
    for _, entry in results:
        run_tuned(race, entry)


def rank_round(
    race: Race, stage: str, planned: Round, encoders: Sequence[tuple[Candidate, Encoder]]
) -> list[tuple[Candidate, Entry]]:
    """Read the features of a round's encoders; the candidates with their entries, the best first."""
    results = [(each, entry) for each, encoder in encoders if (entry := race.run_probe(encoder)) is not None]
    if not results:
        return []
    order = [name for name in race.ranking() if name in {entry.contender.name for _, entry in results}]
    results.sort(key=lambda pair: order.index(pair[1].contender.name))
    race.rounds.append({
        "stage": {"en": stage, "ko": STAGES[stage]}, "seconds": planned.seconds,
        "survivors": [candidate.name for candidate, _ in results[: planned.survivors]],
        "scores": {entry.contender.name: race.standing(entry.contender.name).score for _, entry in results},
    })  # fmt: skip
    return results


def describe_untrained(candidate: Candidate) -> Label:
    """The note that there was no time for a candidate."""
    return {
        "en": f"{candidate.label['en']}: no time to pre-train it",
        "ko": f"{candidate.label['ko']}: 사전 학습할 시간 없음",
    }


def _note_no_time(race: Race, stage: str, needed: float) -> None:
    left = max(0.0, race.clock.left - race.reserve())
    race.note(f"no {stage}: it needs about {needed:.0f} seconds, and {left:.0f} were left",
              f"{STAGES[stage]} 안 함: 약 {needed:.0f}초가 필요한데 {left:.0f}초가 남음")  # fmt: skip


def _let_enter(race: Race, entering: Sequence[Candidate], count: int, seconds: float) -> list[Candidate]:
    """The first of a list, for whom there is time; the table names the others."""
    if count < len(entering):
        reason = {
            "en": f"not tried: there was time to pre-train {count} of {len(entering)}, "
            f"{format_seconds(seconds)} each at first; the first of the list came first",
            "ko": f"시도하지 않음: {len(entering)}개 중 앞의 {count}개만 (처음에 {seconds:.0f}초씩) "
            "사전 학습할 시간이 있었음",
        }
        race.skip([candidate.label for candidate in entering[count:]], reason)
    return list(entering[:count])


class SharedRounds:
    """Rounds whose candidates run at once, each in a process of its own: on one GPU, or on machines of a cluster."""

    stage = "pre-training"

    def __init__(
        self, race: Race, pool: WorkerPool, entering: Sequence[Candidate], text: PickText, share: float
    ) -> None:
        self.race, self.pool, self.text = race, pool, text
        overhead, minimum = OVERHEAD[race.device], candidate_list.FIRST_ROUND_SECONDS[race.device]
        plan = plan_shared_rounds if pool.shares_device else plan_parallel_rounds
        seconds = race.journal.decide("pretrain shared", lambda: share * (race.clock.left - race.reserve()))
        count, self.rounds = plan(len(entering), pool.slots, seconds, overhead, minimum)
        if not count:
            _note_no_time(race, self.stage, (overhead + minimum) / share)
        self.alive = _let_enter(race, entering, count, self.rounds[0].seconds) if count else []
        self.pending: list[tuple[Candidate, Pretraining, Future[str | None]]] = []

    def start(self) -> None:
        """Begin the first round; what else there is to do can be done meanwhile."""
        if self.rounds:
            self._submit(self.rounds[0])

    def finish(self) -> None:
        """Wait for the first round, go through the others, and fine-tune the last ones."""
        results: list[tuple[Candidate, Entry]] = []
        for number, planned in enumerate(self.rounds):
            if number:
                self._submit(planned)
            results = rank_round(self.race, self.stage, planned, self._collect())
            if not results:
                return
            self.alive = [candidate for candidate, _ in results[: planned.survivors]]
        if self.race.pool is not None and not self.race.pool.processes:
            self.race.pool = self.pool  # its processes have torch and the card open already
        for _, entry in results:
            run_tuned(self.race, entry)

    def _submit(self, planned: Round) -> None:
        race, together = self.race, min(self.pool.slots, len(self.alive))
        shares = self.pool.shares_device
        seconds = planned.seconds * (together if shares else 1)  # those that share a card take as many times longer
        is_timed = not shares and race.device == "cpu"
        work = [
            (each, plan_candidate(race, each, self.text, seconds, race.device, is_timed=is_timed))
            for each in self.alive
        ]
        names = ", ".join(each.label["en"] for each, pretraining in work if pretraining is not None)
        race.on_progress(f"pre-training {names}, {together} at once, for {format_seconds(seconds)}")
        for candidate, pretraining in work:
            if pretraining is not None:
                job = Job("pretrain", pretraining.json(), race.store.folder, race.clock.deadline(race.reserve()),
                          (SLOWER * seconds if is_timed else seconds) + OVERHEAD[race.device])  # fmt: skip
                self.pending.append((candidate, pretraining, self.pool.submit(job)))

    def _collect(self) -> list[tuple[Candidate, Encoder]]:
        """Wait for a round; the encoders that came to something."""
        race, encoders = self.race, []
        for candidate, planned, job in self.pending:
            error = job.result()
            if race.store.state(planned.key) == "done":
                encoders.append((candidate, read_encoder(race.store, planned)))
            else:
                korean = KOREAN_ERROR if error else "사전 학습에서 남은 것이 없음"
                race.note(f"{candidate.label['en']}: {error or 'its pre-training left nothing'}",
                          f"{candidate.label['ko']}: {korean}")  # fmt: skip
                race.on_progress(race.notes[-1]["en"])
        self.pending = []
        race.journal.save()
        return encoders
