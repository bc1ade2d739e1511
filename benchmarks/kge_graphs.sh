#!/usr/bin/env bash
# TransE (and others, by name) on WN18RR and FB15k-237: prepare, train, rank the valid triples of both sides.
#   bash benchmarks/kge_graphs.sh OUT [DATA]                        # transe-wn18rr, 200 wide: minutes on one GPU
#   RECIPES="transe-wn18rr transe-fb15k237 rotate-wn18rr" FULL=1 bash benchmarks/kge_graphs.sh OUT [DATA]
# Published: TransE on WN18RR MRR .22-.23, hits@10 .50-.53; on FB15k-237 .33, .53 (self-adversarial); RotatE .477, .571 and
# .338, .533 (Sun et al. 2019; test triples). Scaled down, 200 wide on WN18RR: MRR at least .20, hits@10 at least .45.
set -e
out=$1; data=${2:-shared/data/knowledge}
mkdir -p "$out"
[ -d "$out/wn18rr" ] || python -m etude prepare "$data/wn18rr_text_train.tsv.xz" --graph -o "$out/wn18rr" --valid "$data/wn18rr_text_valid.tsv.xz"
[ -d "$out/fb15k237" ] || python -m etude prepare "$data/fb15k237_train.tsv.xz" --graph -o "$out/fb15k237" --valid "$data/fb15k237_valid.tsv.xz"
small=(model.width=200 model.init_range=0.04 objective.negatives=256 train.steps=40000)
[ -n "$FULL" ] && small=()
for recipe in ${RECIPES:-transe-wn18rr}; do
    graph=${recipe##*-}
    [ -d "$out/$recipe" ] || time python -m etude pretrain "$recipe" "$out/$graph" -o "$out/$recipe" "${small[@]}"
    python -m etude evaluate "$out/$recipe" valid
done
