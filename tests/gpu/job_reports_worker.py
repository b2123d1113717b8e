"""A short training of one kind, ended in one way; PyTorch and a GPU are needed, nothing of this project."""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
from torch import nn

HELD_S = 1.2
"""Long enough for a few samples."""


def main() -> None:
    """argv: kind of training, and how the process ends."""
    kind, end = sys.argv[1:3]
    _TRAININGS[kind]()
    time.sleep(HELD_S)
    _end(end)


def _train(net: nn.Module, batch: torch.Tensor, *, amp: bool = False) -> None:
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(4):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16, enabled=amp):
            loss = net(batch).float().pow(2).mean()
        loss.backward()
        optimizer.step()
    torch.cuda.synchronize()


def _mlp() -> None:
    net = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.LayerNorm(4096), nn.Linear(4096, 1024))
    _train(net.cuda(), torch.randn(256, 1024, device="cuda"))


def _convolutions() -> None:
    layers = [nn.Conv2d(3, 64, 7, 2, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1)]
    layers += [nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 128, 1), nn.AdaptiveAvgPool2d(1)]
    _train(nn.Sequential(*layers).cuda(), torch.randn(32, 3, 128, 128, device="cuda"))


def _cnn(amp: bool = False) -> None:
    import torchvision

    _train(torchvision.models.resnet18().cuda(), torch.randn(32, 3, 224, 224, device="cuda"), amp=amp)


def _transformer() -> None:
    layer = nn.TransformerEncoderLayer(512, 8, batch_first=True)
    _train(nn.TransformerEncoder(layer, 4).cuda(), torch.randn(16, 256, 512, device="cuda"))


def _linalg() -> None:
    _mlp()
    matrix = torch.randn(512, 512, device="cuda")
    even = matrix @ matrix.T + 512 * torch.eye(512, device="cuda")
    torch.linalg.cholesky(even)
    torch.linalg.eigh(even)
    torch.linalg.svd(matrix)
    torch.linalg.solve(even, matrix)
    torch.linalg.qr(matrix)


def _fft_and_sparse() -> None:
    _mlp()
    torch.fft.rfft2(torch.randn(64, 512, 512, device="cuda"))
    torch.sparse.mm(torch.eye(512, device="cuda").to_sparse(), torch.randn(512, 64, device="cuda"))


def _loader() -> None:
    import torchvision
    from torch.utils.data import DataLoader, TensorDataset

    net = torchvision.models.resnet18().cuda()
    data = TensorDataset(torch.randn(96, 3, 64, 64))
    for (batch,) in DataLoader(data, batch_size=32, num_workers=2, pin_memory=True):
        _train(net, batch.cuda())


_TRAININGS = {
    "mlp": _mlp,
    "convolutions": _convolutions,
    "cnn": _cnn,
    "cnn-amp": lambda: _cnn(amp=True),
    "transformer": _transformer,
    "linalg": _linalg,
    "fft-sparse": _fft_and_sparse,
    "loader": _loader,
}


def _end(how: str) -> None:
    if how == "empty-cache":
        torch.cuda.empty_cache()
    elif how == "out-of-memory":
        torch.cuda.set_per_process_memory_fraction(0.02)
        _kept = [torch.empty(256 << 20, dtype=torch.uint8, device="cuda") for _ in range(64)]
    elif how == "raise":
        raise ValueError("an error of the user's")
    elif how == "os-exit":
        os._exit(0)
    elif how in ("SIGKILL", "SIGTERM"):
        os.kill(os.getpid(), getattr(signal, how))
    elif how.isdigit():
        sys.exit(int(how))


if __name__ == "__main__":
    main()
