#!/bin/bash
# The two studies of translation on one GPU, side by side, from the raw files:
#
#   benchmarks/translation_studies.sh DATA OUT [-- key=value or options for both]
#
# MINUTES (8) are those of the whole call: no cell begins that would end later. Cells that are over lie in OUT/cells-STUDY.zip,
# written again after each; a later call, on another machine too, goes on with IMPORT=FOLDER, where these files lie.
# DATA holds corpora/{enwiki,kowiki}_train.txt.xz and tasks/{multi30k_en_fr,tatoeba_en_ko,jhe_ko_en,park_news_ko_en}; OUT gets
# the reports (reports.tgz) and the log of each study. PYTHON, WORKERS (of attention-helps), MORE_WORKERS (of the other) and WORK
# (a folder that stays, so that a second call goes on) and STUDIES (one of the two alone) may be set. Cells are small: NVIDIA's
# MPS daemon is started where it is.
set -u
data=$(cd "$1" && pwd) out=$2
shift 2
[ $# -gt 0 ] && [ "$1" = "--" ] && shift
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
export PYTHONPATH=$root/src:${PYTHONPATH:-} OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
work=${WORK:-$(mktemp -d)}
mkdir -p "$out" "$work/tasks/ko_en" "$work/sides"
out=$(cd "$out" && pwd)
started=$(date +%s)
export TORCHINDUCTOR_COMPILE_THREADS=${TORCHINDUCTOR_COMPILE_THREADS:-2}
command -v nvidia-cuda-mps-control > /dev/null && nvidia-cuda-mps-control -d
ln -sfn "$data/tasks/multi30k_en_fr" "$work/tasks/multi30k_en_fr"
if [ ! -d "$work/text" ]; then
    # all Korean pairs as one file, and each side of the pairs as plain text, one sentence a document
    "$python" - "$data/tasks" "$work" <<'PY'
import json, lzma, sys
from pathlib import Path
tasks, work = Path(sys.argv[1]), Path(sys.argv[2])
def read(path):
    with lzma.open(path, "rt", encoding="utf-8") as file:
        return [{key: " ".join(text.split()) for key, text in json.loads(line).items()} for line in file]
korean = [pair for name in ("tatoeba_en_ko", "jhe_ko_en", "park_news_ko_en")
          for path in sorted((tasks / name).glob("*.jsonl.xz")) for pair in read(path)]
unique = list({json.dumps({"ko": pair["ko"], "en": pair["en"]}, ensure_ascii=False): None for pair in korean})
(work / "tasks/ko_en/train.jsonl").write_text("".join(line + "\n" for line in unique), encoding="utf-8")
french = read(tasks / "multi30k_en_fr" / "train.jsonl.xz")
for name, sentences in (("fr", [pair["fr"] for pair in french]), ("en", [pair["en"] for pair in french])):
    (work / "sides" / f"{name}.txt").write_text("\n\n".join(sentences) + "\n", encoding="utf-8")
print(len(unique), "Korean pairs,", len(french), "French pairs", flush=True)
PY
    "$python" -m etude prepare "$data"/corpora/{enwiki,kowiki}_train.txt.xz "$work"/sides/*.txt -o "$work/text" \
        --tokenizer bpe:16000 --valid 0.01 > "$out/prepare.txt" 2>&1 || { cat "$out/prepare.txt"; exit 1; }
    "$python" -m etude prepare "$data/tasks/multi30k_en_fr/train.jsonl.xz" --pairs en,fr -o "$work/pairs" \
        --tokenizer bpe:8000 --valid 0.02 >> "$out/prepare.txt" 2>&1 || { cat "$out/prepare.txt"; exit 1; }
fi
echo "prepared, $(($(date +%s) - started)) s"
left=$(awk -v m="${MINUTES:-8}" -v s=$(($(date +%s) - started)) 'BEGIN { print m - s / 60 }')
run() {
    local study=$1 text=$2 workers=$3 cells=()
    shift 3
    [ -n "${IMPORT:-}" ] && [ -f "$IMPORT/cells-$study.zip" ] && cells=(--import-cells "$IMPORT/cells-$study.zip")
    "$python" -m etude study "$root/studies/$study.yaml" ${GPU---gpu} --text "$work/$text" --data "$work/tasks" -o "$work/$study" \
        --workers "$workers" --minutes "$left" --export-cells "$out/cells-$study.zip" "${cells[@]}" "$@" > "$out/$study.log" 2>&1
    echo "$study: exit $?, $(($(date +%s) - started)) s"
    tail -n 25 "$out/$study.log"
}
studies=${STUDIES:-attention-helps translation-pretraining}
[[ $studies == *attention-helps* ]] && run attention-helps pairs "${WORKERS:-6}" "$@" &
[[ $studies == *translation-pretraining* ]] && run translation-pretraining text "${MORE_WORKERS:-10}" "$@" &
wait
files=()
for study in $studies; do
    for file in report.html results.json table.md study.yaml registered.json; do
        [ -f "$work/$study/$file" ] && files+=("$study/$file")
    done
done
[ ${#files[@]} -gt 0 ] && tar -C "$work" -czf "$out/reports.tgz" "${files[@]}"
[ -n "${WORK:-}" ] || rm -rf "$work"
