"""A two-layer classifier, as in many first tutorials."""

import torch
import torch.nn.functional as F
from torch import nn


class SimpleMLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(100, 100)
        self.fc2 = nn.Linear(100, 10)

    def forward(self, x):
        x = F.relu(self.fc1(x))
        return F.log_softmax(self.fc2(x), dim=1)


def get_inputs():
    return torch.randn(32, 100)
