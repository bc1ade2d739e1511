#!/usr/bin/env bash
# Everything about knowledge graphs that one GPU has still to measure, in the order of worth, within some minutes.
#
#   bash benchmarks/knowledge_visit.sh DATA OUT MINUTES
#
# DATA holds knowledge/conceptnet_cn100k_train.tsv.xz, knowledge/{fb15k237,wn18rr_text}_{train,valid}.tsv.xz (or they lie in
# GRAPHS=FOLDER), tasks/{commonsenseqa,semeval2010_8} and corpora/enwiki_train.txt.xz (or TEXT=FILE); what is absent
# leaves out its step and is named. PYKEEN=FOLDER holds PyKEEN's wheels (`kge_pykeen.py --wheels`). BERT=FOLDER is a
# published BERT to start the studies from; without it one is trained. Runs and prepared data lie in WORK=FOLDER.
# DEVICE=cpu SECONDS_A_STEP=40 tries the script on any machine.
#
# Each step has its own limit and writes OUT/NAME.txt as it goes, what failed included; a step that is finished
# (OUT/NAME.done) is not done again, and the studies import their cells, so a second call goes on. OUT/summary.txt has a
# line a step.
set -u
data=$(cd "${1:?the folder of data}" && pwd) || exit 2
mkdir -p "${2:?a folder for results}"; out=$(cd "$2" && pwd)
end=$((SECONDS + ${3:?minutes} * 60))
here=$(cd "$(dirname "$0")" && pwd)
device=${DEVICE:-cuda}; cap=${SECONDS_A_STEP:-100000}
export PYTHONPATH="$here/../src${PYKEEN:+:$PYKEEN}${PYTHONPATH:+:$PYTHONPATH}"
graphs=$(cd "${GRAPHS:-$data/knowledge}" && pwd) || exit 2
work=${WORK:-${TMPDIR:-/tmp}/etude_knowledge}; mkdir -p "$work"
python - > "$out/machine.txt" <<'P'
from etude.runs.model_card import describe_hardware, describe_versions
print(describe_hardware(), describe_versions())
P
(cd "$here" && git rev-parse HEAD 2> /dev/null) >> "$out/machine.txt"

step() { # NAME SECONDS COMMAND...: run it within its limit and what is left of all
    local name=$1 limit=$2 started=$SECONDS left=$((end - SECONDS)) code; shift 2
    [ -e "$out/$name.done" ] && { echo "$name: done before" | tee -a "$out/summary.txt"; return; }
    [ "$limit" -gt "$left" ] && limit=$left
    [ "$limit" -gt "$cap" ] && limit=$cap
    [ "$limit" -lt 15 ] && { echo "$name: no time left" | tee -a "$out/summary.txt"; return; }
    echo "# limit $limit s: $*" >> "$out/$name.txt"
    timeout --kill-after=20 "$limit" "$@" >> "$out/$name.txt" 2>&1; code=$?
    [ $code = 0 ] && touch "$out/$name.done"
    echo "$name: exit $code after $((SECONDS - started)) s: $(grep '[a-z]' "$out/$name.txt" | tail -1 | cut -c1-160)" \
        | tee -a "$out/summary.txt"
}
need() { # NAME FILE...: whether all are there; otherwise the step is named as left out
    local name=$1 file; shift
    for file in "$@"; do
        [ -e "$file" ] || { echo "$name: left out, there is no $file" | tee -a "$out/summary.txt"; return 1; }
    done
}
has_pykeen() {
    python -c "import pykeen" 2> /dev/null || { echo "$1: left out, PyKEEN cannot be imported" | tee -a "$out/summary.txt"; return 1; }
}

train_graph() { # RECIPE GRAPH TRAIN VALID SETTINGS...: prepare, train (or go on), rank the valid triples
    local recipe=$1 graph=$work/$2 train=$3 valid=$4 run=$work/$1; shift 4
    [ -d "$graph" ] || python -m etude prepare "$train" --graph -o "$graph" --valid "$valid" || return 1
    if [ -d "$run" ]; then
        [ -e "$run/model.safetensors" ] || python -m etude pretrain --resume "$run" --quiet || return 1
    else
        python -m etude pretrain "$recipe" "$graph" -o "$run" --quiet "train.device=$device" train.save_every=2000 \
            train.eval_every=0 "$@" || return 1
    fi
    python -m etude evaluate "$run" valid
}
export -f train_graph; export work device

# 1. gradients of a compiled ERNIE in half precision
[ "$device" = cpu ] || step ernie_gradients 180 python -m pytest -q -p no:cacheprovider -m gpu \
    "$here/../tests/objectives/test_entity_alignment.py" "$here/../tests/nn/test_losses.py"

# 2. PyKEEN: both graphs, the same settings, seeds in turns; the goal is 3 times its speed at the same MRR
small=(); [ "$device" = cpu ] && small=(--triples 3000 --width 16 --negatives 8 --ranked 100)
for graph in fb15k237 wn18rr; do
    files=("$graphs/$graph"*_train.tsv.xz)
    need "pykeen_$graph" "${files[0]}" && has_pykeen "pykeen_$graph" && step "pykeen_$graph" 420 \
        python "$here/kge_pykeen.py" --data "$graphs" --graph $graph --device "$device" --epochs 6 --seeds 5 --share 128 1 \
        --limit 390 --json "$out/pykeen_$graph.json" "${small[@]}"
done

# 3. TransE with the published settings; stopped and called again, a run goes on
steps=(); [ "$device" = cpu ] && steps=(train.steps=20 model.width=16 train.compile=false)
need transe_wn18rr "$graphs/wn18rr_text_train.tsv.xz" && step transe_wn18rr 600 bash -c 'train_graph "$@"' - \
    transe-wn18rr wn18rr "$graphs/wn18rr_text_train.tsv.xz" "$graphs/wn18rr_text_valid.tsv.xz" "${steps[@]}"
need transe_fb15k237 "$graphs/fb15k237_train.tsv.xz" && step transe_fb15k237 600 bash -c 'train_graph "$@"' - \
    transe-fb15k237 fb15k237 "$graphs/fb15k237_train.tsv.xz" "$graphs/fb15k237_valid.tsv.xz" "${steps[@]}"

# 4. speed of ERNIE's pre-training beside BERT's: the goal is 0.70
tiny=(); [ "$device" = cpu ] && tiny=(--tiny --rounds 3 --seconds 1)
step ernie_speed 150 python "$here/ernie_speed.py" --limit 120 --rounds 4 --seconds 3 --out "$out/ernie_speed.json" "${tiny[@]}"

# 5. both studies, five seeds, from one queue; cells.zip is written after each cell and read by the next call
left=$(((end - SECONDS) / 60 - 1))
text=${TEXT:-$data/corpora/enwiki_train.txt.xz}
if [ "$device" = cpu ]; then
    echo "studies: left out on a CPU (benchmarks/knowledge_world.sh has their halves for one)" | tee -a "$out/summary.txt"
elif [ "$left" -lt 3 ]; then
    echo "studies: no time left" | tee -a "$out/summary.txt"
elif need studies "$text" "$data/knowledge/conceptnet_cn100k_train.tsv.xz" "$data/tasks/commonsenseqa" "$data/tasks/semeval2010_8"; then
    earlier=(); [ -s "$out/studies/cells.zip" ] && cp "$out/studies/cells.zip" "$work/earlier.zip" && earlier=(--import "$work/earlier.zip")
    step studies $((left * 60 + 45)) python "$here/knowledge_studies.py" "$data" "$out/studies" --text "$text" \
        --work "$work/studies" --device "$device" --minutes "$left" ${BERT:+--start "$BERT"} "${earlier[@]}"
    rm -f "$out/studies.done"  # it ends well with cells still to do: the next call goes on
fi
cat "$out/machine.txt"
