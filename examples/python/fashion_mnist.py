"""Fashion-MNIST from Debian's package dataset-fashion-mnist, and a small CNN for it."""
import gzip

import torch

FOLDER = "/usr/share/datasets/fashion-mnist"
HEADERS = {"images-idx3": 16, "labels-idx1": 8}  # bytes before the data of a file


class Images(torch.utils.data.Dataset):
    """`which` is "train" (60,000 images) or "t10k" (10,000); each is 1 x 28 x 28 from 0 to 1, with a class of ten."""

    def __init__(self, which):
        read = {}
        for kind, header in HEADERS.items():
            with gzip.open(f"{FOLDER}/{which}-{kind}-ubyte.gz") as file:
                read[kind] = torch.frombuffer(bytearray(file.read()[header:]), dtype=torch.uint8)
        self.images = read["images-idx3"].view(-1, 1, 28, 28)
        self.labels = read["labels-idx1"].long()

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index].float() / 255, self.labels[index]


def make_net(channels=16):
    nn = torch.nn
    return nn.Sequential(nn.Conv2d(1, channels, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(channels, 2 * channels, 3), nn.ReLU(),
                         nn.MaxPool2d(2), nn.Flatten(), nn.Linear(50 * channels, 64), nn.ReLU(), nn.Linear(64, 10))
