"""Three convolutions read the same image; their outputs are summed."""

import torch
from torch import nn


class MultiConv(nn.Module):
    def __init__(self, channels=64):
        super().__init__()
        self.conv1 = nn.Conv2d(3, channels, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(3, channels, kernel_size=3, padding=1)
        self.conv3 = nn.Conv2d(3, channels, kernel_size=3, padding=1)

    def forward(self, x):
        return self.conv1(x) + self.conv2(x) + self.conv3(x)


def build_model():
    return MultiConv()


def example_inputs():
    batch, size = (16, 224) if torch.cuda.is_available() else (2, 96)
    return torch.randn(batch, 3, size, size)
