"""A small CNN on Fashion-MNIST with Lightning's Trainer, on machines that are not alike. It goes on from its last checkpoint, if there is
one.

    torchrun --nproc-per-node 2 examples/python/lightning_module.py
"""
import argparse
import os

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

import motley
from fashion_mnist import Images, make_net


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = make_net()

    def on_train_start(self):
        motley.weight_gradients(self.trainer.strategy.model, self.trainer.train_dataloader)

    def training_step(self, batch):
        images, labels = batch
        loss = torch.nn.functional.cross_entropy(self.net(images), labels)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def train(data, epochs, checkpoint, save_steps=100, batch_split="dynamic"):
    torch.manual_seed(0)
    saving = ModelCheckpoint(checkpoint, every_n_train_steps=save_steps, save_last=True)
    trainer = lightning.Trainer(strategy="ddp", devices=int(os.environ["LOCAL_WORLD_SIZE"]), max_epochs=epochs, callbacks=[saving],
                                logger=False)
    loader = motley.DataLoader(data, global_batch_size=256, batch_split=batch_split)
    trainer.fit(Classifier(), loader, ckpt_path="last")
    trainer.save_checkpoint(f"{checkpoint}/last.ckpt")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--checkpoint", default="runs/lightning")
    options = parser.parse_args()
    train(Images("train"), options.epochs, options.checkpoint)
