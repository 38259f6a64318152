import torch

from fusionadvisor.evaluate.memory import peak_bytes


def test_the_peak_is_what_was_held_at_once() -> None:
    x = torch.zeros(1000)

    def one_after_the_other() -> None:
        for _ in range(3):
            torch.add(x, x)

    def together() -> list[torch.Tensor]:
        return [torch.add(x, x) for _ in range(3)]

    assert peak_bytes(one_after_the_other, "cpu") == 4000
    assert peak_bytes(together, "cpu") == 12000
