"""A language model of one's own, for motley export."""

import torch


class Net(torch.nn.Module):
    def __init__(self, tokens: int = 256, positions: int = 64, width: int = 64, layers: int = 2):
        super().__init__()
        self.token = torch.nn.Embedding(tokens, width)
        self.position = torch.nn.Embedding(positions, width)
        self.blocks = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True, norm_first=True) for _ in range(layers))
        self.output = torch.nn.Linear(width, tokens, bias=False)

    def forward(self, ids):
        positions = ids.shape[1]
        values = self.token(ids) + self.position(torch.arange(positions, device=ids.device))
        mask = torch.nn.Transformer.generate_square_subsequent_mask(positions, device=ids.device)
        for block in self.blocks:
            values = block(values, src_mask=mask, is_causal=True)
        return self.output(values)
