"""More folds for contenders that nothing tells apart, in the time that is left.

A partition of the labels favours one contender by luck, and the next one another: repeats average that out (Kim 2009).
On 18 draws of 100 labels of TREC-6, SST-2 and SNIPS (draws that no table uses, four baselines), what five folds choose
has 69.6 % on new examples, what fifteen choose 69.8 %; by the score alone 69.7 % and 70.4 %. So where a winner does
not clearly lead, it and its rivals get the folds they lack, and further repeats up to three, as long as all of them can
have as many: evidence must stay comparable. The mean of the probabilities of two baselines as one more contender was
tried on the same draws (TREC-6 0.0 with 100 labels and +0.6 with 400, SST-2 +0.1 and 0.0, SNIPS +1.5, before heavier
word vectors gained as much there), and is not here: it gains too little for one more kind of model. Nor are word
vectors of three times the width (TREC-6 +0.3, YNAT +0.1, SST-2 -0.4 on dev, 100 and 400 labels, two draws) or two
sets of vectors side by side (-0.4, +0.5, -0.1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from etude.pick.clock import format_korean_seconds, format_seconds
from etude.pick.contenders import Label
from etude.pick.race import Entry, Race

SLOWER = 1.3  # a fold may take so many times what the others took


def settle_ties(race: Race) -> None:
    """Give the leader and its near ties more folds, a repeat at a time, until one leads or the time is used."""
    number = race.tie_rounds
    while True:
        number = race.tie_rounds = number + 1
        plan: dict[str, int] = race.journal.decide(f"ties {number}", lambda: plan_folds(race, race.data.repeat))
        if not plan:
            return
        names = ", ".join(race.entries[name].contender.label["en"] for name in plan)
        race.on_progress(f"more folds for {names}: no score tells them apart")
        for name, until in plan.items():
            race.run_more_folds(race.entries[name], until, f"ties {number} {name}")


def plan_folds(race: Race, step: int) -> dict[str, int]:
    """How many folds each of those in a tie is to have; none where there is no tie, no fold or no time left."""
    entries = {name: entry for name, entry in race.entries.items() if entry.is_selectable and entry.trials.answers}
    tied = race.comparison.find_ties({name: entry.trials for name, entry in entries.items()})
    counts = {name: len(entries[name].trials.answers) for name in tied}
    if len(tied) < 2 or min(counts.values()) == len(race.data.folds):
        return {}
    until = _count_next(race, counts, step)
    if estimate_seconds(entries, counts, until) > _free_seconds(race, [entries[name] for name in tied]):
        return {}
    return {name: until for name in tied if counts[name] < until}


def _count_next(race: Race, counts: Mapping[str, int], step: int) -> int:
    """How many folds those in a tie would have after one more repeat, or the rest of one."""
    return min(len(race.data.folds), min(counts.values()) // step * step + step)


def _free_seconds(race: Race, entries: Sequence[Entry]) -> float:
    """Seconds that are left when the dearest of some contenders is scored and refitted."""
    return race.clock.left - max(race.reserve(entry) for entry in entries)


def describe_ending(race: Race) -> Label:
    """One line, in both languages, that says whether the time was used, and what the choice rests on."""
    entries = {name: entry for name, entry in race.entries.items() if entry.is_selectable and entry.trials.answers}
    tied = race.comparison.find_ties({name: entry.trials for name, entry in entries.items()})
    if not tied:
        return {"en": "Nothing could be compared.", "ko": "비교할 수 있는 것이 없었습니다."}
    leader, rivals = entries[tied[0]].contender.label, len(tied) - 1
    seconds = race.clock.spent, race.clock.total
    (spent, total), (spent_ko, total_ko) = map(format_seconds, seconds), map(format_korean_seconds, seconds)
    count, planned = len(entries[tied[0]].trials.answers), race.data.planned
    is_cut = any(
        entry.is_selectable and not entry.trials.answers and not entry.has_failed for entry in race.entries.values()
    )
    if len(entries) == 1 and not is_cut and not race.refused:
        return {
            "en": f"Ended after {spent} of {total}: {leader['en']} is the only contender here, scored by {count} of "
            f"{planned} folds.",
            "ko": f"{total_ko} 중 {spent_ko} 뒤 종료: 후보는 {leader['ko']} 하나이며, {planned}겹 중 {count}겹으로 "
            "점수를 냈습니다.",
        }
    if not rivals and (is_cut or race.refused or count < race.data.repeat):
        return {
            "en": f"Ended after {spent} of {total}: {leader['en']} leads, compared on {count} of {planned} folds; "
            "there was no time for more comparisons beside the final fit.",
            "ko": f"{total_ko} 중 {spent_ko} 뒤 종료: {leader['ko']} 선두({planned}겹 중 {count}겹으로 비교). 최종 "
            "학습을 빼면 더 비교할 시간이 없었습니다.",
        }
    if not rivals:
        return {
            "en": f"Settled after {spent} of {total}: {leader['en']} leads clearly, and nothing is left to try that "
            "could pay.",
            "ko": f"{total_ko} 중 {spent_ko} 뒤 결정: {leader['ko']}의 우위가 뚜렷하고, 더 시도할 만한 것이 없습니다.",
        }
    others = f"{leader['en']} and {rivals} other{'s' if rivals > 1 else ''} are within their error"
    near = f"{leader['ko']} 외 {rivals}개가 오차 범위 안에 있습니다"
    if min(len(entries[name].trials.answers) for name in tied) == len(race.data.folds):
        return {
            "en": f"Ended after {spent} of {total}: {others} after all folds.",
            "ko": f"{total_ko} 중 {spent_ko} 뒤 종료: 모든 겹에서 비교한 뒤에도 {near}.",
        }
    counts = {name: len(entries[name].trials.answers) for name in tied}
    needed = estimate_seconds(entries, counts, _count_next(race, counts, race.data.repeat))
    pair = needed, max(0.0, _free_seconds(race, [entries[name] for name in tied]))
    (more, free), (more_ko, free_ko) = map(format_seconds, pair), map(format_korean_seconds, pair)
    return {
        "en": f"Ended after {spent} of {total}: {others}. More folds take about {more}, and {free} are free beside the "
        "final fit and a margin for a slower machine.",
        "ko": f"{total_ko} 중 {spent_ko} 뒤 종료: {near}. 겹을 더하려면 약 {more_ko}가 필요한데, 최종 학습과 "
        f"여유분을 뺀 시간은 {free_ko}입니다.",
    }


def estimate_seconds(entries: Mapping[str, Entry], counts: Mapping[str, int], until: int) -> float:
    """Seconds of the folds that are missing."""
    seconds = 0.0
    for name, count in counts.items():
        spent = entries[name].trials.seconds
        seconds += SLOWER * max(0, until - count) * sum(spent.values()) / max(1, len(spent))
    return seconds
