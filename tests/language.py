"""A tiny Llama with random weights, and sequences of different lengths for it."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

PAD = 63


def llama(layers=2, tied=False, vocabulary=64):
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary, hidden_size=32, intermediate_size=64, num_hidden_layers=layers,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=tied,
            pad_token_id=PAD if vocabulary > PAD else 0, bos_token_id=1, eos_token_id=2,
        )
    )  # fmt: skip


def adapted(model):
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))


def sentence(task, start, length):
    """Return tokens that count up by 1 (task 0) or by 7 (task 1)."""
    return [3 + (start + (1, 7)[task] * i) % 50 for i in range(length)]


def collate(sentences, left=False):
    """Return a batch as a data collator does: padded to the longest, with labels that mask the padding."""
    longest = max(map(len, sentences))
    pads = [[PAD] * (longest - len(tokens)) for tokens in sentences]
    ids = torch.tensor([pad + tokens if left else tokens + pad for tokens, pad in zip(sentences, pads, strict=True)])
    mask = (ids != PAD).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def batches(task, count, size=4, seed=0):
    """Return batches whose sequences differ in length, within a batch and between batches."""
    generator = torch.Generator().manual_seed(seed + 100 * task)
    for _ in range(count):
        starts = torch.randint(50, (size,), generator=generator).tolist()
        lengths = torch.randint(4, 12, (size,), generator=generator).tolist()
        yield collate([sentence(task, start, length) for start, length in zip(starts, lengths, strict=True)])


@torch.no_grad()
def loss_on(model, batch):
    modes = model.training
    loss = model.eval()(**batch).loss.item()
    model.train(modes)
    return loss
