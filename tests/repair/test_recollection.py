"""What a language model predicted earlier, and the repair that brings it back to that."""

import copy
import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("transformers", reason="transformers is not installed")

from forgetless import FPF, Buffer, repair
from forgetless.compute.distributed import Processes
from forgetless.repair import recollection
from forgetless.repair.held_out import measure
from forgetless.repair.objective import Objective
from forgetless.repair.recollection import Recollection
from language import PAD, batches, collate, llama, sentence

OWN = Objective(shifts=True)


def buffer_of(sentences, capacity=16, masked=0):
    """Return a buffer of sequences whose first labels are masked."""
    batch, buffer = collate(sentences), Buffer(capacity, pad=PAD)
    batch["labels"][:, :masked] = -100
    rows = {"x.input_ids": batch["input_ids"], "x.attention_mask": batch["attention_mask"], "y": batch["labels"]}
    buffer.add(rows)
    return buffer


def logs_of(model, tokens):
    """Return the logarithms of the probabilities of the next tokens of a sequence."""
    with torch.no_grad():
        return model.eval()(input_ids=torch.tensor([tokens])).logits[0, :-1].log_softmax(1)


def columns(memory, buffer):
    taught = memory.teach(buffer)
    return [taught[f"recalled.{name}"] for name in ("ids", "logs", "weight")]


def test_the_loss_is_a_mean_over_tokens():
    model = llama()
    sentences = [sentence(i % 2, i, 12 if i == 8 else 4) for i in range(9)]  # the first and the ninth are held out
    buffer, memory = buffer_of(sentences, masked=2), Recollection(OWN)
    memory.predict(model, buffer)
    assert memory.loss(buffer) == pytest.approx(measure(model, buffer, OWN).loss, rel=1e-5)


def test_the_most_likely_tokens_are_kept(monkeypatch):
    monkeypatch.setattr(recollection, "TOP", 3)
    model, sentences = llama(), [sentence(0, 4, 7), sentence(1, 9, 4)]
    buffer, memory = buffer_of(sentences), Recollection(OWN)
    memory.predict(model, buffer)
    ids, logs, weight = columns(memory, buffer)
    assert ids.shape == logs.shape == (2, 6, 3)
    for row, tokens in enumerate(sentences):
        expected = logs_of(model, tokens).topk(3, 1)
        length = len(tokens) - 1
        assert torch.equal(ids[row, :length].long(), expected.indices)
        torch.testing.assert_close(logs[row, :length].float(), expected.values, rtol=1e-3, atol=1e-3)
    assert weight.tolist() == [2.0, 2.0]  # both are the newest
    losses = [F.nll_loss(logs_of(model, tokens), torch.tensor(tokens[1:])).item() for tokens in sentences]
    assert memory.loss(buffer) == pytest.approx(losses[0], rel=1e-5)  # of the held-out one
    assert memory.predicted == 2


def test_a_sequence_is_predicted_once_however_it_is_padded():
    model, memory = llama(), Recollection(OWN)
    memory.predict(model, buffer_of([sentence(0, 4, 5), sentence(0, 8, 5)]))
    with torch.no_grad():
        model.lm_head.weight.mul_(2)
    longer = buffer_of([sentence(1, 2, 11), sentence(0, 4, 5)])  # and the other one is dropped
    memory.predict(model, longer)
    assert memory.predicted == 3
    assert columns(memory, longer)[2].tolist() == [2.0, 1.0]
    assert len(memory.state_dict()["known"]) == 2
    memory.predict(model, longer)
    assert memory.predicted == 3
    assert columns(memory, longer)[2].tolist() == [2.0, 1.0]  # the newest are those of the last prediction


def test_the_better_of_two_predictions_is_kept():
    before = llama()
    after = copy.deepcopy(before)
    optimizer = torch.optim.AdamW(after.parameters(), lr=1e-2)
    new, old = collate([sentence(1, start, 8) for start in range(8)]), [sentence(0, start, 8) for start in range(3)]
    for _ in range(20):
        optimizer.zero_grad()
        after(**new).loss.backward()
        optimizer.step()
    buffer, memory = buffer_of([*old, sentence(1, 3, 8)]), Recollection(OWN)
    weights = {name: value.clone() for name, value in after.state_dict().items()}
    memory.predict_twice(after, buffer, before.state_dict())
    assert all(torch.equal(value, weights[name]) for name, value in after.state_dict().items())
    assert columns(memory, buffer)[2].tolist() == [1.0, 1.0, 1.0, 2.0]  # the model after it knows the last one better
    expected = F.nll_loss(logs_of(before, old[0]), torch.tensor(old[0][1:])).item()
    assert memory.loss(buffer) == pytest.approx(expected, rel=1e-5)


def test_the_loss_is_the_divergence_from_the_earlier_prediction():
    """At one position p = (0.5, 0.3, 0.2) of which the first two are kept, and q = (0.25, 0.25, 0.5)."""
    rows = {
        "y": torch.tensor([[0, 1]]),
        "recalled.ids": torch.tensor([[[0, 1]]], dtype=torch.int32),
        "recalled.logs": torch.tensor([[[0.5, 0.3]]]).log(),
        "recalled.weight": torch.ones(1),
    }
    logits = torch.tensor([[[0.25, 0.25, 0.5], [1.0, 1.0, 1.0]]]).log()
    value = OWN.value({"logits": logits}, rows, 0.0).item()
    assert value == pytest.approx(0.5 * math.log(2) + 0.3 * math.log(1.2) + 0.2 * math.log(0.4), rel=1e-5)


def test_newest_sequences_count_twice_and_masked_tokens_do_not_count():
    model, sentences = llama(), [sentence(0, 4, 7), sentence(1, 9, 4)]
    buffer, memory = buffer_of(sentences[:1], masked=3), Recollection(OWN)
    memory.predict(model, buffer)
    buffer = buffer_of(sentences, masked=3)
    memory.predict(model, buffer)  # the second one is the newest
    earlier = [logs_of(model, tokens) for tokens in sentences]
    with torch.no_grad():
        model.lm_head.weight.mul_(20)
    taught = memory.teach(buffer)
    rows = {name: taught[name] for name in taught.columns}
    value = OWN.value(OWN.output(model, {"input_ids": rows["x.input_ids"]}, rows), rows, 0.0).item()
    parts = [F.kl_div(logs_of(model, tokens), earlier[row], reduction="none", log_target=True).sum(1)[2:]
             for row, tokens in enumerate(sentences)]  # fmt: skip
    expected = (parts[0].sum() + 2 * parts[1].sum()) / (len(parts[0]) + 2 * len(parts[1]))
    assert value == pytest.approx(expected.item(), rel=1e-2)  # logarithms are stored in half precision
    assert OWN.examples(rows, 0.0).item() == len(parts[0]) + 2 * len(parts[1])


def train(model, fpf, task, steps, lr=1e-2):
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    for batch in batches(task, steps):
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()
        fpf.observe(batch)


def test_the_rate_follows_what_was_lost_and_how_far_the_weights_moved():
    model = llama()
    fpf = FPF(model, 16)
    train(model, fpf, 0, 1)
    start = [parameter.detach().clone() for parameter in model.parameters()]  # as FPF saw them first
    train(model, fpf, 0, 60)
    learned = measure(model, fpf.buffer, fpf.objective).loss
    held = fpf.buffer.held_out()["x.input_ids"].clone()
    fpf.boundary()
    train(model, fpf, 1, 2)
    assert torch.equal(fpf.buffer.held_out()["x.input_ids"], held)  # the same sequences as before
    lost = measure(model, fpf.buffer, fpf.objective).loss - learned
    moved = torch.cat([(now - then).flatten() for now, then in zip(model.parameters(), start, strict=True)])
    report = fpf.finish()
    assert 0.005 < lost < 1
    assert report.lr == pytest.approx(2 * lost * moved.detach().square().mean().sqrt().item() / 60, rel=1e-3)
    assert (report.optimizer, report.tried) == ("adam", 60)


def test_a_finish_without_training_since_the_last_one_changes_nothing():
    model = llama()
    fpf = FPF(model, 16)
    train(model, fpf, 0, 10)
    fpf.boundary()
    train(model, fpf, 1, 2)
    fpf.finish()
    weights = copy.deepcopy(model.state_dict())
    report = fpf.finish()
    assert (report.steps, report.tried, report.lr) == (0, 0, 0.0)
    assert all(torch.equal(weights[name], tensor) for name, tensor in model.state_dict().items())


def test_sequences_are_predicted_at_boundaries_or_as_the_budget_allows():
    model = llama()
    fpf = FPF(model, 16, budget=0.5)
    memory = fpf._repairer._recollection
    train(model, fpf, 0, 19)
    assert memory.predicted == 0
    train(model, fpf, 0, 1)  # 80 sequences: a third of half of them pay for 40 predictions
    assert memory.predicted == len(fpf.buffer) == 16
    fpf.boundary()
    found = memory.predicted
    train(model, fpf, 1, 60)
    assert memory.predicted == found  # after an announced shift, only at the next one
    fpf.boundary()
    assert memory.predicted > found
    assert fpf._repairer.account.spent == memory.predicted / 3


def test_remembered_sequences_are_predicted_before_the_training():
    model = llama()
    fpf = FPF(model, 16)
    fpf.remember(collate([sentence(0, start, 6) for start in range(4)]))
    assert fpf._repairer._recollection.predicted == 4
    assert FPF(llama(), 16, every=5)._repairer.recall(fpf.buffer, now=True) is None  # on a schedule


def test_a_resumed_model_is_brought_back_to_the_same_predictions():
    model = llama()
    fpf = FPF(model, 64)
    train(model, fpf, 0, 60)
    fpf.boundary()
    train(model, fpf, 1, 10)
    twin = copy.deepcopy(model)
    resumed = FPF(twin, 64)
    resumed.load_state_dict(fpf.state_dict())
    first, second = fpf.finish(), resumed.finish()
    assert first.loss_after == second.loss_after < first.loss_before
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


def test_without_logits_for_each_token_the_labels_are_used():
    class Prefixed(torch.nn.Module):
        """Logits for two virtual tokens come before those of the sequence."""

        def __init__(self):
            super().__init__()
            self.base = llama()

        def forward(self, input_ids, attention_mask=None, labels=None):
            output = self.base(input_ids=input_ids, attention_mask=attention_mask, labels=labels)
            return SimpleNamespace(loss=output.loss, logits=F.pad(output.logits, (0, 0, 2, 0)))

        def generate(self):
            """By this method forgetless knows a language model."""

    model = Prefixed()
    fpf = FPF(model, 64)
    train(model, fpf, 0, 20)
    fpf.boundary()
    report = fpf.finish()
    assert fpf._repairer._recollection.teach(fpf.buffer) is None
    assert report.loss_after < report.loss_before


def test_without_earlier_predictions_the_labels_are_used():
    model = llama()
    fpf = FPF(model, 64, budget=0.001)  # which pays for no prediction
    train(model, fpf, 0, 20)
    before = measure(model, fpf.buffer, fpf.objective).loss
    report = fpf.finish()
    assert fpf._repairer._recollection.predicted == 0
    assert report.loss_after < report.loss_before == pytest.approx(before)


def test_the_scored_sequences_of_all_processes_are_counted():
    """Otherwise processes with unequal buffers would allow the next repair different numbers of steps."""

    class Twice(Processes):
        def gather(self, value):
            return [value, value]  # another process has the same

    model = llama()
    fpf = FPF(model, 16)
    train(model, fpf, 0, 20)
    fpf.boundary()
    train(model, fpf, 1, 4)
    fpf._repairer._processes = Twice()
    report = fpf.finish()
    assert len(fpf.buffer.held_out()["y"]) == 2
    assert fpf._repairer.tuner.examples == 2 * 8 * report.tried + 2 * 2


def test_a_finished_model_is_repaired_without_other_processes(monkeypatch):
    """A program of several processes may repair a model in the first one alone."""

    def wait(*arguments, **named):
        raise AssertionError("waits for the other process")

    model, before = llama(), llama().state_dict()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for batch in batches(1, 5):
        model(**batch).loss.backward()
        optimizer.step()
    for name, value in {"is_initialized": True, "get_world_size": 2, "get_rank": 0}.items():
        monkeypatch.setattr(f"torch.distributed.{name}", lambda *_, value=value: value)
    monkeypatch.setattr("torch.distributed.all_gather_object", wait)
    report = repair(model, [next(iter(batches(0, 1, size=16)))], before, steps=20)
    assert report.examples == 16
