#!/usr/bin/env bash
# GPU tests, picks and a study side by side on a GPU machine that has no network and is held for half an hour.
#
# Such a machine is taken back when nobody has sent it a command for half a minute, whatever runs on it: queue all commands of a
# visit, its last `wait` among them, before the first is sent. A sender that looks at one answer before it sends the next has lost
# pre-trainings of 15 minutes to one late reply. What has not been brought home by then, as weights, is lost. A visit that went
# well had three calls that carry (wheels and tasks with `begin` and `tests`; text.1 with `keep`; text.2 with `study`), then waits of
# 240 s, short ones at the end. The code travels with every call, and a call that carries more than 64 MiB with it is refused: where
# the first is, all those behind it are for nothing. `pack` says what each call carries.
#
# Here, once, in some minutes and with a network: what the machine lacks, in folders small enough to travel one or two at a time
# (PICKS=no: without pick and minilm, whose weights are a package of their own).
#   bash benchmarks/bare_gpu.sh pack DATA TEXT FOLDER     wheels, minilm, pick, tasks, text.1, text.2 (and more) in FOLDER
#   bash benchmarks/bare_gpu.sh split TEXT FOLDER         the text alone, in parts of which each travels beside the code
# There, in a checkout, as soon as the folders named have come, with this command or with one before it (`keep FOLDER WORK` takes
# in what has come, and does no more); each returns at once, and what it began goes on:
#   bash benchmarks/bare_gpu.sh begin FOLDER WORK         wheels: unpack them, and copy the code
#   bash benchmarks/bare_gpu.sh speed FOLDER WORK NAME... run these of generation, crf, lstm, steps, step20, start, seeds, encode, finetune, expert: they need the card alone
#   bash benchmarks/bare_gpu.sh tests FOLDER WORK         start `pytest -m gpu`
#   bash benchmarks/bare_gpu.sh picks FOLDER WORK         pick, minilm: start picks of --mode MODE, PARALLEL at once
#   bash benchmarks/bare_gpu.sh study FOLDER WORK NAME... text.*, tasks: prepare the text, start these studies
#   bash benchmarks/bare_gpu.sh heads FOLDER WORK         after `study`: pre-train RECIPE on its corpus, look at its attention heads
#   bash benchmarks/bare_gpu.sh learning FOLDER WORK      after `study`: the fast path and plain float32 on its corpus, past a bigram (same_learning.py with the flags in LEARNING)
#   bash benchmarks/bare_gpu.sh twenty FOLDER WORK        text.*, tasks: start twenty_minutes.py, which needs the card alone (DECODER=1: of decoders)
#   bash benchmarks/bare_gpu.sh trials FOLDER WORK NAME   text.*, tasks: start the trials of benchmarks/trials/NAME.yaml, WORKERS at once (2 leave less undone at the end), FINETUNINGS beside them (half the cores)
#   bash benchmarks/bare_gpu.sh weights WORK OUT SECONDS NUMBER...  wait for the encoder of `twenty`, put these of its files into OUT
#   bash benchmarks/bare_gpu.sh wait WORK OUT SECONDS     wait, say how far all are, put results into OUT/results.tgz
#   bash benchmarks/bare_gpu.sh stop WORK NAME            end tests or study in good order: one killed takes the others' GPU along
#
# A second visit goes on where the first one ended if FOLDER holds what came home of it: of OUT/results.tgz `trials` and
# `trial-runs` (trials are not repeated, and have as many steps), or `twenty` (fine-tunings are not repeated). With that goes the
# encoder as `weights` wrote it: encoder.01 to about encoder.08, of 15.5 MiB each, four of which come home with a call. They go
# there in folders encoder.1, encoder.2, ..., two in each and one folder a call, and no text is needed then.
#
# DATA holds tasks/NAME/{train,valid}.jsonl.xz and corpora/ (benchmarks/pick_tasks.py), TEXT is the text of the studies; cells
# that are there already count for the same text alone (benchmarks/results/cells/README.md). WORK outlives a checkout that is sent anew: the code runs from a copy in it. MODE=gpu-start, PARALLEL=6,
# SHARE=1, FINETUNE and EXPERT (more flags of these two speeds), PICK_MINUTES (the mode's), MINUTES=27 (from `begin` on, after which nothing is begun; 26.5 is 26 minutes 30 seconds), WORKERS=3 (cells of the study at once) are the defaults, STUDY_FLAGS go to `etude study` (--in-turn) (PARALLEL=0: no picks). Two
# cores belong to SHARE picks, the others to tests and study. Results: `pick_tasks.py --merge OUT/picks`,
# `take_home.py cells OUT/study/cells.zip` and a commit before anything else: what a visit has found is not to be had again for free.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
mode=${MODE:-gpu-start} parallel=${PARALLEL:-6} minutes=${MINUTES:-27} workers=${WORKERS:-3} share=${SHARE:-1}
if [[ ! $minutes =~ ^([0-9]+)(\.([0-9]+))?$ ]]; then echo "MINUTES is a number such as 26.5, not $minutes" >&2; exit 2; fi
fraction=${BASH_REMATCH[3]}000
seconds=$((10#${BASH_REMATCH[1]} * 60 + 10#${fraction:0:3} * 60 / 1000))
wheels_for=(--python-version 3.12 --platform manylinux2014_x86_64 --platform manylinux_2_17_x86_64
    --platform manylinux_2_28_x86_64 --only-binary=:all: --no-deps)

pack() { # DATA TEXT FOLDER
    local data=$1 text=$2 folder=$3 python=${PYTHON:-$root/.venv/bin/python} core task part
    mkdir -p "$folder/wheels" "$folder/tasks"
    "$python" -m pip download -q -d "$folder/wheels" "${wheels_for[@]}" "pydantic==2.*" annotated-types typing-inspection \
        hypothesis sortedcontainers threadpoolctl pytest-xdist execnet
    # pydantic asks for one version of its core
    core=$("$python" - "$folder"/wheels/pydantic-2*.whl <<'P'
import re, sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
metadata = wheel.read(next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))).decode()
print(re.search(r"Requires-Dist: pydantic-core ?\(?(==[\w.]+)", metadata)[1])
P
    )
    "$python" -m pip download -q -d "$folder/wheels" "${wheels_for[@]}" "pydantic-core$core"
    "$python" -m pip wheel -q --no-deps -w "$folder/wheels" seqeval pytorch-crf
    "$python" -m pip download -q -d "$folder/wheels" "${wheels_for[@]}" sentence-transformers accelerate psutil
    if [ "${PICKS:-yes}" = yes ]; then
        "$python" "$here/pick_tasks.py" "$data" --pack "$folder/pick"
        rm -rf "$folder/minilm"; mv "$folder/pick/minilm" "$folder/minilm"
        xz -9 -T0 -f "$folder/minilm/model.safetensors"
    fi
    for task in cola sst2 mrpc stsb rte qnli ud_ewt wnut17_ner agnews snips_intent_slots; do
        mkdir -p "$folder/tasks/$task"
        for part in train valid; do  # some have no valid
            if [ -e "$data/tasks/$task/$part.jsonl.xz" ]; then cp "$data/tasks/$task/$part.jsonl.xz" "$folder/tasks/$task/"; fi
        done
    done
    mkdir -p "$folder/tasks/lambada"; cp "$data"/tasks/lambada/*.jsonl.xz "$folder/tasks/lambada/"
    gzip -dc "$data/vocab/bert_uncased_vocab.txt.gz" > "$folder/tasks/vocab.txt"
    split_text "$text" "$folder"
}

split_text() { # TEXT FOLDER
    local text=$1 folder=$2 code room name parts
    code=$(cd "$root" && git ls-files -z --cached --others --exclude-standard | xargs -0 du -b | awk '{ total += $1 } END { print total }')
    room=$((${CALL_BYTES:-$((64 << 20))} - code - (1 << 20)))
    if ((room <= 0)); then echo "the code alone is $((code >> 20)) MiB, and a call carries 64: leave something out of it" >&2; exit 2; fi
    parts=$(mktemp -d)
    xz -6 -T0 -c "$text" | split -b "$room" --numeric-suffixes=1 -a 1 - "$parts/text."
    rm -rf "$folder"/text.[1-9]
    for name in "$parts"/text.?; do
        mkdir -p "$folder/${name##*/}"; mv "$name" "$folder/${name##*/}/text.xz"
    done
    rm -r "$parts"
    echo "a call carries $((room >> 20)) MiB beside the code:"
    (cd "$folder" && du -sm -- *)
}

needs() { # NAMES GIVEN...: says which arguments of the command are missing, before anything is made of the others
    local names=($1); shift
    if (($# >= ${#names[@]})); then return; fi
    echo "$command: ${names[*]:$#} missing. It is: bash benchmarks/bare_gpu.sh $command ${names[*]}" >&2; exit 2
}

detach() { # NAME CORES COMMAND...: in a process of its own, from the copied code, with its messages in WORK/NAME.log
    local name=$1 cores=$2; shift 2
    # a list in the background would be a shell of its own, whose number says nothing about the command once it is gone
    (cd "$work/tree"; PYTHONPATH="$work/tree/src:$work/packages" PYTHONUNBUFFERED=1 setsid nohup taskset -c "$cores" "$@" \
        > "$work/$name.log" 2>&1 < /dev/null & echo $! > "$work/$name.pid")
    echo "$name: began $(($(date +%s) - $(cat "$work/begun"))) s after the beginning"
}
left() { # seconds until nothing is to be under way
    echo $((seconds - ($(date +%s) - $(cat "$work/begun"))))
}
minutes_left() { # the same for a command that is to begin: minutes with a fraction, since a whole one is a sixth of a pre-training
    local remaining=$(left)
    if ((remaining <= 0)); then echo "$command: the $minutes minutes are up" >&2; exit 3; fi
    printf '%d.%03d\n' $((remaining / 60)) $((remaining % 60 * 1000 / 60))
}
last=$(($(nproc) - 1))
used=$((2 * parallel / share))  # cores of picks
other_cores=$((used > last ? last : used))-$last

keep() { # FOLDER: what has come outlives the checkout
    local name
    for name in minilm pick tasks text.{1..9} trials; do
        if [ -d "$1/$name" ] && [ ! -e "$work/$name" ]; then cp -r "$1/$name" "$work/"; fi
    done
    for name in trial-runs/speeds.json twenty/scores.jsonl twenty/decoders.json; do  # the rest of those folders is for reading
        if [ -e "$1/$name" ] && [ ! -e "$work/$name" ]; then mkdir -p "$work/${name%/*}"; cp "$1/$name" "$work/$name"; fi
    done
    for name in "$1"/encoder*; do  # files, or folders of them
        if [ -e "$name" ]; then mkdir -p "$work/encoder"; find "$name" -type f -name "encoder.*" -exec cp {} "$work/encoder/" \;; fi
    done
}

begin() { # FOLDER
    date +%s > "$work/begun"
    # pip may belong to another Python than the one with torch: a wheel is a zip, and a folder on the path will do
    for wheel in "$1"/wheels/*.whl; do python -m zipfile -e "$wheel" "$work/packages"; done
    echo "${COMMIT:-$(git -C "$root" rev-parse --short HEAD 2> /dev/null || echo unknown)}" > "$work/commit"
    mkdir -p "$work/tree"; (cd "$root" && tar cf - --exclude="./$(basename "$1")" --exclude=./.git .) | tar xf - -C "$work/tree"
    (cd "$work/tree" && PYTHONPATH="$work/tree/src:$work/packages" python -c "import etude.cli.main, pydantic, seqeval; print(\"pydantic\", pydantic.VERSION)")
}

speed() { # FOLDER NAME...: each for a minute or two; encode for five; finetune and expert for nine, so each in a call of its own
    local name line most
    shift
    for name in "$@"; do
        most=150
        case $name in
        generation) line="generation_speed.py --texts 128 --rounds 4 --kernels 6" ;;
        crf) line="crf_speed.py --rounds 10" ;;
        lstm) line="lstm_speed.py --rounds 8" ;;
        steps) line="recorded_step.py --only mini-mlm mini-electra medium-mlm medium-electra --profile 25 --seconds 100" ;;
        step20) line="recorded_step.py --only encoder-20min electra --forms recorded --profile 45 --seconds 120"; most=220 ;;
        start) line="finetune_start.py"; most=300 ;;
        seeds) line="finetune_seeds.py"; most=400 ;;
        encode) line="encode_speed.py --texts 60000 --rounds 3 --seconds 220"; most=320 ;;
        finetune) line="finetune_speed.py --rounds 2 --seconds 440 ${FINETUNE:-}"; most=560 ;;
        expert) line="train_speed.py --peers expert --rounds 2 --steps 40 --only bert-128,bert-512,gpt2-1024,electra-128 ${EXPERT:-}"; most=560 ;;
        *) echo "generation, crf, lstm, steps, step20, start, seeds, encode, finetune or expert, not $name" >&2; exit 2 ;;
        esac
        echo "== $line"
        (cd "$work/tree" && PYTHONPATH="$work/tree/src:$work/packages" timeout $most python benchmarks/$line 2>&1) \
            | tee "$work/speed.$name.log" | tail -n "${LINES_EACH:-40}" || true
    done
}

tests() { # FOLDER: compiled kernels are tested as a user runs them, without MPS
    # each process of pytest would import the other nine tenths of the tests, too, for half a minute
    local files; files=$(cd "$work/tree" && grep -rl --include="test_*.py" "mark\.gpu" tests)
    CUDA_MPS_PIPE_DIRECTORY="$work/no-mps" detach tests "${TEST_CORES:-$other_cores}" \
        python -m pytest -v -W ignore -p no:cacheprovider -m gpu -n "${TEST_PROCESSES:-4}" --dist worksteal --durations 40 \
        --continue-on-collection-errors $files
}

picks() { # FOLDER
    if [ -e "$work/minilm" ]; then mv "$work/minilm" "$work/pick/"; xz -df "$work/pick/minilm/model.safetensors.xz"; fi
    local limit; limit=$(minutes_left)
    # MPS takes 48 processes, a pick has two or three of them: a daemon for every 16 picks, each with tasks and cores of its own
    local tasks daemons=$(((parallel + 15) / 16)) number each first
    tasks=($(cd "$work/pick/tasks" && ls))
    each=$((parallel / daemons))
    for ((number = 0; number < daemons; number++)); do
        local mine=()
        for ((first = number; first < ${#tasks[@]}; first += daemons)); do mine+=("${tasks[first]}"); done
        export CUDA_MPS_PIPE_DIRECTORY="$work/mps.$number" CUDA_MPS_LOG_DIRECTORY="$work/mps.$number.log"
        mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"; nvidia-cuda-mps-control -d
        first=$((number * each / share * 2))
        detach "picks.$number" "$first-$((first + each / share * 2 - 1))" python benchmarks/pick_tasks.py "$work/pick" \
            --mode "$mode" --parallel "$each" --cores 2 --share "$share" --at-once "$parallel" ${PICK_MINUTES:+--minutes "$PICK_MINUTES"} --tasks "${mine[@]}" \
            --limit-minutes "$limit" --write "$work/picks/$number" --work "$work/pick-runs" --commit "$(cat "$work/commit")"
    done
}

unpack_text() {
    if ! cat "$work"/text.[1-9]/text.xz | xz -dc > "$work/text.txt"; then
        echo "$command: the text is not whole, of it there are: $(cd "$work" && echo text.[1-9])" >&2; exit 2
    fi
}

study() { # FOLDER NAME...
    shift; unpack_text
    local earlier=() limit; limit=$(minutes_left)
    nvidia-cuda-mps-control -d || true  # one runs already
    for cells in "$work"/tree/benchmarks/results/cells/*.zip; do earlier+=(--import "$cells"); done
    detach study "$other_cores" python benchmarks/studies_gpu.py "$work/text.txt" "$work/tasks" "$work/study" \
        --vocab "$work/tasks/vocab.txt" --work "$work/study-runs" --minutes "$limit" --workers "$workers" --studies "$@" \
        "${earlier[@]}" -- --any-version ${STUDY_FLAGS:-}
}

heads() { # FOLDER: claim 23; the corpus is the one that the study has prepared
    mkdir -p "$work/heads"
    detach heads "$other_cores" bash -ec "
        until [ -e $work/study-runs/corpus/manifest.json ]; do sleep 2; done
        python -m etude pretrain ${RECIPE:-encoder-5min} $work/study-runs/corpus -o $work/heads-run ${RECIPE_SET:-}
        python -m etude show heads $work/heads-run $work/tasks/ud_ewt/valid.jsonl.xz --sentences 1900 --pruning 200 --out $work/heads/heads.html
        cp $work/heads-run/README.md $work/heads/"
}

learning() { # FOLDER: the corpus is the one that the study has prepared
    detach learning "$other_cores" bash -ec "
        until [ -e $work/study-runs/corpus/manifest.json ]; do sleep 2; done
        python benchmarks/same_learning.py $work/study-runs/corpus ${LEARNING:-}"
}

unpack_encoder() { # what `weights` took home: without its checkpoints, since it is finished
    if [ -e "$work/twenty/encoder/checksums.json" ]; then return; fi
    rm -rf "$work/encoder.new"; mkdir -p "$work/encoder.new"
    if ! (set -o pipefail; cat "$work"/encoder/encoder.* | xz -dc | tar xf - -C "$work/encoder.new"); then
        echo "$command: the encoder is not whole, of it there are: $(ls "$work/encoder" | tr '\n' ' ')" >&2; exit 2
    fi
    mkdir -p "$work/twenty"; rm -rf "$work/twenty/encoder"; mv "$work/encoder.new/encoder" "$work/twenty/"; rm -r "$work/encoder.new"
}

weights() { # OUT SECONDS NUMBER...
    local out end number parts="$work/encoder.parts" file
    mkdir -p "$1"; out=$(cd "$1" && pwd); end=$((SECONDS + $2)); shift 2
    # checksums are written last
    while [ ! -e "$work/twenty/encoder/checksums.json" ] && [ $SECONDS -lt "$end" ] && [ -n "$(running)" ]; do sleep 2; done
    if [ ! -e "$work/twenty/encoder/checksums.json" ]; then
        echo "weights: the encoder is not finished; $(left) seconds left; under way: $(running)"; return
    fi
    if [ ! -e "$parts" ]; then
        rm -rf "$parts.new"; mkdir "$parts.new"
        tar cf - -C "$work/twenty" --exclude=encoder/checkpoints encoder | xz -1 -T0 -c \
            | split -b 15872K --numeric-suffixes=1 -a 2 - "$parts.new/encoder."
        mv "$parts.new" "$parts"
    fi
    for number in "$@"; do
        file=$parts/encoder.$(printf %02d "$number")
        if [ -e "$file" ]; then cp "$file" "$out/"; fi
    done
    echo "weights: $(ls "$out" | grep -c '^encoder\.') of $(ls "$parts" | wc -l) files are in OUT; $(left) seconds left"
}

twenty() { # FOLDER: RECIPE is pre-trained and fine-tuned on eight tasks; what is not done when the time is up is left out
    minutes_left > /dev/null
    if [ -d "$work/encoder" ]; then unpack_encoder; else unpack_text; fi
    nvidia-cuda-mps-control -d || true  # a dozen fine-tunings at once
    detach twenty "0-$last" python benchmarks/twenty_minutes.py "$work/text.txt" "$work/tasks" "$work/twenty" \
        --vocab "$work/tasks/vocab.txt" --recipe "${RECIPE:-encoder-20min}" --stop-after "$(left)" ${DECODER:+--decoder} --settings ${RECIPE_SET:-}
}

trials() { # FOLDER NAME: a trial that would not end in time is not begun
    unpack_text
    local limit; limit=$(minutes_left)
    nvidia-cuda-mps-control -d || true
    detach trials "0-$last" python benchmarks/recipe_trials.py "benchmarks/trials/$2.yaml" "$work/text.txt" "$work/tasks" "$work/trial-runs" \
        --tokenizer "$work/tasks/vocab.txt" --parallel "$workers" --finetunings "${FINETUNINGS:-$((last / 2 + 1))}" --until "$limit" \
        --commit "$(cat "$work/commit")" --results "$work/trials"
}

wait_for_all() { # OUT SECONDS
    local out end=$((SECONDS + $2)) name
    mkdir -p "$1"; out=$(cd "$1" && pwd)
    while [ $SECONDS -lt "$end" ] && [ -n "$(running)" ]; do sleep 3; done
    for name in "$work"/*.log; do
        [ -f "$name" ] && { echo "== $(basename "$name")"; tail -n "${LINES_EACH:-12}" "$name"; }
    done
    if [ -e "$work/study/log.txt" ]; then tail -n 5 "$work/study/log.txt"; fi
    if [ -e "$work/tests.log" ]; then grep -a "FAILED tests\|ERROR tests" "$work/tests.log" | sort -u | head -n 30 || true; fi
    (cd "$work" && tar czf "$out/results.tgz" --ignore-failed-read $(find . -maxdepth 1 -name '*.log' -type f) \
        $(ls -d commit picks study heads trials 2> /dev/null) \
        $(find twenty trial-runs \( -type d \( -name checkpoints -o -name 'corpus*' \) -o -name tokenizer.json \) -prune -o -type f \( -name '*.json' \
            -o -name '*.jsonl' -o -name '*.log' -o -name task.yaml -o -name recipe.yaml -o -name README.md \) -print 2> /dev/null)) \
        || (($? == 1))  # a file has grown while it was read, as logs do; the archive is whole
    echo "$(left) seconds left; under way: $(running)"
}
running() {
    local name
    for name in "$work"/*.pid; do
        [ -f "$name" ] && kill -0 "$(cat "$name")" 2> /dev/null && echo -n "$(basename "$name" .pid) "
    done
    return 0
}

stop() { # NAME: under MPS a process that is killed makes all others lose the device
    kill -TERM "$(cat "$work/$1.pid")" && for second in {1..30}; do
        kill -0 "$(cat "$work/$1.pid")" 2> /dev/null || break
        sleep 1
    done
    echo "under way: $(running)"
}

known="pack, split, keep, begin, speed, tests, picks, study, heads, learning, twenty, trials, weights, wait or stop"
command=${1:-nothing}
case $command in
pack) names="DATA TEXT FOLDER" ;;
split) names="TEXT FOLDER" ;;
speed | study | trials) names="FOLDER WORK NAME..." ;;
keep | begin | tests | picks | heads | learning | twenty) names="FOLDER WORK" ;;
weights) names="WORK OUT SECONDS NUMBER..." ;;
wait) names="WORK OUT SECONDS" ;;
stop) names="WORK NAME" ;;
*) echo "$known, not $command" >&2; exit 2 ;;
esac
shift; needs "$names" "$@"
case $command in
pack) pack "$@" ;;
split) mkdir -p "$2"; split_text "$@" ;;
wait) work=$(cd "$1" && pwd); wait_for_all "$2" "$3" ;;
weights) work=$(cd "$1" && pwd); shift; weights "$@" ;;
stop) work=$(cd "$1" && pwd); stop "$2" ;;
*)
    # the same command with WORK alone would take that for FOLDER, and make a folder of the first NAME
    if [ -e "$1/begun" ]; then echo "$command: $1 is a WORK, and FOLDER comes before it: $command $names" >&2; exit 2; fi
    case $command in
    keep | begin) mkdir -p "$2" ;;
    *) if [ ! -e "$2/begun" ]; then echo "$command: nothing has begun in $2: begin FOLDER WORK comes first" >&2; exit 2; fi ;;
    esac
    folder=$(cd "$1" && pwd); work=$(cd "$2" && pwd); shift 2
    keep "$folder"
    if [ "$command" != keep ]; then "$command" "$folder" "$@"; fi ;;
esac
