"""A residual block with batch normalisation, the building block of a ResNet."""

import torch
from torch import nn


class ResidualBlock(nn.Module):
    def __init__(self, channels=64):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, kernel_size=3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, kernel_size=3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU()

    def forward(self, x):
        out = self.conv1(x)
        out = self.bn1(out)
        out = self.relu(out)
        out = self.conv2(out)
        out = self.bn2(out)
        out = out + x
        return self.relu(out)


def build_model():
    return ResidualBlock()


def example_inputs():
    batch = 64 if torch.cuda.is_available() else 4
    return torch.randn(batch, 64, 56, 56)
