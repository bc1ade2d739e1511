#!/bin/bash
# Studies on one GPU with a real corpus, several side by side:
#
#   benchmarks/studies_gpu.sh CORPUS TASKS OUT [STUDY ...] [-- key=value or options for all]
#
# CORPUS  a prepared corpus (wordpiece, about 10 million tokens), TASKS a folder with the tasks that a study names (sst2,
# ud_ewt, mrpc, trec6, wikigold_ner) as <task>/train.jsonl.xz and valid.jsonl.xz, OUT gets each study's report.html, results.json, table.md and log. PYTHON and WORKERS may be set.
# Cells are small: 14 at once under the MPS daemon (nvidia-cuda-mps-control -d) made about 190 steps a second together on an
# H200, where each study has 6 to 12 pre-trainings of about 2,000 steps.
set -u
corpus=$1 tasks=$2 out=$3
shift 3
names=()
while [ $# -gt 0 ] && [ "$1" != "--" ]; do names+=("$1"); shift; done
[ $# -gt 0 ] && shift
[ ${#names[@]} -eq 0 ] && names=(mlm-vs-electra sentence-objectives mask-rate)
root=$(cd "$(dirname "$0")/.." && pwd)
export PYTHONPATH=$root/src:${PYTHONPATH:-} OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}
work=${WORK:-$(mktemp -d)}  # WORK: a folder that stays, so that a second call goes on
started=$(date +%s)
for name in "${names[@]}"; do
    mkdir -p "$out/$name"
    (
        "${PYTHON:-python3}" -m etude.cli.main study "$root/studies/$name.yaml" --gpu --text "$corpus" --data "$tasks" \
            -o "$work/$name" --workers "${WORKERS:-4}" "$@" > "$out/$name/log.txt" 2>&1
        echo "$name: exit $?, $(($(date +%s) - started)) s"
        for file in report.html results.json table.md study.yaml registered.json; do
            [ -f "$work/$name/$file" ] && cp "$work/$name/$file" "$out/$name/"
        done
        tail -n 25 "$out/$name/log.txt"
    ) &
done
wait
[ -n "${WORK:-}" ] || rm -rf "$work"
