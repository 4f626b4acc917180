"""Layers whose parameters a parameter server has."""

from ._embedding import EmbeddingBag, EmbeddingBagCollection, EmbeddingBagConfig, KeyedTensor

__all__ = ["EmbeddingBag", "EmbeddingBagCollection", "EmbeddingBagConfig", "KeyedTensor"]
