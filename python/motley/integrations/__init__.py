"""Frameworks that need more than motley.DataLoader and motley.weight_gradients, one in each module."""
