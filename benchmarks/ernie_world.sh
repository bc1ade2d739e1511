#!/usr/bin/env bash
# ERNIE and the BERT it starts from, typing entities of the built-in world that no training example has.
#
#   bash benchmarks/ernie_world.sh FOLDER [STEPS]      # two cores, minutes; prints micro F1 by share of wrong links
#
# Names of the district say nothing, and no text tells what they are: only the graph does. The BERT is also trained on
# for as many steps as ERNIE, so that both have read the same text as often.
set -e
folder=${1:?a folder for the runs}; steps=${2:-600}
etude=${ETUDE:-"python -m etude"}
mkdir -p "$folder"; cd "$folder"
small="train.save_every=0 train.eval_every=0"
$etude world -o world --megabytes 0.5 --anchored 1.5 > /dev/null
facts=world/knowledge
$etude prepare $facts/train.tsv --graph -o graph --valid $facts/valid.tsv --test $facts/test.tsv \
    --entities $facts/labels.jsonl > /dev/null
$etude prepare world/anchored.txt --link graph --anchors wiki -t wordpiece:1000,lower -o corpus > /dev/null
$etude pretrain transe-toy graph -o runs/transe --quiet train.steps=600 $small
$etude pretrain bert-toy corpus -o runs/bert --quiet train.steps=$steps $small
$etude pretrain runs/bert corpus -o runs/bert-longer --quiet train.steps=$steps $small
$etude pretrain ernie-toy corpus -o runs/ernie --quiet --start runs/bert --entities runs/transe train.steps=$steps $small
for model in bert-longer ernie; do
    for noise in "" _10 _30; do
        $etude finetune runs/$model entity_typing --train world/tasks/typing.train.jsonl -o runs/$model-typing$noise \
            --quiet -c entities=entities$noise train.steps=2500 train.lr=1e-3 train.batch_examples=16
        for split in seen test; do
            echo "$model, links wrong by ${noise:-0} %, $split:"
            $etude evaluate runs/$model-typing$noise world/tasks/typing.$split.jsonl
        done
    done
done
