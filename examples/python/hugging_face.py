"""A small GPT-2 with Hugging Face's Trainer on the paragraphs of the Jargon File (Debian's package jargon-text), byte by byte, on machines
that are not alike. It goes on from its last checkpoint, if there is one.

    torchrun --nproc-per-node 2 examples/python/hugging_face.py
"""
import argparse
import gzip
import os

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from motley.integrations.transformers import prepare_trainer

LONGEST = 128


def read_paragraphs():
    with gzip.open("/usr/share/doc/jargon-text/jargon.txt.gz") as file:
        return [torch.frombuffer(bytearray(part[:LONGEST]), dtype=torch.uint8) for part in file.read().split(b"\n\n") if len(part) > 1]


def collate(paragraphs):
    """Paragraphs of different lengths as a batch; the places after their ends count nothing."""
    ids = torch.nn.utils.rnn.pad_sequence([part.long() for part in paragraphs], batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones(len(part), dtype=torch.long) for part in paragraphs], batch_first=True)
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def make_model():
    return GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=LONGEST, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0,
                                      resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))


def train(paragraphs, epochs, checkpoint, save_steps=100, batch_split="dynamic"):
    torch.manual_seed(0)
    arguments = TrainingArguments(
        checkpoint, num_train_epochs=epochs, per_device_train_batch_size=16, gradient_accumulation_steps=2, learning_rate=1e-3,
        dataloader_drop_last=True, save_steps=save_steps, logging_steps=save_steps, report_to=[],
        use_cpu=not torch.cuda.is_available())  # or it starts no process group without GPUs
    trainer = prepare_trainer(Trainer(make_model(), arguments, collate, paragraphs), batch_split=batch_split)
    trainer.train(resume_from_checkpoint=os.path.isdir(checkpoint) and get_last_checkpoint(checkpoint))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--checkpoint", default="runs/hugging-face")
    options = parser.parse_args()
    train(read_paragraphs(), options.epochs, options.checkpoint)
