"""Logistic regression on a table with categories, as a peer of what Motley trains: each category has one weight, found by
a hash among 2^20, and numbers are normalised. Adagrad on mini-batches with a small L2 penalty on the weights that a batch
touches; three epochs in an order that is always the same.

    logistic_regression.py TRAIN.csv TEST.csv TARGET CATEGORY,CATEGORY,...

Prints `auc VALUE`, the area under the ROC curve on the test table.
"""

import csv
import sys
import zlib

import numpy as np

BUCKETS, BATCH, EPOCHS, RATE, L2 = 1 << 20, 256, 3, 0.05, 1e-5


def read(path, target, categories):
    """Numbers, places of the categories' weights and targets of a table's rows."""
    with open(path, newline="") as file:
        rows = csv.reader(file)
        header = next(rows)
        category_at = [header.index(name) for name in categories]
        target_at = header.index(target)
        number_at = [i for i in range(len(header)) if i != target_at and i not in category_at]
        numbers, places, targets = [], [], []
        for row in rows:
            numbers.append([float(row[i]) for i in number_at])
            places.append([zlib.crc32(f"{header[i]}={row[i]}".encode()) % BUCKETS for i in category_at])
            targets.append(float(row[target_at]))
    return np.array(numbers), np.array(places, dtype=np.int64), np.array(targets)


def auc(scores, targets):
    """The share of pairs of a positive and a negative that are in order; equal scores count as half."""
    _, rank_of, counts = np.unique(scores, return_inverse=True, return_counts=True)
    middle_ranks = (np.cumsum(counts) - (counts - 1) / 2)[rank_of]
    positives = targets.sum()
    return (middle_ranks[targets == 1].sum() - positives * (positives + 1) / 2) / positives / (len(targets) - positives)


train_path, test_path, target, categories = sys.argv[1:]
numbers, places, targets = read(train_path, target, categories.split(","))
mean, deviation = numbers.mean(0), numbers.std(0)
deviation[deviation == 0] = 1
numbers = np.hstack([(numbers - mean) / deviation, np.ones((len(numbers), 1))])

dense, dense_squares = np.zeros(numbers.shape[1]), np.full(numbers.shape[1], 1e-8)
weights, squares = np.zeros(BUCKETS), np.full(BUCKETS, 1e-8)
random = np.random.default_rng(1)
for _ in range(EPOCHS):
    order = random.permutation(len(targets))
    for batch in np.split(order, range(BATCH, len(order), BATCH)):
        x, at = numbers[batch], places[batch]
        scores = x @ dense + weights[at].sum(1)
        error = (1 / (1 + np.exp(-scores)) - targets[batch]) / len(batch)
        gradient = x.T @ error
        dense_squares += gradient**2
        dense -= RATE * gradient / np.sqrt(dense_squares)
        touched, of = np.unique(at, return_inverse=True)
        gradient = np.bincount(of.ravel(), np.repeat(error, at.shape[1]), len(touched)) + L2 * weights[touched]
        squares[touched] += gradient**2
        weights[touched] -= RATE * gradient / np.sqrt(squares[touched])

numbers, places, targets = read(test_path, target, categories.split(","))
numbers = np.hstack([(numbers - mean) / deviation, np.ones((len(numbers), 1))])
print(f"auc {auc(numbers @ dense + weights[places].sum(1), targets):.4f}")
