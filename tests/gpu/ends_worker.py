"""A PyTorch job for the trial of ends: `ends_worker.py PART`; it waits for the GPU once in 200 steps."""

import os
import sys
import time

PART = sys.argv[1]


def say(text):
    print(text, flush=True)


def train(model, batch, forever=True, steps=300):
    import torch

    optimizer = torch.optim.SGD(model.parameters(), 1e-6)
    step = 0
    while forever or step < steps:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        step += 1
        if step == 5 or step % 200 == 0:
            torch.cuda.synchronize()
            say("ready" if step == 5 else f"step {step}")


def plain():
    import torch

    model = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096) for _ in range(6)]).cuda()
    return model, torch.randn(2048, 4096, device="cuda")


def loader():
    """With worker processes, as launchers start it."""
    import torch

    model = torch.nn.Linear(4096, 4096).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)
    data = torch.utils.data.TensorDataset(torch.randn(4096, 4096))
    step = 0
    while True:
        for (batch,) in torch.utils.data.DataLoader(data, 512, num_workers=2, pin_memory=True):
            optimizer.zero_grad()
            batch = batch.cuda(non_blocking=True)
            for _ in range(20):
                model(batch).square().mean().backward()
            optimizer.step()
            step += 1
            if step == 3:
                torch.cuda.synchronize()
                say("ready")


def lightning():
    import pytorch_lightning as pl
    import torch

    class Model(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4096, 4096)

        def training_step(self, batch, index):
            if index == 3:
                say("ready")
            return sum(self.layer(batch[0]).square().mean() for _ in range(20))

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 1e-6)

    data = torch.utils.data.TensorDataset(torch.randn(8192, 4096))
    train_data = torch.utils.data.DataLoader(data, 64, num_workers=2)
    trainer = pl.Trainer(
        max_epochs=1000, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False,
    )  # fmt: skip
    trainer.fit(Model(), train_data)


def grow():
    """Above its share, with the limit variable that it is given; in the process itself with --inside."""
    value = sys.argv[2]
    if "--inside" in sys.argv:
        os.environ["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = value
    import torch

    blocks, held = [], 0
    say("ready")
    while held < 12288:
        blocks.append(torch.ones(512 << 20, dtype=torch.uint8, device="cuda"))
        held += 512
        if held >= 6144:
            say(f"over {time.time():.2f}")
            break
    try:
        while True:
            blocks[0].add_(1)
            torch.cuda.synchronize()
            time.sleep(0.05)
    except RuntimeError:
        say(f"refused {time.time():.2f}")
        raise


def hold():
    """Above its share, and asleep, as a notebook is between two cells."""
    import torch

    block = torch.zeros(int(sys.argv[2]) << 20, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    say(f"ready\nover {os.getpid()} {time.time():.2f}")
    time.sleep(600)
    del block


def main():
    if PART in ("plain", "checkpoint", "raise", "end"):
        if PART == "checkpoint":
            import signal

            def save(number, frame):
                say("saving")
                time.sleep(4)
                say("saved")
                sys.exit(143)

            signal.signal(signal.SIGTERM, save)
        model, batch = plain()
        train(model, batch, forever=PART in ("plain", "checkpoint"))
        if PART == "raise":
            raise RuntimeError("a fault of the script, with work queued")
    else:
        {"loader": loader, "lightning": lightning, "grow": grow, "hold": hold}[PART]()


if __name__ == "__main__":
    main()
