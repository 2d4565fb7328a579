"""Row by row against transformers: the errors of captured files."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any


def correctness_bodies(requests: int, vocab: int, longest: int) -> list[dict[str, Any]]:
    """Return requests of many lengths; every seventh ends at stop ids, some only prefill."""
    rng = random.Random(3)
    lengths = [n for n in (1, 5, 40, 300, 511, 512, 513, 700, 1500, 2600) if n <= longest]
    bodies = []
    for index in range(requests):
        sampling: dict[str, Any] = {
            "max_new_tokens": rng.choice((0, 1, 8, 30, 64)),
            "temperature": 1.0,
            "ignore_eos": True,
        }
        if index % 7 == 3:
            sampling |= {"stop_token_ids": list(range(0, vocab, 11)), "ignore_eos": False}
        ids = [rng.randrange(10, vocab) for _ in range(rng.choice(lengths))]
        bodies.append(
            {
                "input_ids": ids,
                "rid": f"row-{index:05d}",
                "sampling_params": sampling,
                "return_hidden_states": True,
            }
        )
    return bodies


def compare(
    model_folder: Path,
    bodies: list[dict[str, Any]],
    replies: list[dict[str, Any]],
    layers: tuple[int, ...],
    device: str,
) -> dict[str, Any]:
    """Compare every captured row of every request with transformers.

    Returns:
        Counts, and per chunk (layers, then last): the largest relative error of a request, the
        same over decode rows only, and the 99.9th percentile and the largest of a single row.
    """
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.bfloat16)
    model = model.to(device).eval()
    chunks = len(layers) + 1
    request_worst, decode_worst = [0.0] * chunks, [0.0] * chunks
    row_errors: list[list[Any]] = [[] for _ in range(chunks)]
    bad, rows = [], 0
    for body, reply in zip(bodies, replies, strict=True):
        prompt, output = body["input_ids"], reply.get("output_ids") or []
        ids = prompt + output
        wanted = len(prompt) + max(0, len(output) - 1)
        receipt = (reply.get("meta_info") or {}).get("hidden_states") or {"state": str(reply)[:300]}
        if receipt["state"] != "complete" or receipt["rows"] != wanted:
            bad.append({"rid": body["rid"], "wanted": wanted, "receipt": receipt})
            continue
        tensors = load_file(receipt["path"])
        if tensors["input_ids"].tolist() != ids:
            bad.append({"rid": body["rid"], "ids": "differ"})
            continue
        rows += wanted
        with torch.no_grad():
            out = model.model(torch.tensor([ids], device=device), output_hidden_states=True)
        found = out.hidden_states
        states = tensors["states"].to(device).float().view(wanted, chunks, -1)  # [T, L+1, D]
        for index, k in enumerate([*layers, len(found) - 1]):
            reference = found[k][0][:wanted].float()  # [T, D]
            difference = states[:, index] - reference
            error = (difference.norm() / reference.norm()).item()
            request_worst[index] = max(request_worst[index], error)
            row_errors[index].append((difference.norm(dim=-1) / reference.norm(dim=-1)).cpu())
            if wanted > len(prompt):
                tail = difference[len(prompt) :].norm() / reference[len(prompt) :].norm()
                decode_worst[index] = max(decode_worst[index], tail.item())
    every = [torch.cat(e) if e else torch.zeros(1) for e in row_errors]
    return {
        "requests": len(bodies),
        "bad": len(bad),
        "first_bad": bad[:3],
        "rows": rows,
        "request_worst": [round(x, 5) for x in request_worst],
        "decode_worst": [round(x, 5) for x in decode_worst],
        "row_worst": [round(float(e.max()), 5) for e in every],
        "row_median": [round(float(e.median()), 5) for e in every],
    }
