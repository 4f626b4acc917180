"""A click model of one's own, CTRDNN as others call it: embeddings of 26 categories at a parameter server, fully connected layers here.

    python -m motley launch --workers 2 examples/python/click_model.py --data train.txt

The data are in Criteo's format: a label, 13 numbers and 26 hexadecimal categories in a line, separated by tabs.
"""
import argparse
import math
import pathlib
import time

import torch
import torch.distributed as dist

import motley

NUMBERS, CATEGORIES, DIMENSION, HIDDEN = 13, 26, 10, 400


class Clicks(torch.utils.data.Dataset):
    """Numbers as log(1 + x); a category's ids are folded into `rows`, together with its column."""

    def __init__(self, path, rows):
        numbers, ids, labels = [], [], []
        with open(path, encoding="ascii") as file:
            for line in file:
                label, *cells = line.rstrip("\n").split("\t")
                labels.append(float(label))
                numbers.append([math.log1p(max(0, int(cell or 0))) for cell in cells[:NUMBERS]])
                ids.append([hash((column, int(cell or "0", 16))) % rows for column, cell in enumerate(cells[NUMBERS:])])
        self.numbers, self.ids, self.labels = torch.tensor(numbers), torch.tensor(ids), torch.tensor(labels)

    def __len__(self):
        return len(self.labels)

    def __getitems__(self, indices):
        """A whole batch at once, as torch's DataLoader asks where it can."""
        return self.numbers[indices], self.ids[indices], self.labels[indices]


class ClickModel(torch.nn.Module):
    def __init__(self, embeddings):
        super().__init__()
        self.embeddings = embeddings
        nn, width = torch.nn, NUMBERS + CATEGORIES * DIMENSION
        self.layers = nn.Sequential(nn.Linear(width, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(),
                                    nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))

    def forward(self, numbers, ids):
        return self.layers(torch.cat([numbers, self.embeddings(features(ids)).values()], dim=1)).squeeze(1)


def features(ids):
    return {f"category {column}": ids[:, column] for column in range(CATEGORIES)}


def train(options):
    torch.manual_seed(0)
    loader = motley.DataLoader(Clicks(options.data, options.rows), options.batch, drop_last=True, collate_fn=lambda batch: batch)
    table = motley.nn.EmbeddingBagConfig(name="categories", embedding_dim=DIMENSION, num_embeddings=options.rows,
                                         feature_names=[f"category {column}" for column in range(CATEGORIES)])
    embeddings = motley.nn.EmbeddingBagCollection([table], optimizer=motley.optim.RowAdagrad(lr=0.05), loader=loader,
                                                  features=lambda batch: features(batch[1]),
                                                  embedding_dir=options.checkpoint and f"{options.checkpoint}/rows")
    model = ClickModel(embeddings)
    optimizer = motley.optim.ParameterServerOptimizer(torch.optim.Adam(model.parameters(), lr=1e-3), loader=loader)
    embeddings.step_with(optimizer)
    parts = {"model": model, "optimizer": optimizer, "loader": loader}
    checkpoint = options.checkpoint and pathlib.Path(options.checkpoint, "state.pt")
    if checkpoint and checkpoint.exists():
        for name, state in torch.load(checkpoint, weights_only=True).items():
            parts[name].load_state_dict(state)

    step, times, last = 0, [], time.perf_counter()
    while True:
        for numbers, ids, labels in loader:
            loss = torch.nn.functional.binary_cross_entropy_with_logits(model(numbers, ids), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            now = time.perf_counter()
            times.append(now - last)
            step, last = step + 1, now
            if step % 50 == 0 and dist.get_rank() == 0:
                print(f"step {step}: loss {loss.item():.4f}, {options.batch / sorted(times[-50:])[25]:.0f} samples per second", flush=True)
            if step == options.steps:
                if checkpoint:
                    save(parts, checkpoint)
                return


def save(parts, checkpoint):
    """The state of everything, in which the embeddings say where their rows are; a new file takes the place of the old one whole."""
    states = {name: part.state_dict() for name, part in parts.items()}
    if dist.get_rank() == 0:
        torch.save(states, checkpoint.with_suffix(".new"))
        checkpoint.with_suffix(".new").replace(checkpoint)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=512, help="samples of a step, of all ranks together")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--checkpoint", help="a directory to go on from, and to leave all state in at the end")
    dist.init_process_group("gloo")
    train(parser.parse_args())
    dist.destroy_process_group()
