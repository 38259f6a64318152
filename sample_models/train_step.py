"""A small classifier with its training step. Profile it with --train."""

import torch
import torch.nn.functional as F
from torch import nn


class Classifier(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(32)
        self.conv2 = nn.Conv2d(32, 64, 3, stride=2, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(64)
        self.norm = nn.LayerNorm(64)
        self.head = nn.Linear(64, classes)

    def forward(self, images):
        x = F.relu(self.bn1(self.conv1(images)))
        x = F.relu(self.bn2(self.conv2(x)))
        x = x.mean(dim=(2, 3))
        return self.head(self.norm(x))


def build_model():
    return Classifier()


def example_inputs():
    return torch.randn(32, 3, 32, 32)


def get_batch():
    return torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,))


def get_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=3e-4, foreach=False)


def train_step(model, optimizer, images, labels):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss


if __name__ == "__main__":
    model = build_model()
    optimizer = get_optimizer(model)
    for step in range(10):
        loss = train_step(model, optimizer, *get_batch())
        print(f"step {step}: loss {loss.item():.3f}")
