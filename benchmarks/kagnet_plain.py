"""KagNet a second time, in plain torch from its description: own grounding, own path search, padded tensors.

    etude world -o town --megabytes 0.5
    python benchmarks/kagnet_plain.py town --head mlp --epochs 8            # also: --head product, --shuffled

Nothing of etude is imported: where both answer alike, no leak of ours is the reason. Statement vectors are means of
random vectors of words. Two-hop questions of the world have one pair of concepts an answer, whose attention weight is
1: a product of the graph's vector (--head product, the released code) then scores a path alike whatever is asked, where
an MLP over graph and text (--head mlp, `task.score_hidden`) asks whether the path fits. --shuffled learns from shuffled
answers: test accuracy is then that of chance, 20 %, or of the share of answers that have a path.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CHOICES, STEPS, TEXT_WIDTH = 5, 3, 64
SchemaPath = tuple[tuple[int, ...], tuple[int, ...]]  # concepts, relations between them


class Examples(NamedTuple):
    """Answers of questions end to end (U answers, V nodes, K paths of a graph at most)."""

    nodes: Tensor  # (U, V) concepts
    edges: Tensor  # (U, V, V) 0 or 1
    path_nodes: Tensor  # (U, K, 3) places among the nodes, V: none
    path_relations: Tensor  # (U, K, 3)
    ends: Tensor  # (U, K) the step of a path's last concept
    is_path: Tensor  # (U, K)
    pair: Tensor  # (U, 2) places of the two concepts, V: none
    statements: Tensor  # (U, 64)
    labels: Tensor  # (questions,)

    def part(self, questions: Tensor) -> Examples:
        answers = (questions[:, None] * CHOICES + torch.arange(CHOICES)).flatten()
        return Examples(*(tensor[answers] for tensor in self[:-1]), self.labels[questions])


class Town:
    """The graph of the world: undirected neighbours with one relation each, and entities by label."""

    def __init__(self, folder: Path) -> None:
        lines = (folder / "knowledge/train.tsv").read_text(encoding="utf-8").splitlines()
        triples = [line.split("\t") for line in lines]
        self.entities = {name: n for n, name in enumerate(dict.fromkeys(t[side] for t in triples for side in (0, 2)))}
        relations = {name: number for number, name in enumerate(dict.fromkeys(t[1] for t in triples))}
        self.relations = 2 * len(relations)  # both directions; one more stands for none
        self.neighbours: dict[int, dict[int, int]] = defaultdict(dict)
        numbers = [(self.entities[h], relations[r], self.entities[t]) for h, r, t in triples if h != t]
        for head, relation, tail in numbers:
            self.neighbours[head].setdefault(tail, relation)
        for head, relation, tail in numbers:
            self.neighbours[tail].setdefault(head, relation + len(relations))
        self.by_label: dict[str, list[int]] = defaultdict(list)
        for line in (folder / "knowledge/labels.jsonl").read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            if entry["id"] in self.entities:
                self.by_label[entry["label"].lower()].append(self.entities[entry["id"]])

    def ground(self, text: str) -> list[int]:
        words = text.rstrip("?").lower().split()
        spans = (" ".join(words[i:j]) for i in range(len(words)) for j in range(i + 1, len(words) + 1))
        return sorted({number for span in spans for number in self.by_label.get(span, ())})

    def search(self, question: str, answer: str) -> list[SchemaPath]:
        """All paths of one and two edges between the concepts of both."""
        answers = self.ground(answer)
        paths: list[SchemaPath] = []
        for source in (number for number in self.ground(question) if number not in answers):
            for target in answers:
                near = self.neighbours[source]
                if target in near:
                    paths.append(((source, target), (near[target],)))
                for middle, relation in near.items():
                    if middle != target and target in self.neighbours[middle]:
                        paths.append(((source, middle, target), (relation, self.neighbours[middle][target])))
        return paths


def read_examples(town: Town, file: Path, word_vectors: dict[str, Tensor], draw: torch.Generator) -> Examples:
    records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    texts = [(record["question"], choice) for record in records for choice in record["choices"]]
    graphs = [town.search(*text) for text in texts]
    most_paths = max(1, *map(len, graphs))
    node_lists = [sorted({node for nodes, _ in paths for node in nodes}) for paths in graphs]
    most_nodes, count = max(2, *map(len, node_lists)), len(texts)
    examples = Examples(
        torch.full((count, most_nodes), len(town.entities)), torch.zeros(count, most_nodes, most_nodes),
        torch.full((count, most_paths, STEPS), most_nodes), torch.full((count, most_paths, STEPS), town.relations),
        torch.zeros(count, most_paths, dtype=torch.long), torch.zeros(count, most_paths, dtype=torch.bool),
        torch.full((count, 2), most_nodes), torch.zeros(count, TEXT_WIDTH),
        torch.tensor([record["answer"] for record in records]),
    )  # fmt: skip
    for unit, (paths, nodes, text) in enumerate(zip(graphs, node_lists, texts, strict=True)):
        places = {node: place for place, node in enumerate(nodes)}
        examples.nodes[unit, : len(nodes)] = torch.tensor(nodes, dtype=torch.long)
        for number, (concepts, relations) in enumerate(paths):
            steps = [places[concept] for concept in concepts]
            for one, two in pairwise(steps):
                examples.edges[unit, one, two] = examples.edges[unit, two, one] = 1
            examples.path_nodes[unit, number, : len(steps)] = torch.tensor(steps)
            examples.path_relations[unit, number, : len(relations)] = torch.tensor(relations)
            examples.ends[unit, number], examples.is_path[unit, number] = len(steps) - 1, True
            examples.pair[unit] = torch.tensor([steps[0], steps[-1]])
        words = " ".join(text).replace("?", "").lower().split()
        vectors = [word_vectors.setdefault(word, torch.randn(TEXT_WIDTH, generator=draw)) for word in words]
        examples.statements[unit] = torch.stack(vectors).mean(0)
    return examples


class Network(nn.Module):
    """The specification's network for one pair an answer: GCN, pair MLP, path LSTM, path attention, score."""

    def __init__(self, town: Town, concept_width: int, head: str, hidden: int = 128, relation_width: int = 100) -> None:
        super().__init__()
        self.concepts = nn.Embedding(len(town.entities) + 1, concept_width)
        self.relations = nn.Embedding(town.relations + 1, relation_width)
        nn.init.normal_(self.concepts.weight, std=concept_width**-0.5)
        nn.init.normal_(self.relations.weight, std=relation_width**-0.5)
        self.convolutions = nn.ModuleList([nn.Linear(concept_width, 50), nn.Linear(50, 25)])
        width = concept_width + 25
        self.pair = nn.Sequential(
            nn.Linear(2 * width + TEXT_WIDTH, 2 * hidden), nn.LeakyReLU(), nn.Linear(2 * hidden, hidden), nn.LeakyReLU()
        )
        self.lstm = nn.LSTM(width + relation_width, hidden, batch_first=True)
        self.attention = nn.Linear(hidden, hidden, bias=False)
        self.text = nn.Linear(TEXT_WIDTH, 1)
        self.reads_text = head == "mlp"
        self.score: nn.Module = nn.Linear(2 * hidden, 1, bias=False)
        if self.reads_text:
            self.score = nn.Sequential(
                nn.Linear(2 * hidden + TEXT_WIDTH, 128), nn.ReLU(), nn.Linear(128, 1, bias=False)
            )

    def forward(self, batch: Examples) -> Tensor:
        """(questions, 5) scores."""
        static = self.concepts(batch.nodes)
        hidden = static
        for layer in self.convolutions:
            hidden = F.relu(batch.edges @ hidden @ layer.weight.T + layer.bias)
        nodes = F.pad(torch.cat([static, hidden], -1), (0, 0, 0, 1))  # (U, V+1, D), the last 0
        units, paths = torch.arange(len(nodes)), batch.path_nodes.shape[1]
        ends = nodes[units[:, None], batch.pair].flatten(1)
        pairs = self.pair(torch.cat([ends, batch.statements], -1))  # (U, hidden)
        steps = torch.cat([nodes[units[:, None, None], batch.path_nodes], self.relations(batch.path_relations)], -1)
        states = self.lstm(steps.flatten(0, 1))[0]
        last = states[torch.arange(len(states)), batch.ends.flatten()].view(len(nodes), paths, -1)
        fit = (last * self.attention(pairs)[:, None]).sum(-1).masked_fill(~batch.is_path, -1e9)
        weights = fit.softmax(-1) * batch.is_path
        graph = torch.cat([pairs, (weights[..., None] * last).sum(1)], -1)  # one pair: its own weight is 1
        graph_score = self.score(torch.cat([graph, batch.statements], -1) if self.reads_text else graph)
        return (self.text(batch.statements) + graph_score).view(-1, CHOICES)


@torch.no_grad()
def measure(network: Network, examples: Examples) -> float:
    questions = torch.arange(len(examples.labels)).split(100)
    parts = (examples.part(part) for part in questions)
    right = sum(int((network(part).argmax(1) == part.labels).sum()) for part in parts)
    return right / len(examples.labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("town", type=Path)
    parser.add_argument("--head", choices=("mlp", "product"), default="mlp")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--concept-width", type=int, default=8)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--shuffled", action="store_true", help="learn from shuffled answers")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    town, word_vectors, draw = Town(options.town), {}, torch.Generator().manual_seed(options.seed)
    train, test = (
        read_examples(town, options.town / f"tasks/paths.{split}.jsonl", word_vectors, draw)
        for split in ("train", "test")
    )
    if options.shuffled:
        train = train._replace(labels=train.labels[torch.randperm(len(train.labels))])
    network = Network(town, options.concept_width, options.head)
    optimizer = torch.optim.AdamW(network.parameters(), options.lr)
    started = time.process_time()
    for epoch in range(options.epochs):
        for group in optimizer.param_groups:
            group["lr"] = options.lr * (1 - epoch / options.epochs)
        for questions in torch.randperm(len(train.labels)).split(50):
            batch = train.part(questions)
            scores = network(batch)
            right = scores.gather(1, batch.labels[:, None])
            is_wrong = torch.ones_like(scores).scatter(1, batch.labels[:, None], 0.0)
            loss = (F.relu(0.2 - right + scores) * is_wrong).sum() / is_wrong.sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if epoch % 4 == 3 or epoch == options.epochs - 1:
            seconds = time.process_time() - started
            print(f"{options.head}, epoch {epoch + 1}: train {measure(network, train):.1%}, "
                  f"test {measure(network, test):.1%}, {seconds:.0f} s of CPU", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
