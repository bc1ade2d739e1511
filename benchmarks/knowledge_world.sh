#!/usr/bin/env bash
# What the graph of the built-in world teaches, with five seeds: TransE on held-out facts, ERNIE beside the same BERT on
# mentions that no training example has (links right, 10 and 30 % wrong), KagNet beside the text alone on two-hop questions.
#
#   bash benchmarks/knowledge_world.sh FOLDER [WORKERS] [SEEDS] [words for `etude study`]     # two cores, minutes
#
# Everything lies in FOLDER, and what is finished there is not done again: call it as often as need be.
# ETUDE is the command, `python -m etude` if it is not set.
set -e
studies=$(cd "$(dirname "$0")/../studies" && pwd)
folder=${1:?a folder for data and runs}; workers=${2:-2}; seeds=${3:-5}; shift $(($# < 3 ? $# : 3))
etude=${ETUDE:-"python -m etude"}
export OMP_NUM_THREADS=1
mkdir -p "$folder"; cd "$folder"
small="train.save_every=0 train.eval_every=0 train.device=cpu --quiet"
facts=data/world/knowledge
[ -d data/world ] || $etude world -o data/world --megabytes 0.5 --anchored 1.5 > /dev/null
[ -d data/graph ] || $etude prepare $facts/train.tsv --graph -o data/graph --valid $facts/valid.tsv --test $facts/test.tsv \
    --entities $facts/labels.jsonl > /dev/null
[ -d data/linked ] || $etude prepare data/world/anchored.txt --link data/graph --anchors wiki -t wordpiece:1000,lower \
    -o data/linked > /dev/null
for ((seed = 0; seed < seeds; seed++)); do
    run=runs/transe-$seed
    [ -f $run/model.safetensors ] || $etude pretrain transe-toy data/graph -o $run train.seed=$seed train.steps=1000 $small
    [ -s $run.txt ] || $etude evaluate $run > $run.txt
    echo "TransE, seed $seed: $(grep -E '^(mrr|hits@10) ' $run.txt | tr -s ' ' | tr '\n' ';')"
done
[ -e runs/transe ] || ln -s transe-0 runs/transe
[ -f runs/bert/model.safetensors ] || $etude pretrain bert-toy data/linked -o runs/bert train.steps=600 $small
where="--on here"
[ "$workers" -gt 1 ] && where="--workers $workers"
$etude study "$studies/linked/entities-help.yaml" --others "$studies/paths-help.yaml" --data data/world/tasks \
    -o studies --device cpu --quiet $where "$@" seeds.pretrain=$seeds
cat studies/*/table.md
