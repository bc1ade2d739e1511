#!/bin/bash
# The two studies of translation on one GPU, side by side, from the raw files:
#
#   benchmarks/translation_studies.sh DATA OUT [-- key=value or options for both]
#
# DATA holds corpora/{enwiki,kowiki}_train.txt.xz and tasks/{multi30k_en_fr,tatoeba_en_ko,jhe_ko_en,park_news_ko_en}; OUT gets
# report.html, results.json, table.md and the log of each study. PYTHON, WORKERS (of each study) and WORK (a folder that
# stays, so that a second call goes on) may be set. Cells are small: start the MPS daemon first (nvidia-cuda-mps-control -d).
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
run() {
    mkdir -p "$out/$1"
    "$python" -m etude study "$root/studies/$1.yaml" ${GPU---gpu} --text "$work/$2" --data "$work/tasks" -o "$work/$1" \
        --workers "$3" "${@:4}" > "$out/$1/log.txt" 2>&1
    echo "$1: exit $?, $(($(date +%s) - started)) s"
    for file in report.html results.json table.md study.yaml registered.json; do
        [ -f "$work/$1/$file" ] && cp "$work/$1/$file" "$out/$1/"
    done
    tail -n 25 "$out/$1/log.txt"
}
run attention-helps pairs "${WORKERS:-6}" "$@" &
run translation-pretraining text "${WORKERS:-10}" "$@" &
wait
[ -n "${WORK:-}" ] || rm -rf "$work"
