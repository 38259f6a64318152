"""Three linear layers with an activation after each, written as a plain nn.Sequential."""

import torch
from torch import nn

model = nn.Sequential(
    nn.Linear(512, 1024),
    nn.ReLU(),
    nn.Linear(1024, 1024),
    nn.ReLU(),
    nn.Linear(1024, 512),
    nn.ReLU(),
)

inputs = torch.randn(64, 512)
