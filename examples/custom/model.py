"""A network of one's own, for motley export."""

import torch


class Net(torch.nn.Module):
    def __init__(self, channels: int = 16):
        super().__init__()
        self.features = torch.nn.Sequential(
            torch.nn.Conv2d(1, channels, 5, stride=2, padding=2),
            torch.nn.ReLU(),
            torch.nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1),
            torch.nn.ReLU(),
        )
        self.classifier = torch.nn.Linear(2 * channels * 49, 10)

    def forward(self, images):
        return self.classifier(self.features(images).flatten(1))
